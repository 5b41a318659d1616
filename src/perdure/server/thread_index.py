"""The threads of a tenant as its clients see them: metadata, order and search.

What is said of a thread stands in the thread itself, where a run is accepted in one commit with the proof
that the thread is there. A copy stands in the tenant's catalogue, newest first: a hint, which is checked
against the thread before it is told to anybody.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

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
"""What holds of a thread that its clients know: a commit that carries it is refused once the thread is
deleted."""

_FIRST_BATCH, _BATCH = 32, 500


class ThreadIndex:
    """Makes, finds, changes and removes threads. ``ttl`` is that of threads that are made without one."""

    def __init__(self, runtime: Runtime, ttl: ThreadTtl | None = None) -> None:
        self._runtime = runtime
        self._usual = None if ttl is None else {"ttl": ttl.default_ttl, "strategy": ttl.strategy}
        self._database = runtime.database

    async def create(
        self,
        partition: Partition,
        metadata: Mapping[str, Any],
        ttl: Mapping[str, Any] | None = None,
    ) -> ThreadRow | None:
        """Make a thread; ``None`` when there is one. One that a program made without a server is there, and
        is known to clients from then on by ``adopt``."""
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
        """A thread as it stands now."""
        return await self._database.arun(look(partition))

    async def get(self, partition: Partition) -> ThreadRow:
        """As ``look``; ``NotFound`` when there is no such thread."""
        row = await self.look(partition)
        if row is None:
            raise missing(partition.thread)
        return row

    async def adopt(self, partition: Partition, row: ThreadRow) -> None:
        """See to it that a thread that a program made without a server is in the catalogue."""
        body = {"metadata": dict(row.metadata), "created_at": row.created_at, "ttl": row.ttl}
        now = await self._runtime.now()
        fresh = self._database.fresh()
        await self._database.arun(documents.put(partition, *OF_THREAD, body, now, Expect.ABSENT, fresh))
        await self._list(partition, body, now)

    async def change(
        self, partition: Partition, metadata: Mapping[str, Any], ttl: Mapping[str, Any] | None = None
    ) -> ThreadRow:
        """Merge into a thread's metadata, key by key. ``NotFound`` when there is no such thread."""
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
        """A thread's state was given new values after a run; ``goes_on`` says that there is more to do."""

        now = await self._runtime.now()
        body = {"run_id": run_id, "goes_on": goes_on}
        fresh = self._database.fresh()
        await self._database.arun(documents.put(partition, *EDITED, body, now, Expect.ANY, fresh))
        found = await self._database.arun(documents.get(partition, *OF_THREAD))
        if found is not None:
            await self._list(partition, found.body, now)

    async def touched(self, partition: Partition) -> None:
        """A thread was spoken to: it comes first from now on, and its time to live starts anew."""
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
        """Remove a thread with everything in it; whether there was one. A run that is under way stores
        nothing more."""
        row = await self.look(partition)
        await self._runtime.delete(partition.thread, tenant=partition.tenant)
        await self._database.arun(documents.remove(_listing(partition.tenant), "threads", partition.thread))
        return row is not None

    async def remove_resting(self, partition: Partition, *, expired_at: int | None = None) -> bool:
        """Remove a thread of which nothing is under way, with ``expired_at`` only if its time to live was
        over by then; whether it was removed. What is accepted meanwhile keeps it."""

        head, is_over = None, True
        if expired_at is not None:
            # A thread without a document has its time from its last checkpoint on: that of this head.
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
            # A thread of this name that was made since has an entry of its own.
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
        """The threads of a tenant, past the first ``skip``, each as it stands now: those that were spoken to
        last first, unless an ``order`` says otherwise. ``sees`` says of a thread's metadata whether it is
        asked for."""

        def is_wanted(said: Mapping[str, Any]) -> bool:
            return contains(said, metadata or {}) and (sees is None or sees(said))

        def is_asked_for(row: ThreadRow) -> bool:
            return status in (None, row.status) and is_wanted(row.metadata)

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
        # Without a condition on metadata those that are passed over need not be read.
        passed = 0 if needs_metadata else skip
        async for batch in _batches(places(self._database, tenant, order, status, passed)):
            wanted = batch
            if needs_metadata:
                entries = await self._entries(tenant, batch)
                wanted = [
                    place
                    for place in batch
                    if (entry := entries.get(place.partition.thread)) is None or is_wanted(entry["metadata"])
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
        """How many threads ``search`` finds."""
        if ids is None and not metadata and sees is None:
            return await count(self._database, tenant, status)
        number = 0
        async for _ in self.search(tenant, metadata=metadata, ids=ids, status=status, sees=sees):
            number += 1
        return number

    async def expired(self, tenant: str, now: int) -> AsyncIterator[ThreadRow]:
        """The threads whose time is over. Those that nobody gave a time to live have the usual one, from
        their last checkpoint on. Of the others only the list is read."""
        # All are found before the first is removed: a page that others have left would begin too late.
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
        """What the tenant's list says of threads, by name; of one that it cannot say anything of, nothing."""
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
    """What is told of a thread that is not there, or is another's."""
    return NotFound(f"Thread {thread_id!r} not found.")


def contains(whole: Any, part: Any) -> bool:
    """Whether JSON data contains other data, as PostgreSQL's ``@>``: every key of a mapping, every entry of a
    list, anything else by its value."""
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
    """Places in growing groups: the first answers soon, the later ones need few requests."""
    batch: list[SortedThread] = []
    size = _FIRST_BATCH
    async for place in found:
        batch.append(place)
        if len(batch) == size:
            yield batch
            batch, size = [], _BATCH
    if batch:
        yield batch
