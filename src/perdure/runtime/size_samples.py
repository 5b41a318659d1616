"""Samples of how large a database is and how many threads a tenant has, one a day, for views of their growth.

They are stored beside the counts of runs (``runtime.activity``), by the first process that stores counts on a
day. So no run waits for a sample, and a tenant without work has none. Sizes that a backend cannot report
without reading everything are left out.
"""

from __future__ import annotations

from perdure.database.handle import DatabaseHandle
from perdure.engine import documents
from perdure.engine.retention.old_counts import DAY_US, SIZES
from perdure.model.bounded_cache import BoundedCache
from perdure.model.ops import Expect
from perdure.model.records import Partition
from perdure.runtime.threads.order import ThreadListing

_TENANTS_MAX = 10_000


async def measure(database: DatabaseHandle, tenant: str) -> dict[str, int]:
    """Return the ``bytes`` of the database with all tenants, and the number of a tenant's ``threads``, each
    if the backend can report it without reading everything."""
    found: dict[str, int] = {}
    if (size := await database.acount_bytes()) is not None:
        found["bytes"] = size
    if database.has_listing:
        found["threads"] = await ThreadListing(database, tenant).count_threads()
    return found


class SizeSamples:
    """Stores the samples that are due, from one process."""

    def __init__(self, database: DatabaseHandle) -> None:
        self._database = database
        self._stored: BoundedCache[str, int] = BoundedCache(_TENANTS_MAX)

    async def store(self, partition: Partition, now: int) -> None:
        """Store the sample of a tenant and a day, unless there is one.

        Args:
            partition: The tenant's place for samples.
            now: The current time in microseconds.
        """
        start = now - now % DAY_US
        if self._stored.get(partition.tenant) == start:
            return
        found = await self._database.arun(documents.get(partition, SIZES, str(start)))
        if found is None and (body := await measure(self._database, partition.tenant)):
            fresh = self._database.draw_version()
            await self._database.arun(
                documents.put(partition, SIZES, str(start), body, now, Expect.ABSENT, fresh=fresh)
            )
        self._stored[partition.tenant] = start
