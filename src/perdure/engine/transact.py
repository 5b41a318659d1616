"""Read, plan, commit, and again on conflict: the one loop behind every write."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from perdure.errors import Conflict, Contention, TooLarge
from perdure.model.ops import Check, Commit, Committed, Expect, Op, Put, Refused, Stage
from perdure.model.program import Program, ask
from perdure.model.records import CHUNK, GC, Partition

ATTEMPTS = 64
"""How often a commit is planned anew before it gives up with ``Contention``."""

V = TypeVar("V")
A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class Budget:
    """How much one commit may carry: operations, and bytes of bodies. The rest is staged before it."""

    ops: int
    bytes: int

    def holds(self, ops: Collection[Op]) -> bool:
        """Whether one commit may carry all of these."""
        return len(ops) <= self.ops and sum(len(op.body) for op in ops if isinstance(op, Put)) <= self.bytes


def chunk_puts(chunks: Mapping[bytes, bytes], generation: int) -> list[Put]:
    """The operations that store chunks under a collection generation."""
    fields = {"generation": generation}
    return [Put(CHUNK, (digest,), fields, body) for digest, body in chunks.items()]


def commit_with_chunks(
    partition: Partition, ops: Sequence[Op], chunks: Sequence[Put], budget: Budget
) -> Program[Committed | Refused]:
    """Commit, with the chunks inside when they fit; otherwise chunks first, root last."""
    if len(ops) > budget.ops:
        raise TooLarge(
            f"thread {partition.thread!r}: one write needs {len(ops)} operations, the backend takes "
            f"{budget.ops} at once; write fewer values in one step"
        )
    if budget.holds(whole := (*ops, *chunks)):
        outcome: Committed | Refused = yield Commit(partition, whole)
        return outcome
    # A thread without a generation is given one before anything is staged: a drop in between takes both, and
    # the commit is refused instead of referring to what is gone.
    born = next(
        (op for op in ops if isinstance(op, Put) and op.kind is GC and op.expect is Expect.ABSENT), None
    )
    if born is not None:
        begun: Committed | Refused = yield Commit(partition, (born,))
        if not isinstance(begun, Committed):
            return begun
        ops = [Check(GC, (), born.version) if op is born else op for op in ops]
    batch: list[Put] = []
    held = 0
    for put in chunks:
        if batch and (held + len(put.body) > budget.bytes or len(batch) == budget.ops):
            yield from ask(Stage(partition, tuple(batch)))
            batch, held = [], 0
        batch.append(put)
        held += len(put.body)
    if batch:
        yield from ask(Stage(partition, tuple(batch)))
    return (yield from ask(Commit(partition, tuple(ops))))


def confirmed(view: V | None, decide: Callable[[V], object]) -> V | None:
    """A remembered view, unless it shows a conflict: what was remembered may be over, so only a view that is
    read now may refuse a write."""
    if view is None:
        return None
    try:
        decide(view)
    except Conflict:
        return None
    return view


def retrying(
    partition: Partition,
    view: V | None,
    load: Callable[[], Program[V]],
    attempt: Callable[[V], Program[A | None]],
) -> Program[A]:
    """Run ``attempt`` on a view until it returns an answer; ``None`` means that the view was stale."""
    for _ in range(ATTEMPTS):
        if view is None:
            view = yield from load()
        answer = yield from attempt(view)
        if answer is not None:
            return answer
        view = None
    raise Contention(
        f"thread {partition.thread!r}: {ATTEMPTS} attempts to write lost to other writers; try again"
    )
