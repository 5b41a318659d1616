"""Counts of ended runs and of calls of models by minute, hour and day, which every process that executes runs
stores every few seconds; and a sample of the database's size each day.

No index contains the ends of runs, and counting them would read every thread. So each process counts the runs
that it ended, and replaces a small document of its own for the minute, the hour and the day. A run costs no
request of its own, and no process waits for another. Counts that a killed process had not stored yet are
lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator, Mapping
from typing import Any

from perdure.database.handle import DatabaseHandle
from perdure.engine.queue.runs import Ending, HeldRun
from perdure.engine.retention.old_counts import (
    DAY_US,
    DAYS,
    HOUR_US,
    HOURS,
    MINUTES,
    partition_of,
    remove_old,
)
from perdure.errors import PerdureError
from perdure.model.bounded_cache import BoundedCache
from perdure.model.ops import Commit, Put
from perdure.model.program import Program, ask
from perdure.model.records import DOCUMENT, INTERNAL
from perdure.model.runs.messages import FAILED, Run, encode, replace_surrogates
from perdure.runtime.clock import DatabaseClock
from perdure.runtime.observers import Observers
from perdure.runtime.size_samples import SizeSamples
from perdure.runtime.threads.user_and_title import user_of_options

LENGTHS: Mapping[str, int] = {MINUTES: 60_000_000, HOURS: HOUR_US, DAYS: DAY_US}
"""Lengths of the times that are counted, in microseconds, by the collections of their documents. A document
is named by the start of its time, its process and a number."""
BOUNDS_S = (
    *(0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 4, 5, 7.5, 10),
    *(15, 20, 30, 45, 60, 90, 120, 300, 600, 1800, 3600),
)
"""Upper bounds of the latency buckets, in seconds; one more bucket is above all of them."""
OTHER = ""
"""Name under which all graphs, users, errors or models are counted for which a document has no room."""

_FLUSH_S = 10.0
_IDLE_FLUSH_S = 60.0
_CLOSE_S = 3.0
_NAMES_MAX = {"graphs": 40, "users": 50, "errors": 20, "models": 30}
_VERSIONS_MAX = 5
"""Versions of one graph that are counted in one minute, hour or day."""
_NAME_MAX = 100
_TENANTS_MAX = 10
"""Maximum number of tenants whose counts are stored at a time, which limits the commits."""
_CLEANED_MAX = 10_000
_STORED_MAX = 50


def find_latency_bucket(micros: int) -> int:
    """Return the number of a latency's bucket."""
    seconds = micros / 1_000_000
    return next((place for place, bound in enumerate(BOUNDS_S) if seconds <= bound), len(BOUNDS_S))


class _Counts:
    """Counts of one minute, hour or day of a tenant. Their ``number`` is unique in this process: if the
    database's clock is set back, a minute occurs twice, and its second counts must not replace those of the
    first."""

    def __init__(self, start: int, number: int) -> None:
        self.start = start
        self.number = number
        self.body: dict[str, Any] = {"at": start, "graphs": {}, "users": {}, "errors": {}, "models": {}}
        self.is_stored = True

    def add(self, run: Run, state: str, user: str | None, kind: str | None, latencies: _Latencies) -> None:
        by_graph = self._by_graph(run.graph)
        _count(by_graph["states"], state)
        if run.graph_version is not None:
            versions = by_graph.setdefault("versions", {})
            by_version = _entry_of(versions, run.graph_version, _VERSIONS_MAX, {"runs": 0, "failed": 0})
            by_version["runs"] += 1
            by_version["failed"] += state == FAILED
        _count(by_graph["end"], str(find_latency_bucket(latencies[0])))
        if latencies[1] is not None:
            _count(by_graph["first"], str(find_latency_bucket(latencies[1])))
        if user is not None:
            by_user = self._by_user(user)
            by_user["runs"] += 1
            by_user["failed"] += state == FAILED
        if kind is not None:
            self._entry("errors", kind, {"runs": 0})["runs"] += 1
        self.is_stored = False

    def add_call(self, graph: str | None, user: str | None, call: Mapping[str, Any]) -> None:
        """Add a call of a model to its model, graph and user."""
        _add_usage(self._entry("models", call["model"], {}), call)
        if graph is not None:
            _add_usage(self._by_graph(graph), call)
        if user is not None:
            _add_usage(self._by_user(user), call)
        self.is_stored = False

    def _by_graph(self, graph: str) -> dict[str, Any]:
        return self._entry("graphs", graph, {"states": {}, "end": {}, "first": {}})

    def _by_user(self, user: str) -> dict[str, Any]:
        return self._entry("users", user, {"runs": 0, "failed": 0})

    def _entry(self, what: str, name: str, empty: dict[str, Any]) -> dict[str, Any]:
        """Return the entry of a name. If there are too many names, only the first get entries of their
        own."""
        return _entry_of(self.body[what], name, _NAMES_MAX[what], empty)


def _entry_of(entries: dict[str, Any], name: str, most: int, empty: dict[str, Any]) -> dict[str, Any]:
    name = replace_surrogates(name[:_NAME_MAX])
    if name not in entries and len(entries) >= most:
        name = OTHER
    return entries.setdefault(name, empty)  # type: ignore[no-any-return]


_Latencies = tuple[int, int | None]
"""Microseconds from the acceptance of a run's first message to the run's end, and to the first token that a
model generates in it."""


def _count(counts: dict[str, int], name: str) -> None:
    counts[name] = counts.get(name, 0) + 1


USAGE = ("calls", "input_tokens", "output_tokens", "cost")
"""Amounts that are summed over calls of models. The cost counts the calls whose model has a price; it is
absent if none has."""


def _add_usage(entry: dict[str, Any], call: Mapping[str, Any]) -> None:
    amounts = {**call, "calls": 1}
    for name in USAGE:
        if (amount := amounts.get(name)) is not None:
            entry[name] = entry.get(name, 0) + amount


class ActivityCounts:
    """Counts of the runs that end in this process, for use from one event loop.

    Args:
        database: the database.
        clock: the database's clock.
        owner: the name of this process.
        observers: receive ``activity.not_stored`` if counts could not be stored; they are stored with
            the next ones.
    """

    def __init__(
        self, database: DatabaseHandle, clock: DatabaseClock, owner: str, observers: Observers
    ) -> None:
        self._database = database
        self._clock = clock
        self._owner = owner
        self._observers = observers
        self._counts: dict[tuple[str, str], list[_Counts]] = {}
        self._created = 0
        self._first: dict[str, int] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._storing: asyncio.Task[None] | None = None
        self._flushed_at = 0.0
        self._sizes = SizeSamples(database)
        self._cleaned: BoundedCache[str, int] = BoundedCache(_CLEANED_MAX)

    def note_token(self, run_id: str) -> None:
        """Note that a model in a run generates a token; only the first one of the run counts."""
        self._first.setdefault(run_id, self._clock.estimate())

    def count_run(self, held: HeldRun, ending: Ending, now: int) -> None:
        """Count a run that ended at a time in microseconds, and store the counts within some seconds."""
        first = self._first.pop(held.run.id, None)
        if held.partition.thread.startswith(INTERNAL) or held.messages[0].is_withdrawn:
            return
        accepted = held.messages[0].accepted_at
        latencies = max(0, now - accepted), None if first is None else max(0, first - accepted)
        kind = None
        if ending.state == FAILED and isinstance(noted := ending.note.get("kind"), str):
            kind = noted
        for counts, named in self._list_counts(held, now):
            counts.add(held.run, ending.state, named, kind, latencies)
        self._set_timer()

    def count_call(self, held: HeldRun, call: Mapping[str, Any]) -> None:
        """Count a call of a model in a run, and store the counts within some seconds.

        Args:
            held: The run.
            call: The fields of the event ``model.called``.
        """
        is_internal = held.partition.thread.startswith(INTERNAL)
        for counts, named in self._list_counts(held, self._clock.estimate()):
            counts.add_call(None if is_internal else held.run.graph, named, call)
        self._set_timer()

    def _list_counts(self, held: HeldRun, now: int) -> Iterator[tuple[_Counts, str | None]]:
        """Yield the counts of each length, with the run's user, or ``None`` where counts name no user."""
        user = user_of_options(held.messages[0].options)
        for collection, length in LENGTHS.items():
            counts = self._find_counts(held.partition.tenant, collection, now - now % length)
            yield counts, None if collection == DAYS else user

    def forget(self, run_id: str) -> None:
        """Forget a run that another process continues."""
        self._first.pop(run_id, None)

    def _find_counts(self, tenant: str, collection: str, start: int) -> _Counts:
        all_counts = self._counts.setdefault((tenant, collection), [])
        if not all_counts or all_counts[-1].start != start:
            self._created += 1
            all_counts.append(_Counts(start, self._created))
        return all_counts[-1]

    def _set_timer(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_FLUSH_S, self._flush_soon)

    def _flush_soon(self) -> None:
        self._timer = None
        self._storing = asyncio.create_task(self._flush_some())

    async def _flush_some(self) -> None:
        if await self.flush(_TENANTS_MAX):
            self._set_timer()

    async def flush(self, most: int | None = None) -> bool:
        """Store the counts that are not stored yet. A failure is reported, and the counts are stored next
        time.

        Args:
            most: maximum number of tenants whose counts are stored; those that have waited longest come
                first.

        Returns:
            True if counts of other tenants are left.
        """
        self._flushed_at = asyncio.get_running_loop().time()
        self._drop_ended()
        waiting = list(
            dict.fromkeys(
                tenant
                for (tenant, _), all_counts in self._counts.items()
                if not all(each.is_stored for each in all_counts)
            )
        )
        for tenant in waiting[:most]:
            await self._attempt(tenant, self._database.arun(self._store(tenant)))
            for collection in LENGTHS:  # Next time this tenant is the last one.
                if (all_counts := self._counts.pop((tenant, collection), None)) is not None:
                    self._counts[tenant, collection] = all_counts
        for tenant in waiting[:most]:
            await self._attempt(tenant, self._sizes.store(partition_of(tenant), self._clock.estimate()))
        return most is not None and len(waiting) > most

    async def _attempt(self, tenant: str, storing: Awaitable[None]) -> None:
        try:
            await storing
        except PerdureError as error:
            self._observers.event("activity.not_stored", tenant=tenant, error=type(error).__name__)

    def _drop_ended(self) -> None:
        """Forget the counts that are stored and whose time is over."""
        now = self._clock.estimate()
        for (tenant, collection), all_counts in list(self._counts.items()):
            length = LENGTHS[collection]
            all_counts[:] = [each for each in all_counts if not each.is_stored or each.start + length > now]
            if not all_counts:
                del self._counts[tenant, collection]

    async def flush_if_due(self) -> None:
        """Store the counts unless that was done within the last minute, in a process that works only during
        calls."""
        if self._counts and asyncio.get_running_loop().time() - self._flushed_at > _IDLE_FLUSH_S:
            await self.flush()

    async def close(self) -> None:
        """Store the remaining counts, within a few seconds at most."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        try:
            async with asyncio.timeout(_CLOSE_S):
                if self._storing is not None:
                    await asyncio.wait([self._storing])
                await self.flush()
        except TimeoutError:
            self._observers.event("activity.not_stored", error="TimeoutError")

    def _store(self, tenant: str) -> Program[None]:
        now, partition = self._clock.estimate(), partition_of(tenant)
        changed = [
            (collection, counts)
            for collection in LENGTHS
            for counts in self._counts.get((tenant, collection), ())
            if not counts.is_stored
        ][:_STORED_MAX]
        if changed:
            # No other process writes these documents, so they are not read first. A run that ends during the
            # commit clears ``is_stored`` again, so it is set before.
            puts = tuple(self._put(collection, counts) for collection, counts in changed)
            for _, counts in changed:
                counts.is_stored = True
            try:
                yield from ask(Commit(partition, puts))
            except BaseException:
                for _, counts in changed:
                    counts.is_stored = False
                raise
        if self._cleaned.get(tenant) != now // HOUR_US:
            self._cleaned[tenant] = now // HOUR_US
            yield from remove_old(tenant, now, self._database.budget)

    def _put(self, collection: str, counts: _Counts) -> Put:
        key = (collection, f"{counts.start}:{self._owner}:{counts.number}")
        body = encode(counts.body, "document")
        return Put(DOCUMENT, key, {"updated_at": counts.start}, body, version=self._database.draw_version())
