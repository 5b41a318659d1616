"""Sort order of a tenant's threads, and paging without reading the skipped ones.

Where the database maintains a listing, a page of it is one index scan. Elsewhere (memory, Redis, DynamoDB)
every thread is read for every listing, 64 at a time; meanwhile a name, a status and its times are held in
memory for each.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from operator import attrgetter
from typing import Any, Literal, NamedTuple

from perdure.database.handle import DatabaseHandle
from perdure.model.ops import FindListed, FindThreads, IndexHit, ListedThread
from perdure.model.program import ask
from perdure.model.records import INTERNAL, Partition
from perdure.model.runs.lifecycle import Status
from perdure.runtime.threads.rows import ThreadRow, look

SortBy = Literal["thread_id", "status", "created_at", "updated_at"]

UNSURE = "unsure"

_FIRST_PAGE, _PAGE = 100, 1000
AT_ONCE = 64
"""Threads that are read at the same time."""


class SortedThread(NamedTuple):
    """A thread's place in an order, and its row if it had to be read for that."""

    partition: Partition
    listed: ListedThread
    row: ThreadRow | None = None


class Order(NamedTuple):
    """Sort key and direction of a listing. The newest come first unless ``descending`` is false."""

    by: SortBy = "updated_at"
    descending: bool = True


async def places(
    database: DatabaseHandle,
    tenant: str,
    order: Order,
    status: Status | None = None,
    skip: int = 0,
    enough: int | None = None,
) -> AsyncIterator[SortedThread]:
    """Yield the places of a tenant's threads in order.

    Args:
        database: the database.
        tenant: the tenant.
        order: the sort order.
        status: the status that a thread has to have, or None for any.
        skip: number of threads to leave out at the beginning.
        enough: number of places after which the caller is likely to stop.
    """
    if not database.has_listing:
        every = sorted(
            [place async for place in _scan(database, tenant) if status in (None, place.listed.status)],
            key=_key(order.by),
            reverse=order.descending,
        )
        for place in every[skip:]:
            yield place
        return
    if order.by in ("thread_id", "status"):
        # In the order in which nothing moves: each thread that stays is found once, whatever is written.
        every = [place async for place in _list(database, tenant, Order("created_at"), status)]
        every.sort(key=_key("updated_at"), reverse=True)
        if order.by == "status":
            every = [place for place in await _read(database, every) if place is not None]
        for place in sorted(every, key=_key(order.by), reverse=order.descending)[skip:]:
            yield place
        return
    async for place in _list(database, tenant, order, status, skip, enough):
        yield place


async def count(database: DatabaseHandle, tenant: str, status: Status | None = None) -> int:
    """Return the number of a tenant's threads with a status, or, if it is None, with any."""
    if not database.has_listing:
        return len([place async for place in places(database, tenant, Order(), status)])
    number = await _size(database, tenant, status or "")
    if status is not None and status != "busy":
        doubtful = [place async for place in _pages(database, tenant, Order(), UNSURE, 0)]
        read = await _read(database, doubtful)
        number += sum(place is not None and place.listed.status == status for place in read)
    return number


async def _size(database: DatabaseHandle, tenant: str, status: str) -> int:
    """Return the number of rows in the listing, found by bisection over the offset."""

    async def has_more(skip: int) -> bool:
        return bool(await database.arun(ask(FindListed(tenant, status=status, skip=skip, limit=1))))

    low, high = 0, 1
    while await has_more(high - 1):
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if await has_more(middle - 1) else (low, middle)
    return low


async def rows(database: DatabaseHandle, found: Sequence[SortedThread]) -> list[ThreadRow]:
    """Return the threads at these places as they are now."""
    out: list[ThreadRow] = []
    for at in range(0, len(found), AT_ONCE):
        looks = (database.arun(look(place.partition)) for place in found[at : at + AT_ONCE])
        out += [row for row in await asyncio.gather(*looks) if row is not None]
    return out


def sort_rows(found: Sequence[ThreadRow], order: Order) -> list[ThreadRow]:
    """Return rows that were requested by name, in order."""
    return sorted(found, key=attrgetter(order.by), reverse=order.descending)


async def _list(
    database: DatabaseHandle,
    tenant: str,
    order: Order,
    status: Status | None,
    skip: int = 0,
    enough: int | None = None,
) -> AsyncIterator[SortedThread]:
    """Yield places from the listing. Threads whose status is unsure are read, and merged in order."""
    unsure: list[SortedThread] = []
    if status is not None and status != "busy":
        doubtful = [place async for place in _pages(database, tenant, order, UNSURE, 0)]
        unsure = [
            place
            for place in await _read(database, doubtful)
            if place is not None and place.listed.status == status
        ]
    # With places to merge in, each place has to be visited to count the skipped ones.
    below = 0 if unsure else skip
    passed = below
    sign = -1 if order.descending else 1
    by = _key(order.by)
    async for place in _pages(database, tenant, order, status or "", below, enough):
        while unsure and sign * by(unsure[0]) < sign * by(place):
            if passed >= skip:
                yield unsure[0]
            passed += 1
            unsure.pop(0)
        if passed >= skip:
            yield place
        passed += 1
    for place in unsure[max(0, skip - passed) :]:
        yield place


async def _pages(
    database: DatabaseHandle, tenant: str, order: Order, status: str, skip: int, enough: int | None = None
) -> AsyncIterator[SortedThread]:
    by: Literal["updated_at", "created_at"] = "created_at" if order.by == "created_at" else "updated_at"
    size = min(enough or _FIRST_PAGE, _PAGE)
    first, back = skip, 1
    seen: dict[Partition, int] = {}
    while True:
        find = FindListed(tenant, status=status, by=by, reverse=order.descending, skip=skip, limit=size)
        hits = await database.arun(ask(find))
        page = [SortedThread(found.partition, found.listed) for found in hits if found.listed is not None]
        if skip > first and not (page and seen.get(page[0].partition) == getattr(page[0].listed, by)):
            # Threads before this page were removed, or moved behind it, so that others have moved up.
            skip, back = max(first, skip - back), back * 2
            continue
        for place in page:
            # Threads with new activity move within the listing between pages.
            if place.partition not in seen:
                yield place
            seen[place.partition] = getattr(place.listed, by)
        if len(hits) < size:
            return
        # The next page begins with the last thread of this one, if none has moved.
        skip, back, size = skip + len(hits) - 1, 1, _PAGE


async def _scan(database: DatabaseHandle, tenant: str) -> AsyncIterator[SortedThread]:
    after: Partition | None = None
    page: tuple[IndexHit, ...] = ()
    while after is None or len(page) == _PAGE:
        page = await database.arun(ask(FindThreads(tenant, after=after, limit=_PAGE)))
        if not page:
            return
        after = page[-1].partition
        for place in await _read(
            database,
            [
                SortedThread(f.partition, ListedThread(0, 0, UNSURE))
                for f in page
                if not f.partition.thread.startswith(INTERNAL)
            ],
        ):
            if place is not None:
                yield place._replace(row=None)


async def _read(database: DatabaseHandle, found: Sequence[SortedThread]) -> list[SortedThread | None]:
    """Return the same places with rows, and times and statuses read from them; None for threads that no
    longer exist."""
    out: list[SortedThread | None] = []
    for at in range(0, len(found), AT_ONCE):
        some = found[at : at + AT_ONCE]
        read = await asyncio.gather(*(database.arun(look(place.partition)) for place in some))
        out += [
            None
            if row is None
            else SortedThread(
                place.partition,
                ListedThread(
                    place.listed.created_at or row.created_at,
                    place.listed.updated_at or row.updated_at,
                    row.status,
                ),
                row,
            )
            for place, row in zip(some, read, strict=True)
        ]
    return out


def _key(by: SortBy) -> Callable[[SortedThread], Any]:
    if by == "thread_id":
        return lambda place: place.partition.thread
    read = attrgetter(by)
    return lambda place: read(place.listed)
