"""A tenant's threads as its clients see them: metadata, order and search.

Metadata is stored in the thread itself, where a run is accepted in one commit that also checks that the
thread exists. A copy is stored in the tenant's index, newest first: a hint, which is checked against the
thread before it is returned.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from perdure.database.base import handle_of
from perdure.engine import documents, removal
from perdure.engine.documents import Document
from perdure.errors import NotFound
from perdure.model.ops import Check, Expect, ListedThread
from perdure.model.records import DOCUMENT, OF_THREAD, SERVER, Partition
from perdure.runtime import Runtime
from perdure.server.config import ThreadTtl
from perdure.server.thread_order import Order, SortedThread, count, places, rows, sort_rows
from perdure.server.thread_rows import EDITED, Status, ThreadRow, look, row_of

THERE = Check(DOCUMENT, OF_THREAD, Expect.PRESENT)
"""Condition that a thread is known to clients: a commit that carries it is refused once the thread is
deleted."""

_FIRST_BATCH, _BATCH = 32, 500


class ThreadIndex:
    """Creates, finds, changes and removes threads. ``ttl`` applies to threads that are created without
    one."""

    def __init__(self, runtime: Runtime, ttl: ThreadTtl | None = None) -> None:
        self._runtime = runtime
        self._usual = None if ttl is None else {"ttl": ttl.default_ttl, "strategy": ttl.strategy}
        self._database = handle_of(runtime.database)

    async def create(
        self,
        partition: Partition,
        metadata: Mapping[str, Any],
        ttl: Mapping[str, Any] | None = None,
    ) -> ThreadRow | None:
        """Create a thread.

        A thread that an application created without a server exists, and becomes known to clients by
        ``adopt``.

        Args:
            partition: the thread's partition.
            metadata: the thread's metadata.
            ttl: time to live, in minutes under "ttl"; by default that of the index.

        Returns:
            The thread, or None if it exists already.
        """
        if await self.look(partition) is not None:
            return None
        now = await self._runtime.now()
        body = {"metadata": dict(metadata), "created_at": now, "ttl": _ttl(ttl or self._usual, now)}
        await self._list(partition, body, now)
        fresh = self._database.fresh()
        made = await self._database.arun(
            documents.put(partition, *OF_THREAD, body, now, Expect.ABSENT, fresh)
        )
        return None if made is None else row_of(partition, made)

    async def look(self, partition: Partition) -> ThreadRow | None:
        """Return a thread as it is now, or None."""
        return await self._database.arun(look(partition))

    async def get(self, partition: Partition) -> ThreadRow:
        """Return a thread as ``look`` does. ``NotFound`` if it does not exist."""
        row = await self.look(partition)
        if row is None:
            raise missing(partition.thread)
        return row

    async def adopt(self, partition: Partition, row: ThreadRow) -> None:
        """Add a thread that an application created without a server to the index, unless it is there."""
        body = {"metadata": dict(row.metadata), "created_at": row.created_at, "ttl": row.ttl}
        now = await self._runtime.now()
        fresh = self._database.fresh()
        await self._database.arun(documents.put(partition, *OF_THREAD, body, now, Expect.ABSENT, fresh))
        await self._list(partition, body, now)

    async def change(
        self, partition: Partition, metadata: Mapping[str, Any], ttl: Mapping[str, Any] | None = None
    ) -> ThreadRow:
        """Merge into a thread's metadata, key by key, and return the thread.

        Args:
            partition: the thread's partition.
            metadata: the entries to add or replace.
            ttl: a new time to live, in minutes under "ttl".

        Raises:
            NotFound: there is no such thread.
        """
        await self._adopted(partition)
        now = await self._runtime.now()

        def merged(before: Document | None) -> Mapping[str, Any] | None:
            if before is None:
                return None
            body = {**before.body, "metadata": {**before.body["metadata"], **metadata}}
            return body if ttl is None else {**body, "ttl": _ttl(ttl, now)}

        program = documents.change(partition, *OF_THREAD, merged, now, self._database.fresh())
        changed = await self._database.arun(program)
        if changed is None:
            raise missing(partition.thread)
        await self._list(partition, changed.body, now)
        return await self.get(partition)

    async def edited(self, partition: Partition, run_id: str | None, *, goes_on: bool) -> None:
        """Record that a thread's state was edited.

        Args:
            partition: the thread's partition.
            run_id: the newest run at the time of the edit, if any.
            goes_on: the graph has steps left to execute.
        """

        now = await self._runtime.now()
        body = {"run_id": run_id, "goes_on": goes_on}
        fresh = self._database.fresh()
        await self._database.arun(documents.put(partition, *EDITED, body, now, Expect.ANY, fresh))
        found = await self._database.arun(documents.get(partition, *OF_THREAD))
        if found is not None:
            await self._list(partition, found.body, now)

    async def touched(self, partition: Partition) -> None:
        """Record an activity on a thread: it is listed first from now on, and its time to live starts
        again."""
        now = await self._runtime.now()
        found = await self._database.arun(documents.get(partition, *OF_THREAD))
        if found is not None:
            ttl = found.body.get("ttl")
            body = found.body if ttl is None else {**found.body, "ttl": _ttl(ttl, now)}
            fresh = self._database.fresh()
            await self._database.arun(documents.put(partition, *OF_THREAD, body, now, found.version, fresh))
            if ttl is not None:
                await self._list(partition, body, now)

    async def remove(self, partition: Partition) -> bool:
        """Remove a thread with everything in it, and return True if it existed. A run that is under way
        stores nothing more."""
        row = await self.look(partition)
        await self._runtime.delete(partition.thread, tenant=partition.tenant)
        await self._database.arun(documents.remove(_listing(partition.tenant), "threads", partition.thread))
        return row is not None

    async def remove_resting(self, partition: Partition, *, expired_at: int | None = None) -> bool:
        """Remove a thread without pending work, and return True if it was removed. With ``expired_at`` it
        is removed only if its time to live had expired by then. A message accepted meanwhile keeps the
        thread."""

        head, is_over = None, True
        if expired_at is not None:
            # The time to live of a thread without a document counts from its last checkpoint, this head.
            head = await self._database.arun(removal.latest(partition))
            row = await self.look(partition)
            # That is its host's time: where a clock was set, both have to say that the time is over.
            by_both = min(expired_at, time.time_ns() // 1000)
            is_over = row is not None and _is_over(self._usual_from(row.updated_at), by_both)

        def may_go(document: Document | None, latest: str | None) -> bool:
            if expired_at is None:
                return True
            if document is None:
                return is_over and latest == head
            return _is_over(document.body.get("ttl"), expired_at)

        listing = _listing(partition.tenant)
        entry = await self._database.arun(documents.get(listing, "threads", partition.thread))
        if not await self._runtime.remove_resting(partition.thread, may_go, tenant=partition.tenant):
            return False
        if entry is not None:
            # A thread of this name that was created since has an entry of another version.
            gone = documents.remove(listing, "threads", partition.thread, entry.version)
            await self._database.arun(gone)
        return True

    async def search(
        self,
        tenant: str,
        *,
        metadata: Mapping[str, Any] | None = None,
        ids: Sequence[str] | None = None,
        status: Status | None = None,
        sees: Callable[[Mapping[str, Any]], bool] | None = None,
        order: Order | None = None,
        skip: int = 0,
    ) -> AsyncIterator[ThreadRow]:
        """Yield the threads of a tenant, each as it is now; the ones with the latest activity first by
        default.

        Args:
            tenant: the tenant.
            metadata: JSON data that a thread's metadata has to contain.
            ids: ids of the threads to search in, or None for all.
            status: the status that a thread has to have, or None for any.
            sees: predicate over a thread's metadata.
            order: the sort order.
            skip: number of threads to leave out at the beginning.
        """

        def matches(held: Mapping[str, Any]) -> bool:
            return contains(held, metadata or {}) and (sees is None or sees(held))

        def is_asked_for(row: ThreadRow) -> bool:
            return status in (None, row.status) and matches(row.metadata)

        order = order or Order()
        if ids is not None:
            found = [
                SortedThread(Partition(tenant, name), ListedThread(0, 0, "")) for name in dict.fromkeys(ids)
            ]
            for row in sort_rows(await rows(self._database, found), order)[skip:]:
                if is_asked_for(row):
                    yield row
            return
        needs_metadata = bool(metadata) or sees is not None
        # Without a condition on metadata skipped threads need not be read.
        passed = 0 if needs_metadata else skip
        async for batch in _batches(places(self._database, tenant, order, status, passed)):
            wanted = batch
            if needs_metadata:
                entries = await self._entries(tenant, batch)
                wanted = [
                    place
                    for place in batch
                    if (entry := entries.get(place.partition.thread)) is None or matches(entry["metadata"])
                ]
            for row in await rows(self._database, wanted):
                if not is_asked_for(row):
                    continue
                if passed >= skip:
                    yield row
                else:
                    passed += 1

    async def count(
        self,
        tenant: str,
        *,
        metadata: Mapping[str, Any] | None = None,
        ids: Sequence[str] | None = None,
        status: Status | None = None,
        sees: Callable[[Mapping[str, Any]], bool] | None = None,
    ) -> int:
        """Return the number of threads that ``search`` finds; the arguments are the same."""
        if ids is None and not metadata and sees is None:
            return await count(self._database, tenant, status)
        number = 0
        async for _ in self.search(tenant, metadata=metadata, ids=ids, status=status, sees=sees):
            number += 1
        return number

    async def expired(self, tenant: str, now: int) -> AsyncIterator[ThreadRow]:
        """Yield the threads whose time to live has expired. For threads without one the default counts
        from their last checkpoint. Only expired threads are read in full, others only in the index."""
        # All are listed before the first is removed: removals would shift the following pages.
        every = [place async for place in places(self._database, tenant, Order(descending=False))]
        for at in range(0, len(every), _BATCH):
            batch = every[at : at + _BATCH]
            entries = await self._entries(tenant, batch)
            wanted: list[SortedThread] = []
            for place in batch:
                entry = entries.get(place.partition.thread)
                ttl = self._usual_from(place.listed.updated_at) if entry is None else entry.get("ttl")
                if _is_over(ttl, now):
                    wanted.append(place)
            for row in await rows(self._database, wanted):
                if not row.has_document and row.fault is None:
                    row = row._replace(ttl=self._usual_from(row.updated_at))
                if _is_over(row.ttl, now) and row.status != "busy":
                    yield row

    def _usual_from(self, updated_at: int) -> Mapping[str, Any] | None:
        return _ttl(self._usual, updated_at)

    async def _entries(self, tenant: str, found: Sequence[SortedThread]) -> dict[str, Mapping[str, Any]]:
        """Return the index entries of threads, by name; entries that cannot be read are left out."""
        names = [place.partition.thread for place in found]
        program = documents.several(_listing(tenant), "threads", names)
        return {entry.name: entry.body for entry in await self._database.arun(program) if entry.fault is None}

    async def _adopted(self, partition: Partition) -> None:
        found = await self._database.arun(documents.get(partition, *OF_THREAD))
        if found is None and (row := await self.look(partition)) is not None:
            await self.adopt(partition, row)

    async def _list(self, partition: Partition, body: Mapping[str, Any], now: int) -> None:
        entry = {name: body.get(name) for name in ("metadata", "created_at", "ttl")}
        program = documents.put(
            _listing(partition.tenant),
            "threads",
            partition.thread,
            entry,
            now,
            Expect.ANY,
            self._database.fresh(),
        )
        await self._database.arun(program)


def missing(thread_id: str) -> NotFound:
    """Return the error for a thread that does not exist, or that belongs to another user."""
    return NotFound(f"Thread {thread_id!r} not found.")


def contains(whole: Any, part: Any) -> bool:
    """Return True if JSON data contains other data, as PostgreSQL's ``@>``: every key of a mapping, every
    entry of a list, anything else by its value."""
    match whole, part:
        case Mapping(), Mapping():
            return all(key in whole and contains(whole[key], wanted) for key, wanted in part.items())
        case list(), list():
            return all(any(contains(held, wanted) for held in whole) for wanted in part)
        case _:
            return (type(whole) is type(part) and bool(whole == part)) or _same_number(whole, part)


def _same_number(a: Any, b: Any) -> bool:
    numbers = isinstance(a, int | float) and isinstance(b, int | float)
    return numbers and not isinstance(a, bool) and not isinstance(b, bool) and a == b


def _listing(tenant: str) -> Partition:
    return Partition(tenant, "threads", SERVER)


def _is_over(ttl: Mapping[str, Any] | None, now: int) -> bool:
    return ttl is not None and bool(ttl["expires_at"] <= now)


def _ttl(ttl: Mapping[str, Any] | None, now: int) -> dict[str, Any] | None:
    if ttl is None:
        return None
    minutes = float(ttl.get("ttl_minutes", ttl.get("ttl", 0)))
    return {
        "strategy": ttl.get("strategy", "delete"),
        "ttl_minutes": minutes,
        "expires_at": now + round(minutes * 60_000_000),
    }


async def _batches(found: AsyncIterator[SortedThread]) -> AsyncIterator[list[SortedThread]]:
    """Yield places in groups of growing size: the first is answered soon, the later ones need few
    requests."""
    batch: list[SortedThread] = []
    size = _FIRST_BATCH
    async for place in found:
        batch.append(place)
        if len(batch) == size:
            yield batch
            batch, size = [], _BATCH
    if batch:
        yield batch
