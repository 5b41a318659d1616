"""Growth of a database and its threads: samples of past days (``runtime.size_samples``), and one of now."""

from __future__ import annotations

from typing import Any

from perdure.database.handle import DatabaseHandle
from perdure.engine import documents
from perdure.engine.retention.old_counts import DAY_US, KEEP_US, SIZES, partition_of
from perdure.model.ops import Now
from perdure.model.program import ask
from perdure.runtime.size_samples import measure

_MOST = KEEP_US[SIZES] // DAY_US


async def read(database: DatabaseHandle, tenant: str) -> dict[str, Any]:
    """Return the sizes of the last 92 days as JSON data; times are microseconds since 1970.

    Returns:
        ``now``, and ``samples``, the oldest first, the last one taken now: the time ``at`` which it
        was taken, the ``bytes`` of the database with all tenants, indexes and free space, and the number of
        the tenant's ``threads``. Both are ``None`` where the backend cannot report them without
        reading everything.
    """
    now = await database.arun(ask(Now()))
    stored = await database.arun(documents.list_newest(partition_of(tenant), SIZES, _MOST))
    # Left out: samples of the future, from before the clock was set back, and damaged ones (`perdure fsck`).
    samples = [
        {"at": each.updated_at, **each.body}
        for each in reversed(stored)
        if each.fault is None and now - KEEP_US[SIZES] <= each.updated_at <= now
    ]
    samples.append({"at": now, **await measure(database, tenant)})
    return {
        "now": now,
        "samples": [{name: each.get(name) for name in ("at", "bytes", "threads")} for each in samples],
    }
