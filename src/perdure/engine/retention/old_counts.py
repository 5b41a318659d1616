"""Removal of counts of activity, and of samples of sizes, that are no longer kept.

A tenant may have no further runs, whose counts would remove its old ones. So a sweep removes them as well.
"""

from __future__ import annotations

from collections.abc import Mapping

from perdure.engine.transact import Budget, split_into_batches
from perdure.model.ops import Commit, Delete, Drop, Fetch, Range
from perdure.model.program import Program, ask
from perdure.model.records import DOCUMENT, SERVER, Partition

HOUR_US, DAY_US = 3_600_000_000, 86_400_000_000
MINUTES, HOURS, DAYS, SIZES = "minute", "hour", "day", "size"
"""Collections of documents: counts of activity by the length of their time, and samples of sizes."""
KEEP_US: Mapping[str, int] = {
    MINUTES: 2 * HOUR_US,
    HOURS: 26 * HOUR_US,
    DAYS: 32 * DAY_US,
    SIZES: 92 * DAY_US,
}
"""Time for which the documents of a collection are kept. Those of days are kept for longer than
a month, within which deleted users must be forgotten, so they name no user."""

ACTIVITY = "activity"
"""Name of the partition, in the space ``SERVER``, with the counts and samples of a tenant."""
_REMOVED_MAX = 90


def partition_of(tenant: str) -> Partition:
    """Return the partition with the counts of a tenant."""
    return Partition(tenant, ACTIVITY, SERVER)


def remove_old(tenant: str, now: int, limits: Budget) -> Program[bool]:
    """Remove the oldest documents of a tenant that are no longer kept, a limited number of each collection;
    return True if there may be more."""
    partition = partition_of(tenant)
    pages = (
        Range(DOCUMENT, (collection,), by="updated_at", limit=_REMOVED_MAX, bodies=False, verify=False)
        for collection in KEEP_US
    )
    found = yield from ask(Fetch(partition, tuple(pages)))
    old = [
        [Delete(DOCUMENT, each.key) for each in records if each.fields["updated_at"] < now - kept_us]
        for records, kept_us in zip(found, KEEP_US.values(), strict=True)
    ]
    for some in split_into_batches((op for ops in old for op in ops), limits):
        yield from ask(Commit(partition, tuple(some)))
    if sum(map(len, old)) == sum(map(len, found)):
        yield from ask(Drop(partition, if_empty=True))
    return any(len(ops) == _REMOVED_MAX for ops in old)
