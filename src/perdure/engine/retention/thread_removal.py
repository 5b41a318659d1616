"""Executor for whole threads: removes one with all its records, unless it changed since it was read.

A task's write that is stored meanwhile must keep the thread, but changes no record that a removal could
check. It checks the thread's collection generation, though. So the removal deletes the generation first: a
write planned under it is refused from then on, and a write planned without one stores a new generation, which
refuses the removal. Writes stored before the generation was deleted are found when the writes are read again.
A thread without a generation can be read as before, and its next write gives it one, so nothing is lost if
the removal is cut short.

Records of a thread that was never completed, left by a killed import, move, copy or first write, are removed
in the same way. An arrival counts as dead once its claim is older than a lease. Chunks at a name with no
claim, no head and no other record come from a writer that died, or whose next commit is refused because its
claim, or the generation under which it stores chunks, is gone. A generation without any other record is left
by a first write that died, as a first write stores the generation before its chunks.

A thread's records in other partitions are removed with it: its entries in a server's index, one with a copy
of its metadata, and the crons that are bound to it, with the input of their runs. No commit can change them
and the thread together. They are read before the thread is removed, and only what was read is removed:
records of a thread that is created under the same name meanwhile stay.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from perdure.engine.complete_reads import read_all
from perdure.engine.queue import crons
from perdure.engine.requests import first_of
from perdure.engine.retention import expiring_threads
from perdure.engine.retention.thread_expiry import ExpiryFacts, read_expiry_facts
from perdure.engine.threads import arrival_leftovers, transfer_claim
from perdure.engine.transact import Budget
from perdure.model.heads import ROOT
from perdure.model.ops import Check, Commit, Committed, Delete, Drop, Expect, Fetch, Put, Range, Refused
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
    LISTED,
    PACK,
    RUN,
    TAG,
    WRITE,
    Key,
    Kind,
    Partition,
)

_HAS_HEAD = Check(HEAD, (ROOT,), Expect.PRESENT)
_CHUNKS = (CHUNK, BLOB, PACK)
_ROWS = (CHECKPOINT, WRITE, TAG, HEAD, DOCUMENT, RUN, LANE, EPOCH, ITEM)


def delete_thread(partition: Partition, checks: Sequence[Check] = ()) -> Program[bool]:
    """Remove a thread with all its records, and return True; False if a check does not hold. Those in other
    partitions go first: if the removal is interrupted then, the thread still exists, and is listed without
    the copy of its metadata."""
    yield from _remove_elsewhere(partition, *(yield from _find_elsewhere(partition)))
    return isinstance((yield from ask(Drop(partition, tuple(checks)))), Committed)


def remove_if_idle(partition: Partition, *, only_unused: bool = False) -> Program[bool]:
    """Remove a thread, with its records in other partitions, unless it is busy, or changed since it was read;
    return True if it was removed. With ``only_unused``, a thread that ever accepted a message is kept."""
    thread = yield from read_expiry_facts(partition)
    if thread.is_busy or (only_unused and thread.has_queues):
        return False
    collection = Check(GC, (), thread.generation or Expect.ABSENT)
    outcome = yield from remove_with_records_elsewhere(
        partition, ask(Drop(partition, (collection, *thread.checks)))
    )
    return isinstance(outcome, Committed)


def remove_expired(partition: Partition, thread: ExpiryFacts, *, is_replaced: bool = False) -> Program[bool]:
    """Remove an expired thread, unless it changed since it was read, or a task writes to it meanwhile; return
    True if it was removed. With ``is_replaced``, its records in other partitions stay for the thread that is
    created under its name now."""
    seen = yield from write_versions(partition)
    removal = remove_whole(partition, thread.generation, thread.checks, seen)
    if not is_replaced:
        removal = remove_with_records_elsewhere(partition, removal)
    return isinstance((yield from removal), Committed)


def is_unfinished(partition: Partition, thread: ExpiryFacts, now: int) -> Program[bool]:
    """Return True if a name holds only what a dead writer left there; ``now`` is the database's time in
    microseconds."""
    if thread.has_head:
        return False
    if thread.claim is not None:
        return transfer_claim.read_claim_time(thread.claim) + transfer_claim.LEASE_US <= now
    kinds = (*_ROWS, *_CHUNKS)
    found = yield from ask(Fetch(partition, tuple(Range(kind, limit=1, bodies=False) for kind in kinds)))
    has_chunks = any(found[len(_ROWS) :])
    return (has_chunks or thread.generation > 0) and not any(found[: len(_ROWS)])


def remove_unfinished(partition: Partition, thread: ExpiryFacts, now: int, budget: Budget) -> Program[bool]:
    """Remove what ``is_unfinished`` found; return False if another writer came to the name meanwhile.

    Messages, documents and runs of the name stay.
    """
    claim = thread.claim
    if claim is None:
        unclaimed = transfer_claim.UNCLAIMED
        removal = remove_whole(
            partition, thread.generation, (*thread.checks, unclaimed), (), kinds=_ROWS, there=unclaimed
        )
        return isinstance((yield from removal), Committed)
    version = successor(claim.version, "sweep", now)
    own_claim = transfer_claim.make_claim(version, now, claim.version)
    outcome = yield from ask(Commit(partition, (*transfer_claim.NOTHING, own_claim)))
    if not isinstance(outcome, Committed):
        return False
    if not (yield from arrival_leftovers.discard(partition, version, budget)):
        return False
    checks = (*transfer_claim.checks(version), Check(EPOCH, (), Expect.ABSENT), *transfer_claim.NO_QUEUES)
    outcome = yield from ask(Drop(partition, checks))
    if not isinstance(outcome, Committed):
        # Other records are stored under this name: only the claim is removed.
        outcome = yield from ask(
            Commit(partition, (*transfer_claim.NOTHING, transfer_claim.release(version)))
        )
    return isinstance(outcome, Committed)


def remove_whole(
    partition: Partition,
    generation: int,
    checks: Sequence[Check],
    seen: Collection[tuple[Key, int]],
    kinds: Collection[Kind] = (WRITE,),
    there: Check = _HAS_HEAD,
) -> Program[Committed | Refused]:
    """Remove a thread with all its records, unless it changed since it was read.

    Args:
        partition: the thread.
        generation: its collection generation as it was read, 0 without one.
        checks: what has to hold of its other records.
        seen: keys and versions of those records of ``kinds`` that may be removed with it.
        kinds: kinds of records that a writer may store without making ``checks`` fail.
        there: a check that fails if another process has removed the thread.

    Returns:
        ``Committed``, or ``Refused`` with the record because of which the thread is kept, unchanged.
    """
    if generation:
        begun = yield from ask(Commit(partition, (Delete(GC, (), generation), *checks)))
        if isinstance(begun, Refused):
            return begun
    outcome: Committed | Refused
    found = yield from read_all(partition, *(Range(kind, bodies=False) for kind in kinds))
    unseen = [each for records in found for each in records if (each.key, each.version) not in seen]
    if unseen:
        outcome = Refused(unseen[0].kind, unseen[0].key)
    else:
        outcome = yield from ask(Drop(partition, (Check(GC, (), Expect.ABSENT), *checks)))
    if generation and not isinstance(outcome, Committed):
        # Put the generation back. This is refused if a writer has stored a new one, or the thread was
        # deleted.
        restored = Put(GC, (), expect=Expect.ABSENT, version=successor(generation, "kept"))
        yield from ask(Commit(partition, (restored, there)))
    return outcome


def write_versions(partition: Partition) -> Program[set[tuple[Key, int]]]:
    """Return the keys and versions of the records of a thread's pending writes."""
    (writes,) = yield from read_all(partition, Range(WRITE, bodies=False))
    return {(each.key, each.version) for each in writes}


def remove_with_records_elsewhere(
    partition: Partition, removal: Program[Committed | Refused]
) -> Program[Committed | Refused]:
    """Run a program that removes a thread, and if it did, remove the thread's records in other partitions."""
    elsewhere = yield from _find_elsewhere(partition)
    outcome = yield from removal
    if isinstance(outcome, Committed):
        yield from _remove_elsewhere(partition, *elsewhere)
    return outcome


def _find_elsewhere(thread: Partition) -> Program[tuple[int | None, Sequence[str]]]:
    """Return the version of a thread's entry in the index, ``None`` without one, and the ids of its crons."""
    index, key = _locate_entry(thread)
    (found,) = yield from ask(Fetch(index, (Range(DOCUMENT, key, limit=1, bodies=False),)))
    entry = first_of(found)
    return entry and entry.version, (yield from crons.list_for_thread(thread))


def _remove_elsewhere(thread: Partition, entry: int | None, cron_ids: Sequence[str]) -> Program[None]:
    for cron_id in cron_ids:
        yield from crons.remove(crons.place(thread.tenant), cron_id)
    if entry is not None:
        index, key = _locate_entry(thread)
        expiring = expiring_threads.plan_removal(thread.thread)
        yield from ask(Commit(index, (Delete(DOCUMENT, key, entry), expiring)))


def _locate_entry(thread: Partition) -> tuple[Partition, tuple[str, str]]:
    return Partition(thread.tenant, *LISTED), (LISTED[0], thread.thread)
