"""Loading of a checkpoint with its pending writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perdure.engine.threads.chunk_reads import ChunkReader
from perdure.engine.threads.thread_state import (
    HeadView,
    View,
    load_view,
    missing_head_error,
    read_view,
    refuse_headless,
    view_items,
)
from perdure.engine.transact import ATTEMPTS
from perdure.errors import Contention
from perdure.model.checkpoint import CheckpointRecord, PendingWrite, sort_writes
from perdure.model.ops import Fetch, Get, Range
from perdure.model.program import Program, ask
from perdure.model.records import CHECKPOINT, WRITE, Partition, Record
from perdure.model.write_records import read_writes

_WRITES = 16
"""Maximum number of writes that are read with a checkpoint that may not be the latest."""


@dataclass(frozen=True, slots=True)
class LoadedCheckpoint:
    """A checkpoint as it was loaded, with its pending writes."""

    view: View
    checkpoint: CheckpointRecord | None
    writes: tuple[PendingWrite, ...] = ()

    @property
    def is_head(self) -> bool:
        return self.checkpoint is not None and self.checkpoint.id == self.view.head_id


def load(
    partition: Partition,
    namespace: str,
    checkpoint_id: str | None,
    *,
    guess: str | None = None,
    reader: ChunkReader | None = None,
    head_first: bool = False,
) -> Program[LoadedCheckpoint]:
    """Load a checkpoint with its pending writes, by default the latest checkpoint.

    Args:
        guess: id that the caller expects to be the latest; if it is, one fetch is enough.
        reader: reader of the thread's chunks, for a caller that has cached nothing of the thread. Its first
            reads are part of the first request, together with the checkpoint that is probably the latest.
        head_first: with a reader, request only the head first (``reads_heads_first``).

    Raises:
        Corrupt: the latest checkpoint is not stored, or no head names it.
        Contention: the thread keeps being pruned.
    """
    items: tuple[Get | Range, ...] = view_items(namespace)
    first = len(items)
    target = checkpoint_id or guess
    unresolved: HeadView | None = None
    if reader is not None and head_first and target is None:
        view = yield from load_view(partition, namespace)
        if (yield from _confirm_no_head(partition, namespace, view)):
            return LoadedCheckpoint(view, None)
        target = view.head_id
    for _ in range(ATTEMPTS):
        if reader is not None:
            latest = _newest_items(namespace) if target is None else _target_items(namespace, target)
            answers = yield from ask(Fetch(partition, (*items, *latest, *reader.ranges)))
            checkpoints, writes, *chunks = answers[first:]
            reader.add_answers(chunks)
            reader = None
            view = read_view(namespace, answers)
            found = (checkpoints, writes) if target is not None else _select_last(checkpoints, writes)
            if target is None and found:
                target = found[0][0].key[1]
        else:
            requested = items if target is None else (*items, *_target_items(namespace, target))
            answers = yield from ask(Fetch(partition, requested))
            view, found = read_view(namespace, answers), answers[first:]
        if view.is_absent or (
            checkpoint_id is None and (yield from _confirm_no_head(partition, namespace, view))
        ):
            return LoadedCheckpoint(view, None)
        if checkpoint_id is None and (head_id := view.head_id) is not None:
            if head_id != target:
                target = head_id
                found = yield from ask(Fetch(partition, _target_items(namespace, head_id)))
            if not found[0]:
                # The checkpoint was removed between two reads, so the head has moved: read again. If the same
                # head names it again, the thread is damaged.
                if view.head == unresolved:
                    raise missing_head_error(partition, namespace, head_id)
                unresolved = view.head
                continue
        if not found[0]:
            return LoadedCheckpoint(view, None)
        return LoadedCheckpoint(view, CheckpointRecord.read(found[0][0]), sort_writes(read_writes(found[1])))
    raise Contention(f"thread {partition.thread!r} keeps being pruned; load it later")


def _confirm_no_head(partition: Partition, namespace: str, view: View) -> Program[bool]:
    """Return True if a namespace has no latest checkpoint.

    Raises:
        Corrupt: it has checkpoints, so its head was lost.
    """
    if view.head is None and not view.is_absent:
        yield from refuse_headless(partition, namespace)
    return view.head is None or view.is_absent


def _target_items(namespace: str, checkpoint_id: str) -> tuple[Get | Range, ...]:
    return (Get(CHECKPOINT, (namespace, checkpoint_id)), Range(WRITE, (namespace, checkpoint_id)))


def _newest_items(namespace: str) -> tuple[Range, ...]:
    """Return the reads of the checkpoint that was stored last, and of the last writes."""
    return (
        Range(CHECKPOINT, (namespace,), "seq", reverse=True, limit=1),
        Range(WRITE, (namespace,), reverse=True, limit=_WRITES),
    )


def _select_last(
    checkpoints: Sequence[Record], last_writes: Sequence[Record]
) -> tuple[tuple[Record, ...], ...]:
    """Return the checkpoint that was stored last and its writes; an empty tuple if some of its writes may not
    be among ``last_writes``.

    These are the writes with the largest keys, in descending order. All writes of this checkpoint are among
    them if there are fewer than were asked for, or if the smallest is on a checkpoint with a smaller id.
    """
    if not checkpoints:
        return ()
    name = checkpoints[0].key[1]
    own = tuple(record for record in last_writes if record.key[1] == name)
    has_all_writes = len(last_writes) < _WRITES or last_writes[-1].key[1] < name
    if has_all_writes:
        return (tuple(checkpoints), own[::-1])
    return ()
