"""Stored form of the writes of tasks: the records that hold them.

A write in a reserved slot (index below 0) may be overwritten, so it has a record of its own. The other writes
of a task are written once and share records, each record for a range of slots: writes that one call stores
usually form one record. A shared record is rewritten when another call fills more of its slots, or when some
writes are removed. A record may also have the time that the task took until its last call.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from operator import attrgetter

import ormsgpack

from perdure.errors import Corrupt
from perdure.model.checkpoint import PendingWrite, TaskSpan, is_set_aside
from perdure.model.heads import is_of_run
from perdure.model.ops import Expect, Expectation, Put
from perdure.model.record_versions import successor
from perdure.model.records import WRITE, Key, Record
from perdure.model.short_forms import expand_name, shorten_name
from perdure.model.values import refs

INTERRUPT, RESUME = "__interrupt__", "__resume__"
"""LangGraph's channels of the question that a task asks, and of the answers that it was given."""
BRANCH = "branch:to:"
"""Beginning of LangGraph's channels that trigger a node, before its name."""
SENDS = "__pregel_tasks"
"""LangGraph's channel with the ``Send``s of a step."""
ERROR_SOURCE = "__error_source_node__"
"""LangGraph's channel with the node whose error a handler takes over; it is not output of the task."""
NULL_TASK = "00000000-0000-0000-0000-000000000000"
"""Task under which LangGraph stores what a command writes, and an answer that names no interrupt."""
CALLS = "__perdure_calls__"
"""Prefix of the channel with the records of a task's calls. The number of answers to interrupts that the task
had at the calls follows."""

SHARED = 32
"""Number of successive slots of a task that share a record."""

_SHARING = b"\x70"
"""First byte of the body of a record of several writes; no reference begins with it."""
_TIMED = b"\x71"
"""First byte of the body of a record with a ``TaskSpan``: its two numbers follow, then the rest of the
body."""


def is_of_calls(channel: str) -> bool:
    """Return True if a channel has records of calls."""
    return channel.startswith(CALLS)


def count_answers(channel: str) -> int:
    """Return the number of answers that a task had when it made the calls in a channel."""
    return int(channel.removeprefix(CALLS))


def visible(writes: Iterable[PendingWrite]) -> tuple[PendingWrite, ...]:
    """Return the writes that LangGraph sees: those that are not records of calls."""
    return tuple(write for write in writes if not is_of_calls(write.channel))


def record_key(write: PendingWrite) -> Key:
    """Return the key of the record that holds a write, or will hold it."""
    idx = write.idx
    if idx >= 0:
        idx -= idx % SHARED
    return write.namespace, write.checkpoint_id, write.task_id, idx


def group_by_record(writes: Iterable[PendingWrite]) -> dict[Key, list[PendingWrite]]:
    """Group writes by the key of their record."""
    records: dict[Key, list[PendingWrite]] = {}
    for write in writes:
        records.setdefault(record_key(write), []).append(write)
    return records


def make_new_puts(writes: Iterable[PendingWrite], expect: Expectation = Expect.ANY) -> list[Put]:
    """Return the operations that store writes in new records."""
    return [_make_put(key, group, expect, group[0].version) for key, group in group_by_record(writes).items()]


def read_by_record(records: Iterable[Record]) -> dict[Key, Sequence[PendingWrite]]:
    """Return the writes that each record holds, by its key."""
    return {record.key: _read_record(record) for record in records}


def plan_puts(writes: Iterable[PendingWrite], stored: Mapping[Key, Sequence[PendingWrite]]) -> list[Put]:
    """Return the operations that store writes in free slots, beside the writes that are stored already.

    Args:
        writes: The new writes.
        stored: The stored writes of each record that may receive new ones, by the record's key.
    """
    out: list[Put] = []
    for key, new in group_by_record(writes).items():
        existing = stored.get(key)
        if existing is None:
            out.append(_make_put(key, new, Expect.ABSENT, new[0].version))
        else:
            out.append(_rewrite(existing, new))
    return out


def plan_partial_removal(record: Sequence[PendingWrite], gone: Iterable[PendingWrite]) -> Put | None:
    """Return the operation that removes some of a record's writes, ``None`` if it removes all of them."""
    keys = {write.key for write in gone}
    kept = [write for write in record if write.key not in keys]
    if kept:
        return _rewrite(kept, ())
    return None


def put_over(write: PendingWrite, stored: PendingWrite) -> Put:
    """Return the operation that overwrites the stored write in a reserved slot."""
    return _make_put(record_key(stored), [write], stored.version, successor(stored.version, write.nonce))


def find_asking_tasks(records: Iterable[Record]) -> set[str]:
    """Return the tasks of a checkpoint that have an unanswered interrupt.

    The rule is LangGraph's (``langgraph.pregel._task_status``): a task with any output has ended; of any
    other task the latest interrupt is open.

    Args:
        records: The records of the checkpoint's writes; their bodies are not needed.
    """
    asking: set[str] = set()
    ended: set[str] = set()
    for record in records:
        task_id, idx = record.key[2:4]
        if idx >= 0:
            if record.fields["channel"] != ERROR_SOURCE:
                ended.add(task_id)
        elif record.fields["channel"] == INTERRUPT and not is_set_aside(idx):
            asking.add(task_id)
    return asking - ended


def find_edited_tasks(records: Iterable[Record]) -> set[str]:
    """Return the tasks of a checkpoint that asked in a run, and that an edit ended in place of an answer. A
    run that starts from a checkpoint which is not the latest runs them again."""
    asked: set[str] = set()
    ended: set[str] = set()
    answered: set[str] = set()
    for record in records:
        task_id, idx = record.key[2:4]
        is_in_run, channel = is_of_run(record.fields["nonce"]), record.fields["channel"]
        if idx >= 0:
            # The answer to a question of a subgraph is stored there.
            (answered if is_in_run else ended).add(task_id)
        elif channel == RESUME:
            answered.add(task_id)
        elif channel == INTERRUPT and is_in_run and not is_set_aside(idx):
            asked.add(task_id)
    return asked & ended - answered


def stored_bytes(writes: Iterable[PendingWrite]) -> int:
    """Return the number of bytes of the bodies of records that hold these writes and no others."""
    return sum(
        len(_make_put(key, group, Expect.ANY, 0).body) for key, group in group_by_record(writes).items()
    )


def read_writes(records: Iterable[Record]) -> list[PendingWrite]:
    """Return the writes that records hold; raises ``Corrupt`` if one cannot be read."""
    return list(chain.from_iterable(map(_read_record, records)))


def _rewrite(existing: Sequence[PendingWrite], more: Sequence[PendingWrite]) -> Put:
    version = existing[0].record_version
    after = successor(version, *(write.nonce for write in more))
    return _make_put(record_key(existing[0]), [*existing, *more], version, after)


def _make_put(key: Key, writes: Sequence[PendingWrite], expect: Expectation, version: int) -> Put:
    put = _make_untimed_put(key, writes, expect, version)
    span = max((write.span for write in writes if write.span is not None), key=sum, default=None)
    if span is None:
        return put
    return put._replace(
        body=_TIMED + refs.encode_varint(span.waited) + refs.encode_varint(span.took) + put.body
    )


def _make_untimed_put(key: Key, writes: Sequence[PendingWrite], expect: Expectation, version: int) -> Put:
    writes = sorted(writes, key=attrgetter("idx"))
    first = writes[0]
    fields: Mapping[str, str] = {"channel": "", "task_path": first.task_path, "nonce": first.nonce}
    if len(writes) == 1 and first.idx == key[3]:
        return Put(WRITE, key, {**fields, "channel": first.channel}, first.ref, expect, version)
    common = first.nonce, first.task_path
    entries = [
        (
            w.idx,
            shorten_name(w.channel, {}),
            w.ref,
            *(() if (w.nonce, w.task_path) == common else (w.nonce, w.task_path)),
        )
        for w in writes
    ]
    return Put(WRITE, key, fields, _SHARING + ormsgpack.packb(entries), expect, version)


def _split_span(record: Record) -> tuple[bytes, TaskSpan | None]:
    """Return a record's body without the time, and the time, ``None`` if it has none."""
    body = record.body
    if not body.startswith(_TIMED):
        return body, None
    try:
        waited, at = refs.read_varint(body, 1)
        took, at = refs.read_varint(body, at)
    except Corrupt as error:
        _, checkpoint_id, task_id, _ = record.key
        raise Corrupt(f"the writes of task {task_id} on {checkpoint_id} cannot be read: {error}") from error
    return body[at:], TaskSpan(waited, took)


def _read_record(record: Record) -> Sequence[PendingWrite]:
    namespace, checkpoint_id, task_id, first_idx = record.key
    fields, version = record.fields, record.version
    channel, path, nonce = fields["channel"], fields["task_path"], fields["nonce"]
    place = namespace, checkpoint_id, task_id
    body, span = _split_span(record)
    if not body.startswith(_SHARING):
        slot_version = version if first_idx < 0 else 1
        return [PendingWrite(*place, first_idx, channel, path, nonce, body, slot_version, version, span)]
    if channel:
        raise Corrupt(
            f"the writes of task {task_id} on {checkpoint_id} cannot be read: they name one channel"
        )
    try:
        return [
            PendingWrite(
                *place, idx, expand_name(name, ()),
                origin[1] if origin else path, origin[0] if origin else nonce,
                ref, 1, version, span,
            )
            for idx, name, ref, *origin in ormsgpack.unpackb(body[len(_SHARING) :])
        ]  # fmt: skip
    except (ValueError, TypeError, LookupError) as error:
        raise Corrupt(f"the writes of task {task_id} on {checkpoint_id} cannot be read: {error}") from error
