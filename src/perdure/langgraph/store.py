"""LangGraph's store over any backend: its operations in its own types, sync and async from one program.

Expiry, filters and the order of results are decided in ``engine.items``; here are the clock, the versions
of writes, and the thread that removes expired items on request.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from itertools import count
from logging import getLogger
from threading import Lock
from typing import Any, cast

from langgraph.store.base import (
    BaseStore,
    GetOp,
    Item,
    ListNamespacesOp,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    TTLConfig,
)

from perdure.engine.items import item_writes, items, nearest_items
from perdure.engine.transact import Budget
from perdure.langgraph.call_batching import CallBatcher
from perdure.langgraph.search.index import NOTHING, Embedded, SearchIndex
from perdure.langgraph.store_arguments import (
    check_joint_puts,
    check_ttl,
    read_interval,
    to_plain_values,
    validate_all,
)
from perdure.langgraph.store_puts import ItemName, Puts, find_last_puts
from perdure.langgraph.ttl_sweeper import TtlSweeper
from perdure.model import filters
from perdure.model.program import Program
from perdure.model.records import Partition, Record
from perdure.model.store_items import Condition, Labels, labels_of, partition_of
from perdure.model.times import to_datetime
from perdure.model.values.json_values import is_same, unpack
from perdure.storage.port import (
    Driver,
    arun,
    run,
)

__all__ = ["PerdureStore", "TTLConfig"]

_VERSION_BITS = 52
_AT_ONCE = 32
_CONDITIONS_ON_LOOP = 20


def _read_wall_clock() -> int:
    return time.time_ns() // 1000


class Clock:
    """Microseconds since the epoch that never go back in this process; each ``stamp`` is unique."""

    def __init__(self, source: Callable[[], int] = _read_wall_clock) -> None:
        self._source = source
        self._last = 0
        self._lock = Lock()

    def now(self) -> int:
        """Return the time for a read: no earlier than any stamp."""
        with self._lock:
            return max(self._last, self._source())

    def stamp(self) -> int:
        """Return the time for a write: later than any stamp before it."""
        return self.make_stamps(1)[0]

    def make_stamps(self, count: int) -> range:
        """Return the times for some writes, in their order: see ``stamp``."""
        with self._lock:
            first = max(self._last + 1, self._source())
            self._last = first + count - 1
            return range(first, first + count)


_CLOCK = Clock()
_log = getLogger("perdure.langgraph")


class PerdureStore(BaseStore):
    """A store for ``graph.compile(store=…)``. Make one with ``Database.store``.

    A batch reads before it writes, so its reads do not see its writes; the last of several puts to one key
    counts. Writes to one namespace are one commit as far as the backend's limits allow. Calls that are
    awaited in one turn of an event loop, as by ``asyncio.gather``, are one batch. With an index an item and
    its vectors are one commit; texts are embedded before anything is written.
    """

    supports_ttl = True

    def __init__(
        self,
        driver: Driver,
        *,
        tenant: str = "",
        ttl: TTLConfig | None = None,
        clock: Clock = _CLOCK,
        index: SearchIndex | None = None,
    ) -> None:
        self.ttl_config = check_ttl(ttl)
        self._index = index
        self._driver = driver
        self._tenant = tenant
        self._clock = clock
        self._budget = Budget(driver.limits.ops, driver.limits.bytes)
        self._sweeper: TtlSweeper | None = None
        self._has_ignored_a_query = False
        self._batched = CallBatcher(self._abatch)

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Perform operations together and return their results in the same order."""
        results: list[Result] = []
        all_ops = validate_all(ops)
        puts = self._puts(all_ops)
        if self._index is None:
            embedded = NOTHING
        else:
            embedded = self._index.embed(_list_texts(puts), all_ops)
        for stage in self._plan_stages(all_ops, puts, results, embedded):
            for program in stage:
                run(program, self._driver)
        return results

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """As ``batch``, but serves several namespaces concurrently. If one fails, those under way are
        finished before its error is raised."""
        all_ops = validate_all(ops)
        return await self._batched(all_ops)

    async def _abatch(self, ops: list[Op]) -> list[Result]:
        results: list[Result] = []
        has_threads = self._driver.capabilities.has_threads
        puts = self._puts(ops)
        embedded = await self._aembed(ops, puts)
        computes = any(isinstance(op, SearchOp) and self._computes_long(op) for op in ops)
        drive = partial(arun, driver=self._driver, in_threads=computes and has_threads)
        for stage in self._plan_stages(ops, puts, results, embedded):
            await _drive_side_by_side(stage, drive)
        return results

    def put_if_unchanged(self, puts: Sequence[PutOp], seen: Mapping[str, Mapping[str, Any] | None]) -> bool:
        """Put and delete items of one namespace in one commit, unless others have changed what was read.

        ``aput_if_unchanged`` is the same for event loops.

        Args:
            puts: The items, at most one for each key; without a value an item is deleted. Their times to live
                are those of the operations.
            seen: The values that the caller has read, by key, ``None`` for an item that was absent. Items
                that are not written may be among them. Values are compared with their types: 1 is neither
                ``True`` nor 1.0.

        Returns:
            False if an item in ``seen`` has another value now; then nothing was written.

        Raises:
            ValueError: There are no items, or they are of several namespaces, or two are for one key.
            TypeError: A key is not text.
            Unserialisable: A value is not plain JSON data.
            TooLarge: One commit cannot hold them.
            Contention: Other writers of the namespace win each time; try again.
        """
        ops = check_joint_puts(puts)
        packed, wanted = self._puts(ops), to_plain_values(seen)
        if self._index is None:
            embedded = NOTHING
        else:
            embedded = self._index.embed(_list_texts(packed), ops)
        return run(self._put_if_unchanged(packed, wanted, embedded), self._driver)

    async def aput_if_unchanged(
        self, puts: Sequence[PutOp], seen: Mapping[str, Mapping[str, Any] | None]
    ) -> bool:
        """See ``put_if_unchanged``."""
        ops = check_joint_puts(puts)
        packed, wanted = self._puts(ops), to_plain_values(seen)
        embedded = await self._aembed(ops, packed)
        return await arun(self._put_if_unchanged(packed, wanted, embedded), self._driver)

    def remove_empty_namespaces(self, prefix: Sequence[str]) -> None:
        """Remove the names of namespaces within ``prefix``, itself included, that hold no items. Some
        backends keep such names, which may be personal data."""
        run(items.remove_empty_names(self._tenant, tuple(prefix)), self._driver)

    async def aremove_empty_namespaces(self, prefix: Sequence[str]) -> None:
        """See ``remove_empty_namespaces``."""
        await arun(items.remove_empty_names(self._tenant, tuple(prefix)), self._driver)

    async def acount_items(self, is_wanted: Callable[[tuple[str, ...]], bool]) -> dict[tuple[str, ...], int]:
        """Return the numbers of items in the tenant's namespaces that have items and for which ``is_wanted``
        is true. The names of all namespaces are read, and of the items no values."""
        return await arun(items.count_within(self._tenant, is_wanted, self._clock.now()), self._driver)

    def sweep_ttl(self) -> int:
        """Remove the tenant's expired items and return their number. Answers do not depend on this:
        expired items are never returned. DynamoDB removes them itself, so there this finds none."""
        return self._sweep()

    async def asweep_ttl(self) -> int:
        """See ``sweep_ttl``."""
        return await arun(items.sweep(self._tenant, self._clock.now(), self._budget), self._driver)

    def start_ttl_sweeper(self, sweep_interval_minutes: float | None = None) -> Future[None]:
        """Remove expired items in a background thread every ``sweep_interval_minutes``: by default the
        store's ``ttl`` setting, else 5. A second call changes the interval. Closing the database stops it.

        Returns:
            A future that is done when the thread has ended. Cancelling it stops the sweeper.

        Raises:
            ValueError: The interval is not above 0, or not finite.
            TypeError: It is not a number.
        """
        seconds = read_interval(sweep_interval_minutes, self.ttl_config)
        self._stop_sweeper()
        return self._start_sweeper(seconds)

    def stop_ttl_sweeper(self, timeout: float | None = None) -> bool:
        """Stop the sweeper; return True if its thread ended within ``timeout`` seconds. Repeatable."""
        return self._stop_sweeper(timeout)

    def close(self) -> None:
        """Stop what the store does by itself, as closing its database does. Repeatable."""
        self._stop_sweeper()

    def _sweep(self) -> int:
        return run(items.sweep(self._tenant, self._clock.now(), self._budget), self._driver)

    def _start_sweeper(self, seconds: float) -> Future[None]:
        self._sweeper = TtlSweeper(self._sweep, seconds)
        return self._sweeper.ended

    def _stop_sweeper(self, timeout: float | None = None) -> bool:
        sweeper, self._sweeper = self._sweeper, None
        return sweeper is None or sweeper.stop(timeout)

    async def _aembed(self, ops: list[Op], puts: Mapping[Partition, Puts]) -> Embedded:
        if self._index is None:
            return NOTHING
        return await self._index.aembed(
            _list_texts(puts), ops, in_threads=self._driver.capabilities.has_threads
        )

    def _plan_stages(
        self, ops: list[Op], puts: Mapping[Partition, Puts], results: list[Result], embedded: Embedded
    ) -> Iterator[list[Program[None]]]:
        """Yield the programs of a batch, which fill ``results``, by stage; those of a stage are independent
        of each other."""
        times = self._clock.make_stamps(sum(isinstance(op, PutOp) for op in ops))
        now = self._clock.now()
        results += [None] * len(ops)
        touched: dict[Partition, dict[str, Record]] = {}
        renews = not self._driver.capabilities.is_read_only

        def touch(partition: Partition, record: Record) -> None:
            if renews and record.fields["ttl"] is not None:
                touched.setdefault(partition, {})[record.key[0]] = record

        def read(partition: Partition, places: list[int]) -> Program[None]:
            all_ops = cast("list[GetOp]", ops)
            living = yield from items.read(partition, tuple({all_ops[n].key: None for n in places}), now)
            for place in places:
                op = all_ops[place]
                if record := living.get(op.key):
                    results[place] = _to_item(tuple(op.namespace), record)
                    if op.refresh_ttl:
                        touch(partition, record)

        def search(equal_ops: list[tuple[int, SearchOp]]) -> Program[None]:
            hits = yield from self._search(equal_ops[0][1], now, embedded)
            for number, (place, op) in enumerate(equal_ops):
                # A caller may change its result, so each gets values of its own.
                results[place] = [_to_search_item(hit if number == 0 else _copy_hit(hit)) for hit in hits]
                for hit in hits if op.refresh_ttl else ():
                    touch(partition_of(self._tenant, hit.labels), hit.record)

        def list_namespaces(equal_ops: list[tuple[int, ListNamespacesOp]]) -> Program[None]:
            op = equal_ops[0][1]
            conditions = [Condition(c.match_type, tuple(c.path)) for c in op.match_conditions or ()]
            listed = yield from items.list_namespaces(
                self._tenant, conditions, depth=op.max_depth, offset=op.offset, limit=op.limit, now=now
            )
            for place, _ in equal_ops:
                results[place] = list(listed)

        gets = [read(partition, places) for partition, places in self._group_gets(ops).items()]
        yield [
            # Where concurrent reads gain nothing, the answer of one becomes results before the next one
            # begins: the garbage collector scans each living object again and again.
            *([_drive_one_by_one(gets)] if gets and self._driver.capabilities.is_local else gets),
            *map(search, _group_searches(ops)),
            *map(list_namespaces, _group_listings(ops)),
        ]
        yield [
            items.renew(partition, list(zip(left, _versions(), strict=False)), now, self._budget)
            for partition, records in touched.items()
            if (left := _keep_unwritten(records, puts.get(partition)))
        ]
        keeps, versions = self._driver.capabilities.keeps_fields, _versions()
        # With other drivers a write reads the items first, and the generation with them.
        if self._index is not None and keeps:
            known = self._index.generations
        else:
            known = None
        yield [
            items.write(
                partition,
                of_namespace.writes(times, versions, self._index, embedded),
                self._budget,
                keeps=keeps,
                known=known,
            )
            for partition, of_namespace in puts.items()
        ]

    def _computes_long(self, op: SearchOp) -> bool:
        """Return True if the program of a search compares thousands of vectors, or each item with many
        conditions: it runs in an OS thread, so that the event loop goes on."""
        compares_vectors = bool(op.query) and self._index is not None
        return compares_vectors or filters.has_more_than(_CONDITIONS_ON_LOOP, op.filter)

    def _group_gets(self, ops: list[Op]) -> dict[Partition, list[int]]:
        """Return the positions of the gets of a batch, by namespace."""
        by_labels: dict[Labels, list[int]] = {}
        for place, op in enumerate(ops):
            if isinstance(op, GetOp):
                by_labels.setdefault(tuple(op.namespace), []).append(place)
        return {partition_of(self._tenant, labels): places for labels, places in by_labels.items()}

    def _puts(self, ops: list[Op]) -> dict[Partition, Puts]:
        by_labels = find_last_puts((op for op in ops if isinstance(op, PutOp)), self._index)
        return {partition_of(self._tenant, labels): puts for labels, puts in by_labels.items()}

    def _put_if_unchanged(
        self, puts: Mapping[Partition, Puts], wanted: Mapping[str, Any], embedded: Embedded
    ) -> Program[bool]:
        ((partition, of_namespace),) = puts.items()
        where = labels_of(partition.thread)

        def is_unchanged(key: str, record: Record | None) -> bool:
            if record is None:
                value = None
            else:
                value = unpack(record.body, ItemName(key, where))
            return is_same(value, wanted[key])

        times = self._clock.make_stamps(len(of_namespace.places))
        seen_as = item_writes.Seen(tuple(wanted), is_unchanged, self._clock.now())
        writes = list(of_namespace.writes(times, _versions(), self._index, embedded))
        return item_writes.commit_if_unchanged(partition, writes, seen_as, self._budget)

    def _search(self, op: SearchOp, now: int, embedded: Embedded) -> Program[list[items.Hit[dict[str, Any]]]]:
        wanted = filters.parse_filter(op.filter or {})

        def judge(labels: Labels, record: Record) -> dict[str, Any] | None:
            value = unpack(record.body, ItemName(record.key[0], labels))
            if filters.accepts(wanted, value):
                return value
            return None

        prefix, everything = tuple(op.namespace_prefix), not wanted
        if op.query and self._index is not None:
            if self._index.is_stored_in(self._driver):
                find = yield from self._index.request(self._tenant, op, now, embedded)
                return (
                    yield from nearest_items.find_nearest_stored(
                        find, judge, offset=op.offset, limit=op.limit, everything=everything
                    )
                )
            rank = partial(self._index.candidates, self._driver, self._tenant, op, embedded)
            if self._driver.capabilities.removes_expired:
                removal = next(_versions())
            else:
                removal = None
            page = {"offset": op.offset, "limit": op.limit}
            return (yield from nearest_items.find_nearest(rank, judge, now=now, removal=removal, **page))
        if op.query and not self._has_ignored_a_query:
            self._has_ignored_a_query = True
            _log.warning(
                "a search by a query compares nothing, as this store has no index, and returns the latest "
                "items; open it with db.store(index={'text': True}) to compare words, or with 'dims' and "
                "'embed' to compare vectors (on a server: store.index in perdure.toml)"
            )
        if not self._driver.capabilities.searches_items:
            matching = items.search(
                self._tenant,
                prefix,
                judge,
                offset=op.offset,
                limit=op.limit,
                everything=everything,
                now=now,
            )
            return (yield from matching)
        matching = items.find(
            self._tenant,
            prefix,
            judge,
            holding=filters.find_patterns(wanted),
            bounds=filters.bounds(wanted),
            offset=op.offset,
            limit=op.limit,
            everything=everything,
            now=now,
        )
        return (yield from matching)


def _drive_one_by_one(programs: Iterable[Program[None]]) -> Program[None]:
    for program in programs:
        yield from program


async def _drive_side_by_side(
    programs: list[Program[None]], drive: Callable[[Program[None]], Awaitable[None]]
) -> None:
    """Drive programs, some at a time, and raise the first error when all that were begun have ended."""
    waiting = iter(programs)
    errors: list[BaseException] = []

    async def work() -> None:
        for program in waiting:
            if errors:
                return
            try:
                await drive(program)
            except BaseException as error:
                errors.append(error)
                raise

    if len(programs) == 1:
        await drive(programs[0])
        return
    await asyncio.gather(*(work() for _ in range(min(_AT_ONCE, len(programs)))), return_exceptions=True)
    if errors:
        raise errors[0]


def _list_texts(puts: Mapping[Partition, Puts]) -> Iterator[str]:
    """Yield the texts of the items of a batch that are embedded."""
    return (text for some in puts.values() for each in some.indexed.values() for text in each.texts)


def _group_searches(ops: list[Op]) -> Iterable[list[tuple[int, SearchOp]]]:
    """Group the searches of a batch: equal ones without a filter together, each other one alone."""
    same: dict[Any, list[tuple[int, SearchOp]]] = {}
    for place, op in enumerate(ops):
        if isinstance(op, SearchOp):
            # Filters may not be JSON, or may be equal in Python and different in JSON: each is a search of
            # its own.
            key = (tuple(op.namespace_prefix), op.limit, op.offset, op.query) if not op.filter else place
            same.setdefault(key, []).append((place, op))
    return same.values()


def _group_listings(ops: list[Op]) -> Iterable[list[tuple[int, ListNamespacesOp]]]:
    """Group the listings of a batch: equal ones together."""
    same: dict[Any, list[tuple[int, ListNamespacesOp]]] = {}
    for place, op in enumerate(ops):
        if isinstance(op, ListNamespacesOp):
            conditions = tuple((c.match_type, tuple(c.path)) for c in op.match_conditions or ())
            same.setdefault((conditions, op.max_depth, op.limit, op.offset), []).append((place, op))
    return same.values()


def _keep_unwritten(records: Mapping[str, Record], puts: Puts | None) -> list[Record]:
    return [record for key, record in records.items() if puts is None or key not in puts.ops]


def _versions() -> Iterator[int]:
    """Return versions for the writes of one batch, each to a different item: consecutive from a random one,
    as drawing each costs more than encoding a small item."""
    return count(secrets.randbits(_VERSION_BITS) + 1)


def _to_item(labels: Labels, record: Record) -> Item:
    (key,), fields = record.key, record.fields
    return Item(
        value=unpack(record.body, ItemName(key, labels)),
        key=key,
        namespace=labels,
        created_at=to_datetime(fields["created_at"]),
        updated_at=to_datetime(fields["updated_at"]),
    )


def _to_search_item(hit: items.Hit[dict[str, Any]]) -> SearchItem:
    (key,), fields = hit.record.key, hit.record.fields
    return SearchItem(
        namespace=hit.labels,
        key=key,
        value=hit.value,
        created_at=to_datetime(fields["created_at"]),
        updated_at=to_datetime(fields["updated_at"]),
        score=hit.score,
    )


def _copy_hit(hit: items.Hit[dict[str, Any]]) -> items.Hit[dict[str, Any]]:
    """Return the same hit with a value of its own."""
    return replace(hit, value=unpack(hit.record.body, f"item {hit.record.key[0]!r}"))
