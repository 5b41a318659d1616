"""Removes what is left of threads that never came to be: killed imports, moves, copies and first writes.

An arrival is given up once its claim is older than a lease. Chunks that no claim, no head and no other record
belongs to are left by a writer that died, or that is refused with its next commit: its claim is gone, or the
generation under which it stores them.
"""

from __future__ import annotations

from perdure.engine import arrival_leftovers, transfer_claim
from perdure.engine.expiry import ThreadAtRest
from perdure.engine.transact import Budget
from perdure.model.ops import Check, Commit, Committed, Drop, Expect, Fetch, Get, Range
from perdure.model.program import Program, ask
from perdure.model.queue import IN, LATER, OUT
from perdure.model.records import (
    CHECKPOINT,
    CHUNK,
    DOCUMENT,
    EPOCH,
    GC,
    HEAD,
    ITEM,
    LANE,
    OF_THREAD,
    RUN,
    SEAL,
    TAG,
    WRITE,
    Partition,
    Record,
)
from perdure.model.versions import successor

_NOTHING_ELSE = (
    Check(EPOCH, (), Expect.ABSENT),
    Check(LANE, (IN,), Expect.ABSENT),
    Check(LANE, (OUT,), Expect.ABSENT),
    Check(LANE, (LATER,), Expect.ABSENT),
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
    chunks, *rows = yield from ask(
        Fetch(partition, tuple(Range(kind, limit=1, bodies=False) for kind in (CHUNK, *_ROWS)))
    )
    return bool(chunks) and not any(rows)


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
        return (yield from _drop_chunks(partition))
    version = successor(claim.version, "sweep", now)
    mine = transfer_claim.claiming(version, now, claim.version)
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


def _drop_chunks(partition: Partition) -> Program[bool]:
    (generations,) = yield from ask(Fetch(partition, (Get(GC, ()),)))
    checks = (
        _same(generations),
        Check(HEAD, ("",), Expect.ABSENT),
        Check(SEAL, transfer_claim.CLAIM, Expect.ABSENT),
        *_NOTHING_ELSE,
    )
    outcome = yield from ask(Drop(partition, checks))
    return isinstance(outcome, Committed)


def _same(generations: tuple[Record, ...]) -> Check:
    return Check(GC, (), generations[0].version if generations else Expect.ABSENT)
