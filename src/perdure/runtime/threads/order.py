"""Sort order of a tenant's threads, and paging without reading the skipped ones.

Where the database maintains a listing, a page of it is one index scan. Elsewhere (memory, Redis, DynamoDB)
every thread is read for every listing, 64 at a time; meanwhile a name, a status and its times are held in
memory for each.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, Literal, NamedTuple

from perdure.database.handle import DatabaseHandle
from perdure.model.ops import CopyCondition, FindListed, FindThreads, IndexHit, ListedThread
from perdure.model.program import ask
from perdure.model.records import INTERNAL, Partition
from perdure.model.runs.lifecycle import Status
from perdure.runtime.threads.rows import ThreadRow, load_row

SortBy = Literal["thread_id", "status", "created_at", "updated_at"]

UNSURE = "unsure"
"""Status in the listing of a thread whose records have to be read for its status."""

_FIRST_PAGE, _PAGE = 100, 1000
_SPAN = 1 << 13
"""Threads that a count passes over at a time, a power of two."""
AT_ONCE = 64
"""Threads that are read at the same time."""


class SortedThread(NamedTuple):
    """A thread's place in an order, its row if it had to be read for that, and the number of threads in the
    order up to it."""

    partition: Partition
    listed: ListedThread
    row: ThreadRow | None = None
    number: int = 0


class Order(NamedTuple):
    """Sort key and direction of a listing. The newest come first unless ``descending`` is false."""

    by: SortBy = "updated_at"
    descending: bool = True


async def list_places(
    database: DatabaseHandle,
    tenant: str,
    order: Order,
    status: Status | None = None,
    *,
    skip: int = 0,
    enough: int | None = None,
    copies: CopyCondition | None = None,
) -> AsyncIterator[list[SortedThread]]:
    """Yield the places of a tenant's threads in order, in groups.

    Args:
        database: the database.
        tenant: the tenant.
        order: the sort order.
        status: the status that a thread has to have, or None for any.
        skip: number of threads to leave out at the beginning.
        enough: number of places after which the caller is likely to stop.
        copies: condition on the threads' copies in the index. Threads whose copies do not meet it may be left
            out; only in an order by time do the numbers of places count them.
    """
    if database.has_listing and order.by in ("created_at", "updated_at"):
        async for page in _list(database, tenant, order, status, skip=skip, enough=enough, copies=copies):
            yield page
        return
    if database.has_listing and order.by == "thread_id" and copies is None:
        async for page in _list_by_name(database, tenant, order, status, enough):
            yield [place for place in page if place.number > skip]
        return
    if database.has_listing:
        # In the order of creation no thread moves: each that stays is found once, whatever is written.
        pages = _list(database, tenant, Order("created_at"), status, copies=copies)
        all_places = [place async for page in pages for place in page]
        if order.by == "status":
            all_places = await _read_unsure(database, all_places)
    else:
        all_places = [
            place async for place in _scan(database, tenant) if status in (None, place.listed.status)
        ]
    all_places.sort(key=_make_key("updated_at"), reverse=True)
    all_places.sort(key=_make_key(order.by), reverse=order.descending)
    yield [place._replace(number=number) for number, place in enumerate(all_places, 1)][skip:]


async def count(database: DatabaseHandle, tenant: str, status: Status | None = None) -> int:
    """Return the number of a tenant's threads with a status, or, if it is None, with any."""
    if not database.has_listing:
        return sum([len(page) async for page in list_places(database, tenant, Order(), status)])
    number = await _count_rows(database, FindListed(tenant, status=status or "", limit=1))
    if status is not None and status != "busy":
        number += len(await _find_unsure(database, tenant, Order(), status))
    return number


async def _count_rows(database: DatabaseHandle, find: FindListed) -> int:
    """Return the number of rows in the listing, reading only the last row of each long span."""
    number, span = 0, _SPAN
    while span:
        hits = await database.arun(ask(replace(find, skip=span - 1)))
        if hits and hits[0].listed is not None:
            number += span
            find = find.after(hits[0].listed)
        else:
            span //= 2
    return number


async def load_rows(database: DatabaseHandle, found: Sequence[SortedThread]) -> list[ThreadRow]:
    """Return the threads at these places as they are now."""
    out: list[ThreadRow] = []
    for start in range(0, len(found), AT_ONCE):
        looks = (database.arun(load_row(place.partition)) for place in found[start : start + AT_ONCE])
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
    *,
    skip: int = 0,
    enough: int | None = None,
    copies: CopyCondition | None = None,
) -> AsyncIterator[list[SortedThread]]:
    """Yield places from the listing. Threads whose status is unsure are read, and merged in order."""
    unsure = deque[SortedThread]()
    if status is not None and status != "busy":
        unsure.extend(await _find_unsure(database, tenant, order, status))
    if not unsure:
        pages = _iterate_pages(database, tenant, order, status or "", skip=skip, enough=enough, copies=copies)
        async for page in pages:
            yield page
        return
    # With places to merge in, each place has to be visited to count the skipped ones.
    sign = -1 if order.descending else 1
    key, passed = _make_key(order.by), 0
    async for page in _iterate_pages(database, tenant, order, status or "", enough=enough):
        merged: list[SortedThread] = []
        for place in page:
            while unsure and sign * key(unsure[0]) < sign * key(place):
                merged.append(unsure.popleft())
            merged.append(place)
        yield [place._replace(number=passed + n) for n, place in enumerate(merged, 1) if passed + n > skip]
        passed += len(merged)
    yield [place._replace(number=passed + n) for n, place in enumerate(unsure, 1) if passed + n > skip]


async def _find_unsure(
    database: DatabaseHandle, tenant: str, order: Order, status: Status
) -> list[SortedThread]:
    """Return the threads that the listing is unsure about, and that have the status."""
    pages = _iterate_pages(database, tenant, order, UNSURE)
    read = await _read(database, [place async for page in pages for place in page])
    return [place for place in read if place is not None and place.listed.status == status]


async def _iterate_pages(
    database: DatabaseHandle,
    tenant: str,
    order: Order,
    status: str,
    *,
    skip: int = 0,
    enough: int | None = None,
    copies: CopyCondition | None = None,
) -> AsyncIterator[list[SortedThread]]:
    if order.by == "created_at":
        by: Literal["updated_at", "created_at"] = "created_at"
    else:
        by = "updated_at"
    find = FindListed(
        tenant,
        status=status,
        by=by,
        reverse=order.descending,
        skip=skip,
        limit=min(enough or _FIRST_PAGE, _PAGE),
        copies=copies,
    )
    passed = skip
    seen: set[Partition] = set()
    while True:
        hits = await database.arun(ask(find))
        page = [
            SortedThread(hit.partition, hit.listed, number=passed + (hit.listed.number or number))
            for number, hit in enumerate(hits, 1)
            if hit.listed is not None
        ]
        # Threads with new activity move within the listing, and may come again on a later page.
        yield [place for place in page if place.partition not in seen]
        if not page or page[-1].number < passed + find.limit:
            return
        seen.update(place.partition for place in page)
        passed = page[-1].number
        find = replace(find.after(page[-1].listed), limit=_PAGE)


async def _list_by_name(
    database: DatabaseHandle, tenant: str, order: Order, status: Status | None, enough: int | None
) -> AsyncIterator[list[SortedThread]]:
    """Yield places in the order of the threads' names, which is that of the catalogue."""
    pages = _walk_catalogue(database, tenant, status, min(enough or _FIRST_PAGE, _PAGE))
    passed = 0
    if order.descending:
        all_places = [place async for page in pages for place in page][::-1]
        yield [place._replace(number=number) for number, place in enumerate(all_places, 1)]
        return
    async for page in pages:
        yield [place._replace(number=number) for number, place in enumerate(page, passed + 1)]
        passed += len(page)


async def _walk_catalogue(
    database: DatabaseHandle, tenant: str, status: Status | None, size: int
) -> AsyncIterator[list[SortedThread]]:
    find = FindThreads(tenant, limit=size)
    while True:
        hits = await database.arun(ask(find))
        page = [
            SortedThread(hit.partition, hit.listed)
            for hit in hits
            if hit.listed is not None and not hit.partition.thread.startswith(INTERNAL)
        ]
        if status is not None:
            page = [place for place in page if place.listed.status in (status, UNSURE)]
            page = [place for place in await _read_unsure(database, page) if place.listed.status == status]
        yield page
        if len(hits) < find.limit:
            return
        find = replace(find, after=hits[-1].partition, limit=_PAGE)


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
    for start in range(0, len(found), AT_ONCE):
        some = found[start : start + AT_ONCE]
        read = await asyncio.gather(*(database.arun(load_row(place.partition)) for place in some))
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


async def _read_unsure(database: DatabaseHandle, found: Sequence[SortedThread]) -> list[SortedThread]:
    """Return the places with the statuses of all threads, without threads that no longer exist."""
    doubtful = [place for place in found if place.listed.status == UNSURE]
    read_places = iter(await _read(database, doubtful))
    checked = (next(read_places) if place.listed.status == UNSURE else place for place in found)
    return [place for place in checked if place is not None]


def _make_key(by: SortBy) -> Callable[[SortedThread], Any]:
    if by == "thread_id":
        return lambda place: place.partition.thread
    read = attrgetter(by)
    return lambda place: read(place.listed)
