"""State of a thread that every write depends on: its head, collection generation and lease epoch."""

from __future__ import annotations

from typing import NamedTuple

from perdure.errors import Corrupt, Fenced, HeadConflict, NotFound
from perdure.model.ops import Check, Expect, Fetch, Get, Range
from perdure.model.program import Program, ask
from perdure.model.record_versions import came_back
from perdure.model.records import CHECKPOINT, EPOCH, GC, HEAD, Partition, Record


class HeadView(NamedTuple):
    """Head of a namespace as it was read."""

    version: int
    checkpoint_id: str
    seq: int


class View(NamedTuple):
    """A thread as it was read. ``generation`` and ``epoch`` are 0 while the record is absent."""

    head: HeadView | None
    generation: int
    epoch: int
    open_run: str | None
    root_head: str | None

    @property
    def is_absent(self) -> bool:
        """True if the thread does not exist: nothing of it is stored, or only part of a transfer, which
        writes the generation and the root's head last. A thread that has a head and no generation yet does
        exist."""
        return not self.generation and self.root_head is None

    @property
    def head_id(self) -> str | None:
        """The id of the head's checkpoint, ``None`` if the namespace has no head."""
        return self.head and self.head.checkpoint_id


def has_gone_back(known: View, found: View) -> bool:
    """Return True if a thread is in an earlier state than the known one, because the database came back in an
    older state. A thread that is gone counts as deleted.
    """
    if known.generation != found.generation:
        return bool(found.generation) and came_back(known.generation, found.generation)
    if known.head is None or not found.generation:
        return False
    return found.head is None or found.head.version < known.head.version


def view_items(namespace: str) -> tuple[Get, ...]:
    """Return the reads for a view; ``read_view`` takes the answers in this order."""
    items = (Get(HEAD, (namespace,)), Get(GC, ()), Get(EPOCH, ()))
    if namespace == "":
        return items
    return (*items, Get(HEAD, ("",)))


def read_view(namespace: str, answers: tuple[tuple[Record, ...], ...]) -> View:
    head = _head(answers[0])
    gc = answers[1][0].version if answers[1] else 0
    epoch = answers[2][0] if answers[2] else None
    root = head if namespace == "" else _head(answers[3])
    return View(
        head,
        gc,
        epoch.version if epoch else 0,
        epoch.fields["open_run"] if epoch else None,
        root.checkpoint_id if root else None,
    )


def load_view(partition: Partition, namespace: str) -> Program[View]:
    answers = yield from ask(Fetch(partition, view_items(namespace)))
    return read_view(namespace, answers)


def guards(partition: Partition, view: View, epoch: int | None) -> tuple[Check, Check]:
    """Return the checks that every write carries: the fence, and the collection generation of its plan.

    Raises:
        Fenced: the view already shows that the write may not happen.
    """
    if epoch is not None and view.epoch != epoch:
        raise Fenced(
            f"thread {partition.thread!r}: this writer holds lease epoch {epoch}, the thread is at "
            f"{view.epoch}; another worker has taken over, and nothing of this write was stored"
        )
    if epoch is None and view.open_run is not None:
        raise Fenced(
            f"thread {partition.thread!r} has the open run {view.open_run!r}; a write without its lease "
            "would be applied beside it. Wait for the run to finish and try again"
        )
    return (
        Check(EPOCH, (), view.epoch or Expect.ABSENT),
        Check(GC, (), view.generation or Expect.ABSENT),
    )


def missing_head_error(partition: Partition, namespace: str, checkpoint_id: str) -> Corrupt:
    """Return the error for a head that names a checkpoint which is not stored."""
    place = f" (namespace {namespace!r})" if namespace else ""
    return Corrupt(
        f"thread {partition.thread!r}{place}: its latest checkpoint is {checkpoint_id}, which is not stored; "
        "run `perdure fsck` to see what is left, and `perdure fsck --repair` to go on from that"
    )


def refuse_headless(partition: Partition, namespace: str) -> Program[None]:
    """Raise ``Corrupt`` if a namespace that had no head has checkpoints: the head was lost, and a graph that
    started from an empty state would hide them."""
    heads, stored, collections = yield from ask(
        Fetch(
            partition,
            (
                Get(HEAD, (namespace,)),
                Range(CHECKPOINT, (namespace,), "seq", reverse=True, limit=1, bodies=False),
                Get(GC, ()),
            ),
        )
    )
    if stored and collections and not heads:
        raise lost_head_error(partition, namespace)


def lost_head_error(partition: Partition, namespace: str) -> Corrupt:
    """Return the error for a namespace with checkpoints, none of which is marked as the latest."""
    place = f" (namespace {namespace!r})" if namespace else ""
    return Corrupt(
        f"thread {partition.thread!r}{place}: it has checkpoints, but the record of the latest one is "
        "missing; run `perdure fsck` to see what is left, and `perdure fsck --repair` to go on from the "
        "newest"
    )


def _head(answer: tuple[Record, ...]) -> HeadView | None:
    if not answer:
        return None
    record = answer[0]
    return HeadView(record.version, record.fields["checkpoint_id"], record.fields["seq"])


def removed_checkpoint_error(partition: Partition, checkpoint_id: str | None) -> NotFound:
    """Return the error of a write whose checkpoint was removed meanwhile."""
    return NotFound(
        f"thread {partition.thread!r}: checkpoint {checkpoint_id} was removed while a run built on it; "
        "nothing of this step was stored. Start from a checkpoint that is still there"
    )


def unwritten_error(partition: Partition, checkpoint_id: str | None) -> HeadConflict:
    """Return the error of a step whose earlier writes are gone."""
    return HeadConflict(
        f"thread {partition.thread!r}: writes on checkpoint {checkpoint_id} that this step is replayed from "
        "are gone; nothing of this step was stored. Load the thread again and repeat the call"
    )


def outrun_error(partition: Partition, checkpoint_id: str | None) -> HeadConflict:
    """Return the error of a write that another run overtook."""
    return HeadConflict(
        f"thread {partition.thread!r}: another run went on from checkpoint {checkpoint_id} before this one; "
        "nothing of this write was stored. Load the thread again and repeat the call"
    )
