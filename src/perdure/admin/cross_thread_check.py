"""Check of a database as a whole, beyond its threads."""

from __future__ import annotations

from perdure.database.asynchronous import Database
from perdure.database.base import handle_of
from perdure.database.blocking import SyncDatabase
from perdure.engine.complete_reads import all_partitions
from perdure.errors import Corrupt
from perdure.model.records import SPACES


def examine(database: Database | SyncDatabase, *, all_tenants: bool = False) -> list[str]:
    """Return what the backend's own check finds wrong with the database, the tenant's store and a server's
    records for it, in addition to ``fsck``; empty if the backend has no such check.

    Args:
        database: The database.
        all_tenants: Examine the stores of all tenants, and a server's records for them.
    """
    handle = handle_of(database)
    tenant = None if all_tenants else handle.tenant
    found = handle.examine(None)
    for space in SPACES[1:]:
        try:
            for partition in handle.run(all_partitions(tenant, space)):
                whose = f"tenant {partition.tenant!r}: " if all_tenants else ""
                found += [f"{whose}{space} {partition.thread!r}: {s}" for s in handle.examine(partition)]
        except Corrupt as error:
            found.append(str(error))
    return found
