"""Removes the remains of an arrival whose thread was never completed.

An arrival that was killed leaves its claim behind, with the rows that were stored so far. The thread that is
begun at that name takes the claim over and removes them, so that nothing of the source is mixed into it; an
arrival that still goes on is refused with its next commit.
"""

from __future__ import annotations

from perdure.engine.complete_reads import read_all
from perdure.engine.requests import read_record, try_commit
from perdure.engine.threads import transfer_claim
from perdure.engine.transact import Budget, split_into_batches
from perdure.model.ops import Delete, Expect, Now, Op, Range
from perdure.model.program import Program, ask
from perdure.model.records import (
    BLOB,
    CHECKPOINT,
    CHUNK,
    EFFECT,
    HEAD,
    PACK,
    RUN,
    SEAL,
    TAG,
    WRITE,
    Partition,
)

_LEFT = (CHECKPOINT, WRITE, TAG, HEAD, CHUNK, BLOB, PACK)


def discard(partition: Partition, version: int, budget: Budget) -> Program[bool]:
    """Remove the remains of an arrival at a name that the caller has claimed; return False if the claim is
    lost. Documents stay: a server may have noted a thread that has no checkpoint yet."""
    results, runs, *found = yield from read_all(
        partition, *(Range(kind, bodies=False) for kind in (EFFECT, RUN, *_LEFT))
    )
    claim_checks = transfer_claim.checks(version)
    # If there is a root head, another writer has begun a thread: the checks refuse the removal then.
    checked = {op[:2] for op in claim_checks}
    leftovers = [record for records in found for record in records]
    # A queue that is older than the arrival keeps the effects that its runs have recorded.
    run_ids = {run.key[0] for run in runs}
    kept = {result.key[1:] for result in results if result.key[0] in run_ids}
    leftovers += [result for result in results if result.key[1:] not in kept]
    ops: list[Op] = [Delete(r.kind, r.key) for r in leftovers if (r.kind, r.key) not in checked]
    for batch in split_into_batches(ops, budget, reserve=len(claim_checks)):
        if not (yield from try_commit(partition, (*claim_checks, *batch))):
            return False
    return True


def abandon(partition: Partition, version: int, budget: Budget) -> Program[None]:
    """Remove the records of an arrival that is refused, and its claim; nothing if the claim is lost. The
    arguments are those of ``clear``, with the number of the arrival's own claim."""
    if (yield from discard(partition, version, budget)):
        yield from try_commit(partition, (*transfer_claim.NOTHING, transfer_claim.release(version)))


def clear(partition: Partition, version: int, budget: Budget) -> Program[None]:
    """Free a name that has a claim, but no thread, from the remains of that arrival.

    If another writer claims the name or begins a thread there meanwhile, the rest is left to it.

    Args:
        partition: The name.
        version: A number that no other claim has.
        budget: The limits of one commit.
    """
    if not (yield from read_record(partition, SEAL, transfer_claim.CLAIM)):
        return
    if (yield from try_commit(partition, (yield from transfer_claim.claim(version)))):
        yield from abandon(partition, version, budget)


def withdraw(partition: Partition, version: int, budget: Budget) -> Program[None]:
    """Remove the records that an arrival stored after its claim was removed together with its name.

    Chunks are staged without a check, so some may have come after the removal. If another writer claims the
    name or has begun a thread there, nothing is removed: the next prune of that thread removes the chunks.

    Args:
        partition: The name.
        version: The number of the lost claim.
        budget: The limits of one commit.
    """
    again = transfer_claim.make_claim(version, (yield from ask(Now())), Expect.ABSENT)
    if (yield from try_commit(partition, (*transfer_claim.NOTHING, again))):
        yield from abandon(partition, version, budget)
