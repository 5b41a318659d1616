"""Index of a tenant's threads: copies of their metadata, and search by it.

The metadata itself is stored in the thread. A copy in the index is a hint, which is checked against the
thread before the thread is returned; a thread without a copy is read in full instead.

A copy names every graph and assistant to which its thread may belong, as runs change that without a change of
the copy.

With the copy of a thread that has a time to live of its own, an entry with the time at which it is over is
stored (``engine.retention.expiring_threads``).

A copy has the version of the document that it was made of, so that an older one never takes the place of a
newer one, in whatever order they arrive. A change of metadata is announced before it is stored: until its
copy follows, and for good if the process ends in between, the thread counts as one without a copy.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from perdure.database.handle import DatabaseHandle
from perdure.engine import documents
from perdure.engine.documents import Document
from perdure.engine.retention import expiring_threads
from perdure.model.ops import Commit, Committed, CopyCondition, Delete, Expect, Op
from perdure.model.program import ask
from perdure.model.records import DOCUMENT, LISTED, Partition
from perdure.model.runs.lifecycle import Status
from perdure.model.thread_agents import copy_agents, list_variants
from perdure.runtime.threads.metadata_patterns import MOST, Patterns, patterns_of
from perdure.runtime.threads.order import AT_ONCE, Order, SortedThread, ThreadListing, load_rows, sort_rows
from perdure.runtime.threads.rows import ThreadRow

_COLLECTION = LISTED[0]
_FIRST_BATCH, _BATCH = 32, 500
_GROWTH = 4
_UNANNOUNCED = b',"announced":0}'
"""End of a copy for whose thread no change is announced."""
_TURN_S = 0.005
"""Seconds for which metadata are compared before other tasks get a turn of the event loop."""

Sees = Callable[[Mapping[str, Any]], bool]
"""Predicate over a thread's metadata."""


class ThreadIndex:
    """Index of one tenant's threads."""

    def __init__(self, database: DatabaseHandle, tenant: str) -> None:
        self._database = database
        self._tenant = tenant
        self._partition = Partition(tenant, *LISTED)

    async def add(self, thread_id: str, document: Document) -> Document | None:
        """Store the copy of a new thread's document in one request; None if the index has a copy already:
        that of an earlier thread of this name, or of the same thread, created by another request.

        Args:
            thread_id: the thread.
            document: its document, as it will be or is stored.
        """
        fresh = self._database.draw_version()
        copy = _make_copy(document, 0)
        put, added = documents.plan_create(_COLLECTION, thread_id, copy, document.updated_at, fresh)
        entry = expiring_threads.plan_entry(thread_id, copy["ttl"], fresh)
        outcome = await self._database.arun(ask(Commit(self._partition, (put, *entry))))
        return added if isinstance(outcome, Committed) else None

    async def write(self, thread_id: str, document: Document) -> None:
        """Store the copy of a thread's document, unless the index has one of a newer document; the arguments
        are as for ``add``."""

        def make_newer(before: Document | None) -> Mapping[str, Any] | None:
            made = _make_copy(document, 0)
            if before is None:
                return made
            if _age(before.body) > _age(made):
                return None
            announced = _read_announced(before, document)
            if announced > document.version:
                made["announced"] = announced
            return made

        fresh, ttl = self._database.draw_version(), document.body.get("ttl")

        def change_entry(before: Document | None) -> tuple[Op, ...]:
            earlier = before and before.body.get("ttl")
            return expiring_threads.plan_change(thread_id, earlier, ttl, fresh)

        program = documents.change(
            self._partition,
            _COLLECTION,
            thread_id,
            make_newer,
            document.updated_at,
            fresh,
            beside=change_entry,
        )
        await self._database.arun(program)

    async def announce(self, thread_id: str, document: Document, now: int) -> None:
        """Record that a thread's document is about to be replaced by its next version.

        Args:
            thread_id: the thread.
            document: its document as it is.
            now: current time in microseconds.
        """

        def add_announcement(before: Document | None) -> Mapping[str, Any] | None:
            if before is None:
                return None  # A thread without a copy is read in full anyway.
            if _age(before.body) > (document.body["created_at"], document.version):
                return None
            return {**before.body, "announced": max(_read_announced(before, document), document.version + 1)}

        fresh = self._database.draw_version()
        program = documents.change(self._partition, _COLLECTION, thread_id, add_announcement, now, fresh)
        await self._database.arun(program)

    async def remove(self, thread_id: str, seen: Document | None = None) -> None:
        """Remove the copy of a thread that was removed; with ``seen`` only that copy, because a thread
        of the same name that was created since has another."""
        expect = Expect.PRESENT if seen is None else seen.version
        removal = Delete(DOCUMENT, (_COLLECTION, thread_id), expect)
        ops = (removal, expiring_threads.plan_removal(thread_id))
        await self._database.arun(ask(Commit(self._partition, ops)))

    async def search(
        self,
        *,
        metadata: Mapping[str, Any] | None = None,
        ids: Sequence[str] | None = None,
        status: Status | None = None,
        sees: Sees | None = None,
        holding: Patterns = (),
        order: Order | None = None,
        skip: int = 0,
        enough: int | None = None,
    ) -> AsyncIterator[ThreadRow]:
        """Yield threads, each as it is now; the ones with the latest activity first by default.

        Args:
            metadata: JSON data that a thread's metadata has to contain.
            ids: ids of the threads to search in, or None for all.
            status: the status that a thread has to have, or None for any.
            sees: predicate over a thread's metadata.
            holding: patterns of the metadata for which ``sees`` is true.
            order: the sort order.
            skip: number of threads to leave out at the beginning.
            enough: number of threads after which the caller is likely to stop, so that no more are read
                than it needs.
        """

        matches = _make_matcher(metadata, sees)

        def is_asked_for(row: ThreadRow) -> bool:
            return status in (None, row.status) and matches(row.metadata)

        order = order or Order()
        if ids is not None:
            named = [Partition(self._tenant, name) for name in dict.fromkeys(ids)]
            rows = await load_rows(self._database, named)
            asked = [row for row in rows if row is not None and is_asked_for(row)]
            for row in sort_rows(asked, order)[skip:]:
                yield row
            return
        # Without a condition on metadata skipped threads need not be read.
        needs_metadata = bool(metadata) or sees is not None
        passed = 0 if needs_metadata else skip
        steps = self.steps(
            metadata=metadata,
            status=status,
            sees=sees,
            holding=holding,
            order=order,
            skip=passed,
            enough=enough,
        )
        async with aclosing(steps) as found:
            async for _, each in found:
                if each is None:
                    continue
                if passed >= skip:
                    yield each
                else:
                    passed += 1

    async def steps(
        self,
        *,
        metadata: Mapping[str, Any] | None = None,
        status: Status | None = None,
        sees: Sees | None = None,
        holding: Patterns = (),
        order: Order | None = None,
        skip: int = 0,
        enough: int | None = None,
    ) -> AsyncGenerator[tuple[int, ThreadRow | None], None]:
        """Yield the results of ``search``, each with its place: the number of threads of the status up to it,
        including those that do not match. Places without a thread come in between, so that a caller whose
        time is over can continue there later. The arguments are those of ``search``, except that ``skip`` is
        a place.
        """

        matches = _make_matcher(metadata, sees)
        loop = asyncio.get_running_loop()
        needs_metadata = bool(metadata) or sees is not None
        # A condition on metadata may pass over any number of threads, and each has to be read.
        enough = None if needs_metadata else enough
        patterns = (*patterns_of(metadata or {}), *holding)[:MOST]
        copies = CopyCondition(_UNANNOUNCED, patterns) if patterns else None
        listing = ThreadListing(self._database, self._tenant, order or Order(), status, enough, copies)
        async for batch in _group_places(listing.list_places(skip), enough or _FIRST_BATCH):
            wanted = batch
            if needs_metadata:
                entries = await self._read_copies(batch)
                wanted = []
                turn = loop.time()
                for place in batch:
                    entry = entries.get(place.partition.thread)
                    if entry is None or any(map(matches, list_variants(entry))):
                        wanted.append(place)
                    if loop.time() - turn > _TURN_S:
                        await asyncio.sleep(0)
                        turn = loop.time()
            for start in range(0, len(wanted), AT_ONCE):
                some = wanted[start : start + AT_ONCE]
                # A few at a time, as the caller may need no more.
                rows = await load_rows(self._database, [place.partition for place in some])
                for place, row in zip(some, rows, strict=True):
                    if row is not None and status in (None, row.status) and matches(row.metadata):
                        yield place.number, row
            yield batch[-1].number, None

    async def count(
        self,
        *,
        metadata: Mapping[str, Any] | None = None,
        ids: Sequence[str] | None = None,
        status: Status | None = None,
        sees: Sees | None = None,
        holding: Patterns = (),
    ) -> int:
        """Return the number of threads that ``search`` finds; the arguments are the same."""
        if ids is None and not metadata and sees is None:
            return await ThreadListing(self._database, self._tenant, status=status).count_threads()
        number = 0
        found = self.search(metadata=metadata, ids=ids, status=status, sees=sees, holding=holding)
        async for _ in found:
            number += 1
        return number

    async def _read_copies(self, found: Sequence[SortedThread]) -> dict[str, Mapping[str, Any]]:
        """Return the copies of threads' documents, by name, without those that cannot be read, or for which
        a change was announced."""
        names = [place.partition.thread for place in found]
        program = documents.get_many(self._partition, _COLLECTION, names)
        copies = await self._database.arun(program)
        return {
            entry.name: entry.body
            for entry in copies
            if entry.fault is None and entry.body["announced"] <= entry.body["version"]
        }


def _make_matcher(metadata: Mapping[str, Any] | None, sees: Sees | None) -> Sees:
    """Return a predicate for metadata that contain these entries, and that ``sees`` accepts."""
    return lambda held: contains(held, metadata or {}) and (sees is None or sees(held))


def _make_copy(document: Document, announced: int) -> dict[str, Any]:
    """Return the copy of a thread's document; ``announced`` is the newest version that was announced, or
    0."""
    kept = {name: document.body.get(name) for name in ("metadata", "created_at", "ttl")}
    return {**kept, **copy_agents(document.body), "version": document.version, "announced": announced}


def _age(copy: Mapping[str, Any]) -> tuple[int, int]:
    """Return the key that orders the documents of a name: a thread that was created again is newer."""
    return copy["created_at"], copy["version"]


def _read_announced(before: Document, document: Document) -> int:
    """Return the version that was announced for a thread, 0 for an earlier thread of its name."""
    if before.body["created_at"] == document.body["created_at"]:
        return int(before.body["announced"])
    return 0


def contains(whole: Any, part: Any) -> bool:
    """Return True if JSON data contains other data, as PostgreSQL's ``@>``: every key of a mapping, every
    entry of a list, anything else by its value."""
    match whole, part:
        case Mapping(), Mapping():
            return all(key in whole and contains(whole[key], wanted) for key, wanted in part.items())
        case list(), list():
            return _contains_each(whole, part)
        case _:
            return (type(whole) is type(part) and bool(whole == part)) or _are_same_number(whole, part)


def _contains_each(whole: list[Any], part: list[Any]) -> bool:
    """Return True if a list contains each entry of another: plain ones are looked up, and lists and mappings
    compared with each of their kind."""
    values = {(type(held) is bool, held) for held in whole if isinstance(held, _PLAIN)}
    others = [held for held in whole if not isinstance(held, _PLAIN)]
    return all(
        (type(wanted) is bool, wanted) in values
        if isinstance(wanted, _PLAIN)
        else any(contains(held, wanted) for held in others)
        for wanted in part
    )


_PLAIN = (str, int, float, bool, type(None))


def _are_same_number(a: Any, b: Any) -> bool:
    numbers = isinstance(a, int | float) and isinstance(b, int | float)
    return numbers and not isinstance(a, bool) and not isinstance(b, bool) and a == b


async def _group_places(
    found: AsyncIterator[list[SortedThread]], first: int
) -> AsyncIterator[list[SortedThread]]:
    """Yield places in groups of growing size: the first, of ``first`` places, comes soon, and the later ones
    need few requests."""
    size = min(first, _BATCH)
    async for page in found:
        while page:
            yield page[:size]
            page, size = page[size:], min(size * _GROWTH, _BATCH)
