"""Sort order of a tenant's threads, and paging without reading the skipped ones.

Where the database maintains a listing, a page of it is one index scan. Elsewhere (memory, Redis, DynamoDB)
every thread is read for every listing, 64 at a time; meanwhile a name, a status and its times are held in
memory for each.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, Literal, NamedTuple

from perdure.database.handle import DatabaseHandle
from perdure.model.ops import CopyCondition, FindListed, FindThreads, ListedThread
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


class ThreadListing(NamedTuple):
    """A tenant's threads in an order.

    Attributes:
        database: the database.
        tenant: the tenant.
        order: the sort order.
        status: the status that a thread has to have, or None for any.
        enough: number of places after which the caller is likely to stop.
        copies: condition on the threads' copies in the index. Threads whose copies do not meet it may be left
            out; only in an order by time do the numbers of places count them.
    """

    database: DatabaseHandle
    tenant: str
    order: Order = Order()
    status: Status | None = None
    enough: int | None = None
    copies: CopyCondition | None = None

    async def list_places(self, skip: int = 0) -> AsyncIterator[list[SortedThread]]:
        """Yield the places of the threads in order, in groups, without the first ``skip``."""
        by = self.order.by
        if self.database.has_listing and by in ("created_at", "updated_at"):
            async for page in self._list(skip):
                yield page
            return
        if self.database.has_listing and by == "thread_id" and self.copies is None:
            async for page in self._list_by_name():
                yield [place for place in page if place.number > skip]
            return
        if self.database.has_listing:
            # In the order of creation no thread moves: each that stays is found once, whatever is written.
            pages = self._replace(order=Order("created_at"), enough=None)._list()
            all_places = [place async for page in pages for place in page]
            if by == "status":
                all_places = await _read_unsure(self.database, all_places)
        else:
            all_places = [place async for place in self._scan() if self.status in (None, place.listed.status)]
        all_places.sort(key=_make_key("updated_at"), reverse=True)
        all_places.sort(key=_make_key(by), reverse=self.order.descending)
        yield _number(all_places, 0)[skip:]

    async def count_threads(self) -> int:
        """Return the number of threads."""
        if not self.database.has_listing:
            return sum([len(page) async for page in self.list_places()])
        rows = FindListed(self.tenant, status=self.status or "", limit=1)
        return await _count_rows(self.database, rows) + len(await self._find_unsure())

    async def _list(self, skip: int = 0) -> AsyncIterator[list[SortedThread]]:
        """Yield places from the listing. Threads whose status is unsure are read, and merged in order."""
        unsure = deque(await self._find_unsure())
        if not unsure:
            async for page in self._list_pages(self.status or "", skip):
                yield page
            return
        # With places to merge in, each place has to be visited to count the skipped ones.
        sign = -1 if self.order.descending else 1
        key, passed = _make_key(self.order.by), 0
        async for page in self._replace(copies=None)._list_pages(self.status or ""):
            merged: list[SortedThread] = []
            for place in page:
                while unsure and sign * key(unsure[0]) < sign * key(place):
                    merged.append(unsure.popleft())
                merged.append(place)
            yield [place for place in _number(merged, passed) if place.number > skip]
            passed += len(merged)
        yield [place for place in _number(unsure, passed) if place.number > skip]

    async def _find_unsure(self) -> list[SortedThread]:
        """Return the threads that the listing is unsure about, and that have the status."""
        if self.status in (None, "busy"):
            return []
        pages = self._replace(enough=None, copies=None)._list_pages(UNSURE)
        read = await _read(self.database, [place async for page in pages for place in page])
        return [place for place in read if place is not None and place.listed.status == self.status]

    async def _list_pages(self, status: str, skip: int = 0) -> AsyncIterator[list[SortedThread]]:
        by: Literal["updated_at", "created_at"] = "updated_at"
        if self.order.by == "created_at":
            by = "created_at"
        find = FindListed(
            self.tenant,
            status=status,
            by=by,
            reverse=self.order.descending,
            skip=skip,
            limit=min(self.enough or _FIRST_PAGE, _PAGE),
            copies=self.copies,
        )
        passed = skip
        seen: set[Partition] = set()
        while True:
            hits = await self.database.arun(ask(find))
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

    async def _list_by_name(self) -> AsyncIterator[list[SortedThread]]:
        """Yield places in the order of the threads' names, which is that of the catalogue."""
        pages = self._walk_catalogue()
        passed = 0
        if self.order.descending:
            yield _number([place async for page in pages for place in page][::-1], 0)
            return
        async for page in pages:
            yield _number(page, passed)
            passed += len(page)

    async def _walk_catalogue(self) -> AsyncIterator[list[SortedThread]]:
        find = FindThreads(self.tenant, limit=min(self.enough or _FIRST_PAGE, _PAGE))
        while True:
            hits = await self.database.arun(ask(find))
            page = [
                SortedThread(hit.partition, hit.listed)
                for hit in hits
                if hit.listed is not None and not hit.partition.thread.startswith(INTERNAL)
            ]
            if self.status is not None:
                page = [place for place in page if place.listed.status in (self.status, UNSURE)]
                page = await _read_unsure(self.database, page)
                page = [place for place in page if place.listed.status == self.status]
            yield page
            if len(hits) < find.limit:
                return
            find = replace(find, after=hits[-1].partition, limit=_PAGE)

    async def _scan(self) -> AsyncIterator[SortedThread]:
        find = FindThreads(self.tenant, limit=_PAGE)
        while True:
            hits = await self.database.arun(ask(find))
            page = [
                SortedThread(hit.partition, ListedThread(0, 0, UNSURE))
                for hit in hits
                if not hit.partition.thread.startswith(INTERNAL)
            ]
            for place in await _read(self.database, page):
                if place is not None:
                    yield place._replace(row=None)
            if len(hits) < _PAGE:
                return
            find = replace(find, after=hits[-1].partition)


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


async def load_rows(database: DatabaseHandle, threads: Sequence[Partition]) -> list[ThreadRow | None]:
    """Return threads as they are now, None for those that do not exist."""
    rows: list[ThreadRow | None] = []
    for start in range(0, len(threads), AT_ONCE):
        rows += await asyncio.gather(
            *(database.arun(load_row(thread)) for thread in threads[start : start + AT_ONCE])
        )
    return rows


def sort_rows(found: Iterable[ThreadRow], order: Order) -> list[ThreadRow]:
    """Return rows that were requested by name, in order."""
    return sorted(found, key=attrgetter(order.by), reverse=order.descending)


async def _read(database: DatabaseHandle, found: Sequence[SortedThread]) -> list[SortedThread | None]:
    """Return the same places with rows, and times and statuses read from them; None for threads that no
    longer exist."""
    rows = await load_rows(database, [place.partition for place in found])
    return list(map(_add_row, found, rows))


def _add_row(place: SortedThread, row: ThreadRow | None) -> SortedThread | None:
    if row is None:
        return None
    created_at = place.listed.created_at or row.created_at
    updated_at = place.listed.updated_at or row.updated_at
    return SortedThread(place.partition, ListedThread(created_at, updated_at, row.status), row)


async def _read_unsure(database: DatabaseHandle, found: Sequence[SortedThread]) -> list[SortedThread]:
    """Return the places with the statuses of all threads, without threads that no longer exist."""
    doubtful = [place for place in found if place.listed.status == UNSURE]
    read_places = iter(await _read(database, doubtful))
    checked = (next(read_places) if place.listed.status == UNSURE else place for place in found)
    return [place for place in checked if place is not None]


def _number(found: Iterable[SortedThread], passed: int) -> list[SortedThread]:
    """Return places with their numbers, after those that were passed."""
    return [place._replace(number=number) for number, place in enumerate(found, passed + 1)]


def _make_key(by: SortBy) -> Callable[[SortedThread], Any]:
    if by == "thread_id":
        return lambda place: place.partition.thread
    read = attrgetter(by)
    return lambda place: read(place.listed)
