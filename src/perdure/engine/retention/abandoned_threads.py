"""Removes what is left of threads that never came to be: killed imports, moves, copies and first writes.

An arrival is given up once its claim is older than a lease. Chunks that no claim, no head and no other record
belongs to are left by a writer that died, or that is refused with its next commit: its claim is gone, or the
generation under which it stores them. So is a generation alone: a first write stores it before its chunks.
"""

from __future__ import annotations

from perdure.engine.retention.expiry import ThreadAtRest
from perdure.engine.threads import arrival_leftovers, transfer_claim
from perdure.engine.transact import Budget
from perdure.model.ops import Check, Commit, Committed, Delete, Drop, Expect, Fetch, Put, Range
from perdure.model.program import Program, ask
from perdure.model.record_versions import successor
from perdure.model.records import (
    BLOB,
    CHECKPOINT,
    CHUNK,
    DOCUMENT,
    EPOCH,
    GC,
    HEAD,
    ITEM,
    LANE,
    OF_THREAD,
    PACK,
    RUN,
    SEAL,
    TAG,
    WRITE,
    Partition,
)
from perdure.model.runs.queue import IN, LATER, OUT, WAITS

_NOTHING_ELSE = (
    Check(EPOCH, (), Expect.ABSENT),
    Check(LANE, (IN,), Expect.ABSENT),
    Check(LANE, (OUT,), Expect.ABSENT),
    Check(LANE, (LATER,), Expect.ABSENT),
    Check(LANE, (WAITS,), Expect.ABSENT),
    Check(DOCUMENT, OF_THREAD, Expect.ABSENT),
)
_ROWS = (CHECKPOINT, WRITE, TAG, HEAD, DOCUMENT, RUN, LANE, EPOCH, ITEM)


def is_arriving(thread: ThreadAtRest) -> bool:
    """Return True if a name is claimed for a thread that has not arrived."""
    return thread.claim is not None and not thread.has_head


def is_unfinished(partition: Partition, thread: ThreadAtRest, now: int) -> Program[bool]:
    """Return True if a name holds only what a dead writer left there.

    Args:
        partition: the name.
        thread: what was read of it.
        now: time of the database in microseconds.
    """
    if thread.has_head:
        return False
    if thread.claim is not None:
        return transfer_claim.claimed_at(thread.claim) + transfer_claim.LEASE_US <= now
    has_chunks, generation, has_rows = yield from _look(partition)
    return (has_chunks or generation > 0) and not has_rows


def remove_unfinished(partition: Partition, thread: ThreadAtRest, now: int, budget: Budget) -> Program[bool]:
    """Remove what ``is_unfinished`` found; return False if another writer came to the name meanwhile.

    Messages, documents and runs of the name stay.

    Args:
        partition: the name.
        thread: what was read of it.
        now: time of the database in microseconds.
        budget: the limits of one commit.
    """
    claim = thread.claim
    if claim is None:
        return (yield from _remove_first_write(partition, now))
    version = successor(claim.version, "sweep", now)
    mine = transfer_claim.make_claim(version, now, claim.version)
    outcome = yield from ask(Commit(partition, (*transfer_claim.NOTHING, mine)))
    if not isinstance(outcome, Committed):
        return False
    if not (yield from arrival_leftovers.discard(partition, version, budget)):
        return False
    checks = [op for op in transfer_claim.checks(version) if isinstance(op, Check)]
    outcome = yield from ask(Drop(partition, (*checks, *_NOTHING_ELSE)))
    if not isinstance(outcome, Committed):
        # Something else is stored under this name: only the claim goes.
        outcome = yield from ask(
            Commit(partition, (*transfer_claim.NOTHING, transfer_claim.release(version)))
        )
    return isinstance(outcome, Committed)


def _remove_first_write(partition: Partition, now: int) -> Program[bool]:
    """Remove chunks and a generation that nothing belongs to.

    Some writes, such as a task's, change no record that a removal could check. So the generation goes first:
    a writer that has seen it is refused from then on, one that has not stores another. What was stored before
    that shows when the name is read again; then the name gets a generation again, and is left as it is.
    """
    checks = (
        Check(HEAD, ("",), Expect.ABSENT),
        Check(SEAL, transfer_claim.CLAIM, Expect.ABSENT),
        *_NOTHING_ELSE,
    )
    _, generation, _ = yield from _look(partition)
    if generation:
        outcome = yield from ask(Commit(partition, (Delete(GC, (), generation), *checks)))
        if not isinstance(outcome, Committed):
            return False
    if (yield from _look(partition))[2]:
        if generation:
            born = Put(GC, (), expect=Expect.ABSENT, version=successor(generation, "sweep", now))
            yield from ask(Commit(partition, (born, transfer_claim.UNCLAIMED)))
        return False
    outcome = yield from ask(Drop(partition, (Check(GC, (), Expect.ABSENT), *checks)))
    return isinstance(outcome, Committed)


def _look(partition: Partition) -> Program[tuple[bool, int, bool]]:
    """Return whether a name has chunks, its generation or 0, and whether it has any other rows."""
    kinds = (GC, CHUNK, BLOB, PACK, *_ROWS)
    generations, chunks, blobs, packs, *rows = yield from ask(
        Fetch(partition, tuple(Range(kind, limit=1, bodies=False) for kind in kinds))
    )
    return bool(chunks or blobs or packs), generations[0].version if generations else 0, any(rows)
