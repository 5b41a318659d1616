"""Listing of everything that a database holds, by tenant."""

from __future__ import annotations

from perdure.database.asynchronous import Database
from perdure.database.base import handle_of
from perdure.database.blocking import SyncDatabase
from perdure.engine.complete_reads import all_partitions
from perdure.model.records import SPACES, THREADS, Partition


def partitions(database: Database | SyncDatabase, tenant: str | None) -> list[Partition]:
    """Return every thread of a tenant, or of all if ``None``, then every namespace of its store, then a
    server's records for it, then the histories of its sessions, in order."""
    handle = handle_of(database)
    return [partition for space in SPACES for partition in handle.run(all_partitions(tenant, space))]


def tenants(database: Database | SyncDatabase) -> dict[str, int]:
    """Return the tenants that have threads or store items, by name, each with its number of threads.

    The names of all partitions are read.
    """
    counts: dict[str, int] = {}
    for partition in partitions(database, None):
        counts[partition.tenant] = counts.get(partition.tenant, 0) + (partition.space == THREADS)
    return dict(sorted(counts.items()))
