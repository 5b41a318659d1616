"""Removal of what is left of threads that do not exist any more: entries in a server's index, and crons.

A thread is gone without them where the database itself removes it (Redis with ``ttl``), and where a process
is killed while it removes one. They are read page by page beside the list of threads, and a thread that is
not in the list is read before anything of it is removed. The copy of a thread's metadata is stored a moment
before the thread, so a young copy stays. Only the copy that was read is removed: that of a thread which is
created under the same name meanwhile stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from perdure.engine.complete_reads import PAGE
from perdure.engine.queue import crons
from perdure.engine.retention import expiring_threads
from perdure.engine.transact import Budget, split_into_batches
from perdure.errors import Corrupt
from perdure.model.heads import ROOT
from perdure.model.ops import Commit, Committed, Delete, Fetch, FindThreads, Get, Range
from perdure.model.program import Program, ask
from perdure.model.records import DOCUMENT, HEAD, LANE, LISTED, OF_THREAD, Partition, Record
from perdure.model.runs.queue import IN

YOUNG_US = 60_000_000
"""Age from which a copy without a thread counts as left behind. If a creation takes longer, its thread is
read in full, as one without a copy."""

_COLLECTION = LISTED[0]
_DOCUMENT = Get(DOCUMENT, OF_THREAD)


def remove_copies(tenant: str, after: str, now: int, limits: Budget) -> Program[str | None]:
    """Remove the entries in a tenant's index, on one page, of threads that do not exist.

    Args:
        tenant: the tenant.
        after: the last name of the page before, empty for the first page.
        now: time of the database in microseconds.
        limits: limits of a commit.

    Returns:
        The last name of the page, ``None`` if it is the last page.
    """
    index = _locate_index(tenant)
    page = Range(DOCUMENT, (_COLLECTION,), limit=PAGE, bodies=False, verify=False)
    threads = FindThreads(tenant, limit=PAGE)
    if after:
        page = page._replace(after=(_COLLECTION, after))
        threads = replace(threads, after=Partition(tenant, after))
    (copies,) = yield from ask(Fetch(index, (page,)))
    if not copies:
        return None
    # Read after the copies, so that the list has every thread whose creation is complete.
    hits = yield from ask(threads)
    last: str = copies[-1].key[1]
    is_last = len(copies) < PAGE
    if len(hits) == PAGE and hits[-1].partition.thread < last:
        last, is_last = hits[-1].partition.thread, False
    names = {hit.partition.thread for hit in hits}
    orphans: list[Record] = []
    for copy in copies:
        name = copy.key[1]
        if name in names or name > last or copy.fields["updated_at"] + YOUNG_US > now:
            continue
        if not (yield from _exists(Partition(tenant, name), (_DOCUMENT,))):
            orphans.append(copy)
    # The two entries of a thread are removed together.
    for some in split_into_batches(orphans, Budget(limits.ops // 2, limits.bytes)):
        yield from _remove(index, some)
    if is_last:
        return None
    return last


def remove_crons(tenant: str) -> Program[None]:
    """Remove a tenant's crons that are bound to threads that do not exist."""
    bound = yield from crons.list_bound(tenant)
    signs = (_DOCUMENT, Get(HEAD, (ROOT,)), Get(LANE, (IN,)))
    for cron_id, name in bound:
        if not (yield from _exists(Partition(tenant, name), signs)):
            yield from crons.remove(crons.place(tenant), cron_id)


def _exists(thread: Partition, signs: Sequence[Get]) -> Program[bool]:
    """Return True if a thread has one of these records, readable or not."""
    try:
        found = yield from ask(Fetch(thread, tuple(signs)))
    except Corrupt:
        return True
    return any(found)


def _remove(index: Partition, copies: Sequence[Record]) -> Program[None]:
    """Remove copies with the other entries of their threads, except those that were written since."""
    for _ in range(len(copies)):
        removals = [
            removal
            for copy in copies
            for removal in (
                Delete(DOCUMENT, copy.key, copy.version),
                expiring_threads.plan_removal(copy.key[1]),
            )
        ]
        outcome = yield from ask(Commit(index, tuple(removals)))
        if isinstance(outcome, Committed):
            return
        copies = [copy for copy in copies if copy.key != outcome.key]


def _locate_index(tenant: str) -> Partition:
    return Partition(tenant, *LISTED)
