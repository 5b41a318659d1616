"""Journal of side effects: results, stored under the epoch of their run and read by its next attempt."""

from __future__ import annotations

from perdure.errors import Fenced
from perdure.model.ops import Check, Commit, Committed, Expect, Fetch, Get, Put
from perdure.model.program import Program, ask
from perdure.model.records import EFFECT, EPOCH, Partition


def recall(partition: Partition, run_id: str, name: str, number: int) -> Program[bytes | None]:
    """Return the result of a run's effect, ``None`` if none is recorded."""
    (found,) = yield from ask(Fetch(partition, (Get(EFFECT, (run_id, name, number)),)))
    return found[0].body if found else None


def note(
    partition: Partition, run_id: str, name: str, number: int, body: bytes, epoch: int
) -> Program[bytes]:
    """Record the result of an effect.

    Args:
        name: name of the effect.
        number: its number among the run's effects of that name.
        epoch: lease under which the caller holds the run.

    Returns:
        The recorded result: the first one, if one was recorded before.

    Raises:
        Fenced: the caller does not hold the run any more.
    """
    put = Put(EFFECT, (run_id, name, number), body=body, expect=Expect.ABSENT)
    outcome = yield from ask(Commit(partition, (Check(EPOCH, (), epoch), put)))
    if isinstance(outcome, Committed):
        return body
    if outcome.kind is EFFECT:
        stored = yield from recall(partition, run_id, name, number)
        if stored is not None:
            return stored
    raise Fenced(
        f"thread {partition.thread!r}: run {run_id!r} is not held under epoch {epoch} any more; the result "
        "of its side effect was not recorded, and its next attempt repeats it under the same key"
    )
