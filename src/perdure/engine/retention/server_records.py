"""Removal of records of tenants and chats outside of threads, when no work is left there.

What a tenant or a chat stores is removed by its own work only while there is some. A user's tenant without
further runs, or a chat without threads, is reached by a sweep alone. Each place of a server's data is one of
these:

- swept here: the index of threads, crons, counts of activity, and sessions of chats,
- due in a queue record: crons and the states of limits, which workers visit,
- limited in number, or removed by its owner: assistants, amounts of limits, the log of actions, the
  leases of bots, and crons that are bound to no thread.
"""

from __future__ import annotations

from perdure.engine.complete_reads import list_all_partitions
from perdure.engine.retention import old_counts, orphaned_records
from perdure.engine.transact import Budget
from perdure.model.ops import Check, Drop, Fetch, FindThreads, Range
from perdure.model.program import Program, ask
from perdure.model.records import CHAT_SESSIONS, DOCUMENT, LISTED, SERVER, Partition
from perdure.model.runs.queue import CRONS

SESSIONS_KEPT_US = 7 * old_counts.DAY_US
"""Time for which the sessions of a chat without threads are kept, so that a message of before a ``/new`` that
the provider delivers again is recognised."""


def list_places(tenant: str | None) -> Program[list[Partition]]:
    """Return the partitions, of one tenant or of all, from which ``remove_from`` removes something."""
    found = yield from list_all_partitions(tenant, SERVER)
    names = (LISTED[0], CRONS, old_counts.ACTIVITY)
    return [at for at in found if at.thread in names or at.thread.startswith(CHAT_SESSIONS)]


def remove_from(place: Partition, after: str, now: int, limits: Budget) -> Program[str | None]:
    """Remove from one of these partitions what is left of threads that do not exist, or is no longer kept.

    Args:
        place: the partition.
        after: what the call before returned, empty for the first one.
        now: time of the database in microseconds.
        limits: limits of a commit.

    Returns:
        Where to go on, ``None`` at the end.
    """
    if place.thread == LISTED[0]:
        return (yield from orphaned_records.remove_copies(place.tenant, after, now, limits))
    if place.thread == CRONS:
        yield from orphaned_records.remove_crons(place.tenant)
    elif place.thread == old_counts.ACTIVITY:
        if (yield from old_counts.remove_old(place.tenant, now, limits)):
            return after
    else:
        yield from _remove_sessions(place, now)
    return None


def _remove_sessions(place: Partition, now: int) -> Program[None]:
    """Remove the sessions of a chat that has no threads, unless they were changed a short time ago. A
    conversation that begins meanwhile is continued as one without earlier sessions."""
    (found,) = yield from ask(Fetch(place, (Range(DOCUMENT, bodies=False, verify=False),)))
    if any(each.fields["updated_at"] + SESSIONS_KEPT_US > now for each in found):
        return
    threads = FindThreads(place.tenant, prefix=place.thread.removeprefix(CHAT_SESSIONS), limit=1)
    if not (yield from ask(threads)):
        checks = tuple(Check(DOCUMENT, each.key, each.version) for each in found)
        yield from ask(Drop(place, checks, if_empty=not checks))
