"""Open questions of a thread's latest checkpoint, which are read without the graph or its types."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeGuard

from perdure.engine.queue.questions import Asked
from perdure.engine.threads import chunk_reads
from perdure.engine.threads.undisturbed import read_undisturbed
from perdure.errors import NotFound
from perdure.langgraph.reading.plain_serde import PlainSerde
from perdure.model.heads import ROOT
from perdure.model.ops import Fetch, Get, Range
from perdure.model.program import Program, ask
from perdure.model.records import CHECKPOINT, HEAD, WRITE, Partition, Record
from perdure.model.runs.waits import WAITS_FOR
from perdure.model.values.chunks import Digester
from perdure.model.values.joined_values import join_tree
from perdure.model.write_records import (
    INTERRUPT,
    find_asking_tasks,
    find_edited_tasks,
    read_writes,
)

_INTERRUPT = "langgraph.types.Interrupt"
_serde = PlainSerde()

_ID_DIGITS = 32


def read(partition: Partition, digest: Digester, checkpoint_id: str | None = None) -> Program[Asked]:
    """Return the open questions of a thread's latest checkpoint, or of another one; none if it has no
    checkpoint.

    Raises:
        NotFound: the other checkpoint is not stored.
        Corrupt: a question cannot be read.
    """
    return (yield from read_undisturbed(partition, lambda: _read(partition, digest, checkpoint_id)))


def _read(partition: Partition, digest: Digester, checkpoint_id: str | None) -> Program[Asked]:
    head, values = yield from _read_open(partition, digest, checkpoint_id)
    if head is None:
        return Asked()
    asked = Asked(head.version, tuple(dict.fromkeys(name for name, _ in values)))
    if checkpoint_id in (None, head.fields["checkpoint_id"]):
        return asked
    waits = (name for name, value in values if isinstance(value, dict) and WAITS_FOR in value)
    return asked._replace(is_latest=False, waits=tuple(waits))


class AskedValues(NamedTuple):
    """The latest checkpoint of a thread, ``None`` if there is none, and the values of its unanswered
    interrupts as plain data, by the ids of the interrupts."""

    checkpoint_id: str | None
    values: Mapping[str, Any]


def read_values(partition: Partition, digest: Digester) -> Program[AskedValues]:
    """Return the open questions of a thread's latest checkpoint, with the values of its interrupts.

    Raises:
        Corrupt: a question cannot be read.
    """
    head, values = yield from read_undisturbed(partition, lambda: _read_open(partition, digest))
    return AskedValues(None if head is None else head.fields["checkpoint_id"], dict(values))


def _read_open(
    partition: Partition, digest: Digester, checkpoint_id: str | None = None
) -> Program[tuple[Record | None, list[tuple[str, Any]]]]:
    """Return the record that names the latest checkpoint, and the ids and values of its unanswered
    interrupts, or of those of another checkpoint."""
    (heads,) = yield from ask(Fetch(partition, (Get(HEAD, (ROOT,)),)))
    if not heads and checkpoint_id is None:
        return None, []
    if checkpoint_id is not None:
        (stored,) = yield from ask(Fetch(partition, (Get(CHECKPOINT, (ROOT, checkpoint_id)),)))
        if not heads or not stored:
            raise NotFound(f"thread {partition.thread!r} has no checkpoint {checkpoint_id!r}")
    (head,) = heads
    place = ROOT, checkpoint_id or head.fields["checkpoint_id"]
    (records,) = yield from ask(Fetch(partition, (Range(WRITE, place),)))
    tasks = find_asking_tasks(records)
    if place[1] != head.fields["checkpoint_id"]:
        tasks |= find_edited_tasks(records)
    asking = [
        write
        for write in read_writes(records)
        if write.task_id in tasks and write.channel == INTERRUPT and not write.is_aside
    ]
    if not asking:
        return head, []
    wanted = {write.task_id: write.ref for write in asking}
    trees, _ = yield from chunk_reads.resolve(partition, wanted, digest)
    return head, [
        found for tree in trees.values() for found in read_interrupts(_serde.value(*join_tree(tree)))
    ]


def interrupt_id(place: str, number: int) -> str:
    """Return LangGraph's id of a task's interrupt, which depends on the number of answers before it.

    Args:
        place: the namespace of the task: the names and ids, ``node:id``, of its parents and its own.
        number: the number of answers that the task has.
    """
    from langgraph.types import Interrupt

    return Interrupt.from_ns(None, f"{place}|{number}" if number else place).id


def is_by_name(resume: Any) -> TypeGuard[Mapping[str, Any]]:
    """Return True if each answer has the id of its interrupt, by LangGraph's own rule."""
    return (
        isinstance(resume, Mapping)
        and len(resume) > 0
        and all(
            isinstance(name, str) and len(name) == _ID_DIGITS and set(name) <= set("0123456789abcdef")
            for name in resume
        )
    )


def read_interrupts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the id and the value of each interrupt in the plain form of a task's write."""
    if isinstance(value, list | tuple):
        interrupts: Iterable[Any] = value
    else:
        interrupts = (value,)
    for each in interrupts:
        if isinstance(each, dict) and each.get("type") == _INTERRUPT and isinstance(each["value"], dict):
            yield str(each["value"]["id"]), each["value"].get("value")
