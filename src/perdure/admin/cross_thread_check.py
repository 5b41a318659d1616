"""Check of a database as a whole, beyond its threads."""

from __future__ import annotations

from perdure.database.asynchronous import Database
from perdure.database.base import handle_of
from perdure.database.blocking import SyncDatabase
from perdure.engine import removal
from perdure.errors import Corrupt
from perdure.model.records import SPACES


def examine(database: Database | SyncDatabase) -> list[str]:
    """Return what the backend's own check finds wrong with the database, the tenant's store and a server's
    records for it, in addition to ``fsck``; empty if the backend has no such check."""
    handle = handle_of(database)
    found = handle.examine(None)
    for space in SPACES[1:]:
        try:
            for partition in handle.run(removal.all_partitions(handle.tenant, space)):
                found += [f"{space} {partition.thread!r}: {s}" for s in handle.examine(partition)]
        except Corrupt as error:
            found.append(str(error))
    return found
