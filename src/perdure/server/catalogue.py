"""The threads of a tenant as its clients see them: metadata, order and search.

What is said of a thread stands in the thread itself, where a run is accepted in one commit with the proof
that the thread is there. A copy stands in the tenant's catalogue, newest first: a hint, which is checked
against the thread before it is told to anybody.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from perdure.engine import documents
from perdure.engine.documents import Document
from perdure.errors import Corrupt, NotFound
from perdure.model.lane import IN, Lane
from perdure.model.messages import DONE, FAILED, ROLLED_BACK, Run
from perdure.model.ops import Check, Expect, Fetch, Get, Range
from perdure.model.program import Program, ask
from perdure.model.records import DOCUMENT, HEAD, LANE, OF_THREAD, RUN, SERVER, Partition, Record
from perdure.runtime import Runtime
from perdure.server.config import ThreadTtl

Status = Literal["idle", "busy", "interrupted", "error"]

THERE = Check(DOCUMENT, OF_THREAD, Expect.PRESENT)
"""What holds of a thread that its clients know: a commit that carries it is refused once the thread is
deleted."""

_LOOKED_AT = 10
_LOOKS = (
    Get(DOCUMENT, OF_THREAD),
    Get(LANE, (IN,)),
    Range(RUN, by="first", reverse=True, limit=_LOOKED_AT),
    Get(HEAD, ("",)),
)
_PAGE = 100
_AT_ONCE = 16


class Row(NamedTuple):
    """A thread as it stands. Times are microseconds since 1970. ``run`` is the newest that was not taken
    back; ``has_state`` says whether it has a checkpoint. With a ``fault`` some of the thread's records cannot
    be read: the others are shown, and the status is ``error``."""

    thread_id: str
    metadata: Mapping[str, Any]
    created_at: int
    updated_at: int
    status: Status
    run: Run | None
    has_state: bool
    ttl: Mapping[str, Any] | None
    fault: Corrupt | None = None

    @property
    def graph_id(self) -> str | None:
        """The graph that speaks on the thread, if one has."""
        graph_id = self.metadata.get("graph_id")
        return graph_id if isinstance(graph_id, str) else None


class Catalogue:
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
    ) -> Row | None:
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
        return None if made is None else _row(partition, made, None, None, None)

    async def look(self, partition: Partition) -> Row | None:
        """A thread as it stands now."""
        return await self._database.arun(_look(partition))

    async def get(self, partition: Partition) -> Row:
        """As ``look``; ``NotFound`` when there is no such thread."""
        row = await self.look(partition)
        if row is None:
            raise missing(partition.thread)
        return row

    async def adopt(self, partition: Partition, row: Row) -> None:
        """See to it that a thread that a program made without a server is in the catalogue."""
        body = {"metadata": dict(row.metadata), "created_at": row.created_at, "ttl": None}
        now = await self._runtime.now()
        fresh = self._database.fresh()
        await self._database.arun(documents.put(partition, *OF_THREAD, body, now, Expect.ABSENT, fresh))
        await self._list(partition, body, now)

    async def change(
        self, partition: Partition, metadata: Mapping[str, Any], ttl: Mapping[str, Any] | None = None
    ) -> Row:
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

        def noted(before: Document | None) -> Mapping[str, Any] | None:
            edited = {"run_id": run_id, "goes_on": goes_on}
            return None if before is None else {**before.body, "edited": edited}

        now = await self._runtime.now()
        program = documents.change(partition, *OF_THREAD, noted, now, self._database.fresh())
        changed = await self._database.arun(program)
        if changed is not None:
            await self._list(partition, changed.body, now)

    async def touched(self, partition: Partition) -> None:
        """A thread was spoken to: it comes first from now on, and its time to live starts anew."""
        now = await self._runtime.now()
        found = await self._database.arun(documents.get(partition, *OF_THREAD))
        if found is not None:
            body = found.body
            if (ttl := body.get("ttl")) is not None:
                body = {**body, "ttl": _ttl(ttl, now)}
                fresh = self._database.fresh()
                await self._database.arun(
                    documents.put(partition, *OF_THREAD, body, now, found.version, fresh)
                )
            await self._list(partition, body, now)

    async def remove(self, partition: Partition) -> bool:
        """Remove a thread with everything in it; whether there was one. A run that is under way stores
        nothing more."""
        row = await self.look(partition)
        await self._runtime.delete(partition.thread, tenant=partition.tenant)
        await self._database.arun(documents.remove(_listing(partition.tenant), "threads", partition.thread))
        return row is not None

    async def search(
        self,
        tenant: str,
        *,
        metadata: Mapping[str, Any] | None = None,
        ids: Sequence[str] | None = None,
        status: Status | None = None,
    ) -> AsyncIterator[Row]:
        """The threads of a tenant, those that were spoken to last first, each as it stands now."""
        if ids is not None:
            for at in range(0, len(ids), _PAGE):
                for row in await self._standing(tenant, ids[at : at + _PAGE]):
                    if _is_asked_for(row, metadata, status):
                        yield row
            return
        async for row in self._listed(tenant, lambda said: contains(said["metadata"], metadata or {})):
            if _is_asked_for(row, metadata, status):
                yield row

    async def expired(self, tenant: str, now: int) -> AsyncIterator[Row]:
        """The threads whose time is over. Of the others only the list is read."""
        async for row in self._listed(tenant, lambda said: _is_over(said.get("ttl"), now)):
            if _is_over(row.ttl, now) and row.status != "busy":
                yield row

    async def _listed(self, tenant: str, may_be: Callable[[Mapping[str, Any]], bool]) -> AsyncIterator[Row]:
        """The threads that may be wanted by what the list says of them, each as it stands now."""
        before: int | None = None
        seen: set[str] = set()
        while True:
            program = documents.newest(_listing(tenant), "threads", _PAGE + len(seen), before)
            page = await self._database.arun(program)
            wanted = [
                entry.name
                for entry in page
                if entry.name not in seen and (entry.fault is not None or may_be(entry.body))
            ]
            for row in await self._standing(tenant, wanted):
                yield row
            if len(page) < _PAGE:
                return
            before = page[-1].updated_at
            seen = {entry.name for entry in page if entry.updated_at == before}

    async def _standing(self, tenant: str, ids: Sequence[str]) -> list[Row]:
        rows: list[Row] = []
        for at in range(0, len(ids), _AT_ONCE):
            looks = (self.look(Partition(tenant, name)) for name in ids[at : at + _AT_ONCE])
            rows += [row for row in await asyncio.gather(*looks) if row is not None]
        return rows

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


def _is_asked_for(row: Row, metadata: Mapping[str, Any] | None, status: Status | None) -> bool:
    return (status is None or row.status == status) and contains(row.metadata, metadata or {})


def _listing(tenant: str) -> Partition:
    return Partition(tenant, "threads", SERVER)


def _look(partition: Partition) -> Program[Row | None]:
    (found, lanes, runs, heads), fault = yield from _records(partition)
    lane = Lane.read(IN, lanes)
    document: Document | None = None
    kept: list[Run] = []
    try:
        document = Document.read(found[0]) if found else None
    except Corrupt as error:
        fault = error
    try:
        # What never began left nothing, as what was taken back.
        kept = [r for r in map(Run.read, runs) if r.state != ROLLED_BACK and r.note.get("begun", True)]
    except Corrupt as error:
        fault = error
    if document is None and fault is None and not heads and not lane.version:
        return None
    row = _row(partition, document, lane, kept[0] if kept else None, bool(heads) or None)
    return row if fault is None else row._replace(fault=fault, status="error")


def _records(partition: Partition) -> Program[tuple[tuple[tuple[Record, ...], ...], Corrupt | None]]:
    """A thread's records, and why one of them is missing if it does not open."""
    try:
        return (yield from ask(Fetch(partition, _LOOKS))), None
    except Corrupt as error:
        fault = error
    out: list[tuple[Record, ...]] = []
    for look in _LOOKS:
        try:
            out += yield from ask(Fetch(partition, (look,)))
        except Corrupt as error:
            out.append(())
            fault = error
    return tuple(out), fault


def _row(
    partition: Partition,
    document: Document | None,
    lane: Lane | None,
    run: Run | None,
    has_state: bool | None,
) -> Row:
    body = {} if document is None else document.body
    updated = 0 if document is None else document.updated_at
    return Row(
        partition.thread,
        body.get("metadata", {}),
        body.get("created_at", run.started_at if run else 0),
        max(updated, run.updated_at if run else 0),
        _status(lane, run, body.get("edited")),
        run,
        bool(has_state),
        body.get("ttl"),
    )


def _status(lane: Lane | None, run: Run | None, edited: Mapping[str, Any] | None) -> Status:
    if lane is not None and (lane.run_id is not None or lane.pending):
        return "busy"
    if edited is not None and edited["run_id"] == (None if run is None else run.id):
        return "interrupted" if edited["goes_on"] else "idle"
    if run is None or run.state == DONE:
        return "idle"
    return "error" if run.state == FAILED else "interrupted"


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
