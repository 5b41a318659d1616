"""Reads of a thread's history: checkpoint listings, and the writes that a DeltaChannel replays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from perdure.engine.requests import read_record, read_records, version_of
from perdure.engine.threads.thread_state import (
    lost_head_error,
    missing_head_error,
    read_view,
    refuse_headless,
    view_items,
)
from perdure.engine.transact import ATTEMPTS
from perdure.errors import Contention, Corrupt
from perdure.model.checkpoint import Carried, CarriedWrite, CheckpointRecord, PendingWrite, sort_writes
from perdure.model.heads import is_loop, schema_of
from perdure.model.ops import Fetch, Get, Range
from perdure.model.program import Program, ask
from perdure.model.records import CHECKPOINT, GC, HEAD, WRITE, Partition, Record
from perdure.model.removal_plan import ORIGIN
from perdure.model.write_records import read_writes

PAGE = 64
_LIGHT_PAGE = 2_000
"""Checkpoints that are read at once without their bodies."""


def read_namespaces(partition: Partition) -> Program[tuple[str, ...]]:
    """Return the namespaces of a thread that have a head, in order.

    Raises:
        Corrupt: the root has checkpoints, and its head is missing.
    """
    (heads,) = yield from ask(Fetch(partition, (Range(HEAD),)))
    found = tuple(record.key[0] for record in heads)
    if "" not in found:
        yield from refuse_headless(partition, "")
    return found


def read_page(
    partition: Partition, namespace: str, *, below: int | None, limit: int
) -> Program[list[CheckpointRecord]]:
    """Return a page of checkpoints of a namespace, newest first.

    Args:
        below: only checkpoints with a lower sequence number; ``None`` for the first page.

    Raises:
        Corrupt: on the first page, the namespace's head is missing, or names a checkpoint that is not stored.
    """
    wanted = Range(CHECKPOINT, (namespace,), "seq", reverse=True, after=below, limit=limit)
    if below is not None:
        (records,) = yield from ask(Fetch(partition, (wanted,)))
        return [CheckpointRecord.read(r) for r in records]
    missed: Record | None = None
    for _ in range(ATTEMPTS):
        records, *state = yield from ask(Fetch(partition, (wanted, *view_items(namespace))))
        heads = state[0]
        if read_view(namespace, tuple(state)).is_absent:
            return []
        if not heads:
            if records:
                raise lost_head_error(partition, namespace)
            return []
        target = heads[0].fields["checkpoint_id"]
        if any(record.key[1] == target for record in records):
            return [CheckpointRecord.read(r) for r in records]
        if (yield from find(partition, namespace, target)) is not None:
            return [CheckpointRecord.read(r) for r in records]
        # The checkpoint was removed between two reads, so the head has moved: read again. If the head still
        # names it, the thread is damaged.
        if missed == heads[0]:
            raise missing_head_error(partition, namespace, target)
        missed = heads[0]
    raise Contention(f"thread {partition.thread!r} keeps being pruned; list it later")


def find(partition: Partition, namespace: str, checkpoint_id: str) -> Program[CheckpointRecord | None]:
    record = yield from read_record(partition, CHECKPOINT, (namespace, checkpoint_id))
    return record and CheckpointRecord.read(record)


def find_all(
    partition: Partition, namespace: str, checkpoint_ids: Sequence[str]
) -> Program[list[CheckpointRecord]]:
    """Return those of the checkpoints that are stored, in the order of the given ids."""
    records = yield from read_records(partition, CHECKPOINT, [(namespace, one) for one in checkpoint_ids])
    return list(map(CheckpointRecord.read, records))


def find_step(partition: Partition, namespace: str, step: int) -> Program[list[tuple[str, int]]]:
    """Return the ids and sequence numbers of the checkpoints that have a step's number, newest first:
    branches of a history have the same numbers."""
    found: list[tuple[str, int]] = []

    def select(record: Record) -> None:
        if record.fields["step"] == step:
            found.append((record.key[1], record.fields["seq"]))

    yield from _visit_all(partition, namespace, select)
    return found


def _visit_all(partition: Partition, namespace: str, visit: Callable[[Record], None]) -> Program[None]:
    """Call ``visit`` for each checkpoint of a namespace without its body, newest first."""
    wanted = Range(CHECKPOINT, (namespace,), "seq", reverse=True, limit=_LIGHT_PAGE, bodies=False)
    while True:
        (records,) = yield from ask(Fetch(partition, (wanted,)))
        for record in records:
            visit(record)
        if len(records) < _LIGHT_PAGE:
            return
        wanted = wanted._replace(after=records[-1].fields["seq"])


def list_newest_of_runs(partition: Partition, namespace: str) -> Program[list[str]]:
    """Return the ids of checkpoints that together have the metadata of all runs of a namespace: the newest of
    each run and source, and each that no run made. Bodies are not read."""
    found: list[str] = []
    seen: set[tuple[str | None, str | None]] = set()

    def select(record: Record) -> None:
        of_run = record.fields["run_id"], record.fields["source"]
        if of_run[0] is None or of_run not in seen:
            found.append(record.key[1])
        seen.add(of_run)

    yield from _visit_all(partition, namespace, select)
    return found


def read_pending_writes(
    partition: Partition, namespace: str, checkpoint_ids: Sequence[str], generation: int | None = None
) -> Program[dict[str, tuple[PendingWrite, ...]]]:
    """Return the pending writes of checkpoints, in the order in which a super-step applies them.

    Args:
        generation: the collection generation in which the checkpoints were read, if all must be there still.

    Raises:
        Corrupt: something was removed since that generation.
    """
    wanted = tuple(Range(WRITE, (namespace, c)) for c in checkpoint_ids)
    answers: Sequence[tuple[Record, ...]]
    if generation is None:
        answers = yield from ask(Fetch(partition, wanted))
    else:
        collections, *answers = yield from ask(Fetch(partition, (Get(GC, ()), *wanted)))
        if generation != version_of(collections):
            raise Corrupt(
                f"thread {partition.thread!r}: checkpoints were removed while their writes were read; read "
                "the thread again"
            )
    return {c: sort_writes(read_writes(records)) for c, records in zip(checkpoint_ids, answers, strict=True)}


def list_root_ancestors(partition: Partition, checkpoint_id: str) -> Program[frozenset[str] | None]:
    """Return the strict ancestors of a root checkpoint, ``None`` if it is not stored.

    They include removed ones that subgraphs name, and the origin.
    """
    record = yield from find(partition, "", checkpoint_id)
    if record is None:
        return None
    out = {ORIGIN, *record.passed}
    below: int | None = record.seq
    parent = record.parent_id
    while parent is not None:
        records = yield from read_page(partition, "", below=below, limit=PAGE)
        if not records:
            break
        for candidate in records:
            if candidate.id == parent:
                out.update((candidate.id, *candidate.passed))
                parent = candidate.parent_id
        below = records[-1].seq
    return frozenset(out)


def before_root(
    partition: Partition, checkpoints: list[CheckpointRecord], ancestors: frozenset[str]
) -> Program[list[CheckpointRecord]]:
    """Select the checkpoints of a subgraph made before a root checkpoint with these strict ancestors.

    A subgraph's checkpoint names the root checkpoint that spawned it; if that one was never stored, the
    root's head at the time decides.
    """
    others = sorted({c.root for c in checkpoints if c.root is not None and c.root not in ancestors})
    answers = yield from ask(Fetch(partition, tuple(Get(CHECKPOINT, ("", root)) for root in others)))
    elsewhere = {root for root, answer in zip(others, answers, strict=True) if answer}

    def is_before(checkpoint: CheckpointRecord) -> bool:
        if checkpoint.root is not None and checkpoint.root in ancestors:
            return True
        return checkpoint.root not in elsewhere and (checkpoint.root_head or ORIGIN) in ancestors

    return [c for c in checkpoints if is_before(c)]


def keep_name(channel: str, schema: int) -> str | None:
    """Return a channel's name in a schema version: the one that it has now."""
    return channel


def read_delta_history(
    partition: Partition,
    target: CheckpointRecord,
    channels: Iterable[str],
    named: Callable[[str, int], str | None] = keep_name,
    *,
    generation: int | None = None,
) -> Program[dict[str, Carried]]:
    """Return the data that rebuilds DeltaChannels at a checkpoint: the nearest stored value and the writes
    since, in order.

    Only the parent chain counts. Of the writes on each ancestor, only those count that the loop which made
    the next checkpoint in the chain had loaded or written itself: a run that lost the race for that
    checkpoint may have left other writes there.

    Args:
        partition: The thread.
        target: The checkpoint.
        channels: The channels' present names.
        named: Returns the name that a channel had in a schema version, ``None`` if it did not exist.
        generation: The thread's collection generation when the checkpoint was read; ``None`` if what is made
            of the result is stored only in that generation.

    Raises:
        Corrupt: An ancestor is missing, or something was removed since that generation.
    """
    collected: dict[str, list[CarriedWrite]] = {channel: [] for channel in channels}
    done: dict[str, Carried] = {}
    child = target
    buffer: list[CheckpointRecord] = []
    writes_by_id: dict[str, tuple[PendingWrite, ...]] = {}
    below: int | None = target.seq
    while len(done) < len(collected):
        open_channels = [c for c in collected if c not in done]
        for channel in open_channels:
            if (carried := child.carried.get(named(channel, child.schema) or "")) is not None:
                kept = carried.with_schema(child.schema)
                done[channel] = kept._replace(writes=(*kept.writes, *reversed(collected[channel])))
        if child.parent_id is None:
            break
        if not buffer:
            chain, below = yield from _read_ancestors(partition, child, below)
            buffer = chain
            if not buffer:
                break
            writes_by_id = yield from read_pending_writes(
                partition, target.namespace, [c.id for c in buffer], generation
            )
        parent = buffer.pop(0)
        own_nonces = {child.nonce, *child.seen}
        for write in reversed(writes_by_id[parent.id]):
            schema = schema_of(write.nonce)
            wanted = [c for c in open_channels if c not in done and named(c, schema) == write.channel]
            if wanted and (not child.nonce or not is_loop(write.nonce) or write.nonce in own_nonces):
                collected[wanted[0]].append(CarriedWrite(write.task_id, write.ref, schema))
        for channel in collected:
            if channel in done:
                continue
            if (seed := parent.refs.get(named(channel, parent.schema) or "")) is not None:
                done[channel] = Carried(seed, tuple(reversed(collected[channel])), parent.schema)
        child = parent
    for channel, writes in collected.items():
        done.setdefault(channel, Carried(None, tuple(reversed(writes))))
    return done


def _read_ancestors(
    partition: Partition, child: CheckpointRecord, below: int | None
) -> Program[tuple[list[CheckpointRecord], int | None]]:
    """Return some ancestors of a checkpoint, nearest first without gaps, and the sequence number below which
    the next search starts."""
    chain: list[CheckpointRecord] = []
    parent = child.parent_id
    while not chain:
        records = yield from read_page(partition, child.namespace, below=below, limit=PAGE)
        if not records:
            if parent is not None and not child.cut:
                raise Corrupt(
                    f"thread {partition.thread!r}: checkpoint {child.id} names the parent {parent}, which is "
                    "not stored; run `perdure fsck`"
                )
            return [], below
        for candidate in records:
            if candidate.id == parent:
                chain.append(candidate)
                parent = candidate.parent_id
        below = records[-1].seq
    return chain, below
