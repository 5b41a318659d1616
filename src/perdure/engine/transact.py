"""Read, plan and commit, repeated on conflict: the loop behind every write."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from perdure.errors import Contention, TooLarge
from perdure.model.ops import ApplicationStatement, Check, Commit, Committed, Expect, Op, Put, Refused, Stage
from perdure.model.program import Program, ask
from perdure.model.records import GC, Partition

ATTEMPTS = 64
"""Times that a commit is planned before ``Contention`` is raised."""

V = TypeVar("V")
A = TypeVar("A")
S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of one commit: operations, and bytes of bodies. Chunks that do not fit are staged before the
    commit."""

    ops: int
    bytes: int

    def holds(self, ops: Collection[Op]) -> bool:
        """Return True if one commit may carry all of these."""
        room = self.bytes
        for op in ops:
            if type(op) is Put:
                room -= len(op.body)
        return len(ops) <= self.ops and room >= 0


def commit_with_chunks(
    partition: Partition,
    ops: Sequence[Op],
    chunks: Sequence[Put],
    budget: Budget,
    statements: tuple[ApplicationStatement, ...] = (),
) -> Program[Committed | Refused]:
    """Commit with the chunks inside if they fit; otherwise stage the chunks first. ``statements`` are
    executed in the same commit.

    Raises:
        TooLarge: ``ops`` alone exceed the budget.
    """
    if len(ops) > budget.ops:
        raise TooLarge(
            f"thread {partition.thread!r}: one write needs {len(ops)} operations, the backend takes "
            f"{budget.ops} at once; write fewer values in one step"
        )
    if budget.holds(all_ops := (*ops, *chunks)):
        outcome: Committed | Refused = yield Commit(partition, all_ops, statements)
        return outcome
    return (yield from _stage_and_commit(partition, ops, chunks, budget, statements))


def _stage_and_commit(
    partition: Partition,
    ops: Sequence[Op],
    chunks: Sequence[Put],
    budget: Budget,
    statements: tuple[ApplicationStatement, ...],
) -> Program[Committed | Refused]:
    # A thread without a generation is given one before anything is staged. A drop of the thread in between
    # then removes both, and the last commit is refused instead of referring to removed chunks.
    born = next(
        (op for op in ops if isinstance(op, Put) and op.kind is GC and op.expect is Expect.ABSENT), None
    )
    if born is not None:
        # This first commit carries the other checks that the thread does not exist yet, too.
        absent = (op for op in ops if isinstance(op, Check) and op.expect is Expect.ABSENT)
        begun: Committed | Refused = yield Commit(partition, (born, *absent))
        if not isinstance(begun, Committed):
            return begun
        ops = [Check(GC, (), born.version) if op is born else op for op in ops]
    for batch in split_into_batches(chunks, budget):
        yield from ask(Stage(partition, tuple(batch)))
    return (yield from ask(Commit(partition, tuple(ops), statements)))


def commit_or_raise(
    partition: Partition, ops: Iterable[Op], error: Callable[[Partition], Exception]
) -> Program[None]:
    """Commit; if that is refused, raise what ``error`` returns for the partition."""
    outcome = yield from ask(Commit(partition, tuple(ops)))
    if not isinstance(outcome, Committed):
        raise error(partition)


def retry_attempt(
    partition: Partition,
    view: V | None,
    load: Callable[[], Program[V | None]],
    attempt: Callable[[V], Program[A | None]],
    refusals: tuple[type[Exception], ...] = (),
) -> Program[A]:
    """Run ``attempt`` on a view until it returns an answer.

    Args:
        view: first view to try; ``None`` to load one.
        load: reads the view again; returns ``None`` if it changed between two requests.
        attempt: returns ``None`` if the view was stale.
        refusals: errors of ``attempt`` that depend on records read after the view: they are raised if the
            view is still the same after them, and otherwise ``attempt`` is repeated.

    Raises:
        Contention: all attempts lost to other writers.
    """
    for _ in range(ATTEMPTS):
        if view is None:
            view = yield from load()
        try:
            if view is None:
                answer = None
            else:
                answer = yield from attempt(view)
        except refusals:
            before, view = view, (yield from load())
            if view == before:
                raise
            continue
        if answer is not None:
            return answer
        view = None
    raise Contention(
        f"thread {partition.thread!r}: {ATTEMPTS} attempts to write lost to other writers; try again"
    )


def split_into_batches(ops: Iterable[S], budget: Budget, *, reserve: int = 0) -> Iterator[list[S]]:
    """Split operations into commits that leave room for ``reserve`` further operations each."""
    batch: list[S] = []
    batch_bytes = 0
    for op in ops:
        size = len(getattr(op, "body", None) or b"")
        if batch and (batch_bytes + size > budget.bytes or len(batch) >= max(1, budget.ops - reserve)):
            yield batch
            batch, batch_bytes = [], 0
        batch.append(op)
        batch_bytes += size
    if batch:
        yield batch
