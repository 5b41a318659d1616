"""Finds records across partitions by one global index, which follows the table within moments: a hint only.

Only records that can be searched for have an entry. The catalogue and the queues that are due are spread over
buckets. All buckets are queried concurrently, each for a range of its order, and the answers are merged.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from itertools import islice

from perdure.model.ops import Find, FindDue, FindExpired, FindRuns, FindThreads, IndexHit
from perdure.model.records import Partition
from perdure.storage.dynamodb import items
from perdure.storage.dynamodb.items import Item
from perdure.storage.dynamodb.reading import Reader, is_past

_INDEX: Item = {"IndexName": items.FIND, "ConsistentRead": False}
_PAGE = 250
"""The least number of entries that a request reads when only one tenant's are wanted."""


def find(reader: Reader, effect: Find) -> tuple[IndexHit, ...]:
    if isinstance(effect, FindThreads):
        return _find_threads(reader, effect)
    if isinstance(effect, FindRuns):
        return _find_runs(reader, effect)
    if isinstance(effect, FindDue):
        return _find_due(reader, effect)
    if isinstance(effect, FindExpired):
        # The service removes them itself.
        return ()
    raise TypeError(f"not a request to DynamoDB: {type(effect).__name__}")


def _find_runs(reader: Reader, effect: FindRuns) -> tuple[IndexHit, ...]:
    run_key = items.run_entry(effect.kind, effect.run_id)
    low, high = b"\x00", b"\xff"
    if effect.tenant is not None:
        low = high = items.encode_tenant(effect.tenant)
    rows = reader.query(run_key, low, high, limit=effect.limit, select=_INDEX, names=("g", "h"))
    wanted = (row for row in rows if effect.tenant in (None, items.partition_of(row).tenant))
    return tuple(
        IndexHit(items.partition_of(row), items.record_of(effect.kind, row))
        for row in islice(wanted, effect.limit)
    )


def _find_due(reader: Reader, effect: FindDue) -> tuple[IndexHit, ...]:
    """Find queue records. The entries of all tenants are in one order: for one tenant they are read page by
    page, from the start, until enough entries of this tenant are found."""
    kind = effect.kind
    low = b"\x00"
    if effect.since is not None:
        low = items.encode_due_from(effect.since)
    high = items.encode_due_until(effect.until)
    limit = effect.limit
    if effect.tenant is not None:
        limit = max(limit, _PAGE)

    def read_page(number: int) -> list[tuple[bytes, IndexHit]]:
        rows = reader.query(
            items.name_due_bucket(kind, number), low, high, limit=limit, select=_INDEX, names=("g", "h")
        )
        out = (
            (bytes(row["h"]["B"]), IndexHit(items.partition_of(row), items.due_of(kind, row))) for row in rows
        )
        wanted = (entry for entry in out if effect.tenant in (None, entry[1].partition.tenant))
        return list(islice(wanted, effect.limit))

    pages = reader.spread(read_page, range(items.BUCKETS))
    merged: Iterable[tuple[bytes, IndexHit]] = heapq.merge(*pages, key=lambda entry: entry[0])
    return tuple(hit for _, hit in islice(merged, effect.limit))


def _find_threads(reader: Reader, effect: FindThreads) -> tuple[IndexHit, ...]:
    prefix = items.encode_catalogue_order(effect.tenant, effect.prefix)
    edge = None
    if effect.after is not None:
        edge = items.encode_catalogue_order(effect.after.tenant, effect.after.thread)

    def catalogue_key(row: Item) -> bytes:
        listed = items.partition_of(row)
        return items.encode_catalogue_order(listed.tenant, listed.thread)

    def read_page(number: int) -> list[Partition]:
        rows = reader.query_between(
            items.name_catalogue_bucket(effect.space, number),
            prefix,
            edge,
            reverse=False,
            limit=effect.limit,
            select=_INDEX,
            full=catalogue_key,
            names=("g", "h"),
        )
        kept = (
            partition
            for row in rows
            if (partition := items.partition_of(row)).thread.startswith(effect.prefix)
            and is_past(catalogue_key(row), prefix, edge, False)
        )
        return list(islice(kept, effect.limit))

    pages = reader.spread(read_page, range(items.BUCKETS))
    merged: Iterable[Partition] = heapq.merge(
        *pages, key=lambda partition: (partition.tenant, partition.thread)
    )
    return tuple(IndexHit(partition) for partition in islice(merged, effect.limit))
