"""What side effects came to: noted under the epoch of their run, and read by its next attempt."""

from __future__ import annotations

from perdure.errors import Fenced
from perdure.model.ops import Check, Commit, Committed, Expect, Fetch, Get, Put
from perdure.model.program import Program, ask
from perdure.model.records import EFFECT, EPOCH, Partition


def recall(partition: Partition, run_id: str, name: str, number: int) -> Program[bytes | None]:
    """What an effect of this run came to, if it has happened."""
    (found,) = yield from ask(Fetch(partition, (Get(EFFECT, (run_id, name, number)),)))
    return found[0].body if found else None


def note(
    partition: Partition, run_id: str, name: str, number: int, body: bytes, epoch: int
) -> Program[bytes]:
    """Remember what an effect came to; what is remembered of it, which is the first that was noted.
    ``Fenced`` when the run is not this holder's any more."""
    put = Put(EFFECT, (run_id, name, number), body=body, expect=Expect.ABSENT)
    outcome = yield from ask(Commit(partition, (Check(EPOCH, (), epoch), put)))
    if isinstance(outcome, Committed):
        return body
    if outcome.kind is EFFECT:
        stored = yield from recall(partition, run_id, name, number)
        if stored is not None:
            return stored
    raise Fenced(
        f"thread {partition.thread!r}: run {run_id!r} is not held under epoch {epoch} any more; what its "
        "side effect came to was not noted, and its next attempt repeats it under the same key"
    )
