"""Threads are found by what they are now, in order, and those that are passed over are not read."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, get_args

import pytest

from perdure import Retention
from perdure.database.opening import connect
from perdure.model.ops import Fetch, FindListed, Get
from perdure.model.runs.lifecycle import Status
from perdure.runtime import Runtime
from perdure.runtime.clock import DatabaseClock
from perdure.runtime.threads import order as order_of_threads
from perdure.runtime.threads.metadata_patterns import patterns_of
from perdure.runtime.threads.order import Order, SortBy
from perdure.runtime.threads.threads import THERE, Threads
from tests.runtime.graphs import Storage, Talk, eventually, go, settings, stored, working

STATUSES: tuple[Status, ...] = get_args(Status)


async def _filled(runtime: Runtime, threads: Threads, talk: Talk) -> None:
    """Threads of every status, some of which came to it by an edit."""
    for name in ("empty", "talked", "failed", "edited", "edited to go on", "asks", "busy"):
        await threads.create(name, {"name": name})
    for name in ("talked", "edited", "edited to go on"):
        await runtime.wait(
            await runtime.submit(name, {"messages": [("user", "hello")]}, precondition=THERE), 30
        )
    for name, text in (("failed", "boom"), ("asks", "ask")):
        await runtime.wait(await runtime.submit(name, {"messages": [("user", text)]}, precondition=THERE), 30)
    for name, goes_on in (("edited", False), ("edited to go on", True)):
        row = await threads.get(name)
        assert row.run is not None
        await threads.note_edit(name, row.run.id, goes_on=goes_on)
    await runtime.submit("busy", {"messages": [("user", "hold on")]}, precondition=THERE)
    await eventually(lambda: talk.under_way)


@pytest.fixture(params=["sqlite", "postgresql", "d1"])
def ordered(request: pytest.FixtureRequest) -> Iterator[Storage]:
    """A storage that keeps a listing."""
    with stored(request.param) as storage:
        yield storage


async def found(threads: Threads, **asked: Any) -> list[str]:
    return [row.thread_id async for row in threads.index.search(**asked)]


def test_a_search_by_status_finds_what_a_look_at_each_thread_shows(storage: Storage, talk: Talk) -> None:
    async def main() -> None:
        async with working(storage.database(), talk.graph, settings=settings(attempts=1)) as runtime:
            threads = runtime.threads
            await _filled(runtime, threads, talk)
            every = await found(threads)
            rows = {name: await threads.get(name) for name in every}
            assert {rows[name].status for name in every} == set(STATUSES)
            for by in get_args(SortBy):
                for descending in (True, False):
                    order = Order(by, descending)
                    names = await found(threads, order=order)
                    keys = [getattr(rows[name], by) for name in names]
                    assert sorted(names) == sorted(every)
                    assert keys == sorted(keys, reverse=descending), (by, descending)
                    for status in STATUSES:
                        those = [name for name in names if rows[name].status == status]
                        assert await found(threads, order=order, status=status) == those
                        for skip in range(len(those) + 1):
                            asked = {"order": order, "status": status, "skip": skip}
                            assert await found(threads, **asked) == those[skip:], (asked, those)
            for status in STATUSES:
                number = sum(row.status == status for row in rows.values())
                assert await threads.index.count(status=status) == number
            named = {"name": "edited"}
            assert await found(threads, metadata=named) == ["edited"]
            assert await threads.index.count(metadata=named) == 1
            assert await found(threads, sees=lambda metadata: metadata == named) == ["edited"]
            talk.gate.set()

    go(main())


def test_a_page_far_down_is_read_without_those_above_it(talk: Talk) -> None:
    """However many threads there are, only those of the page are fetched; a count fetches none."""

    async def main() -> None:
        database, line = storage.open()
        async with working(database, talk.graph) as runtime:
            threads = runtime.threads
            for n in range(300):
                await threads.create(f"t{n:03}", {})
            fetched: set[str] = set()
            searched: list[type] = []

            async def note(effect: Any) -> None:
                if isinstance(effect, FindListed):
                    searched.append(type(effect))
                if isinstance(effect, Fetch) and effect.partition.thread.startswith("t"):
                    fetched.add(effect.partition.thread)

            line.before = note
            for order in (Order(), Order("created_at"), Order("updated_at", descending=False)):
                for status in (None, "idle"):
                    fetched.clear()
                    rows = threads.index.search(order=order, status=status, skip=200)
                    page = [row.thread_id async for row, _ in _first(rows, 5)]
                    first = 99 if order.descending else 200
                    assert page == [f"t{first - n if order.descending else first + n:03}" for n in range(5)]
                    assert len(fetched - {"threads"}) <= 40
            searched.clear()
            fetched.clear()
            rows = threads.index.search(skip=200, enough=70)
            assert len([row async for row, _ in _first(rows, 70)]) == 70
            assert (len(searched), len(fetched - {"threads"})) == (1, 70)
            # More are there for a caller that reads on.
            assert len([row async for row in threads.index.search(enough=7)]) == 300
            fetched.clear()
            assert await threads.index.count(status="idle") == 300
            assert not fetched - {"threads"}

    with stored("sqlite") as storage:
        go(main())


def test_threads_of_the_same_time_are_each_found_once(
    ordered: Storage, talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages end among them."""

    async def stopped(clock: DatabaseClock) -> int:
        return 1_800_000_000_000_000

    monkeypatch.setattr(DatabaseClock, "now", stopped)
    monkeypatch.setattr(order_of_threads, "_SPAN", 4)

    async def main() -> None:
        async with working(ordered.database(), talk.graph, works=False) as runtime:
            threads = runtime.threads
            names = [f"t{n}" for n in range(9)]
            for number, name in enumerate(names):
                assert await threads.index.count() == number
                await threads.create(name, {"kind": "one" if number % 2 else "two"})
            assert len({row.updated_at async for row in threads.index.search()}) == 1
            for limit in (1, 2, 7):
                monkeypatch.setattr(order_of_threads, "_FIRST_PAGE", limit)
                monkeypatch.setattr(order_of_threads, "_PAGE", limit)
                for by, descending in itertools.product(get_args(SortBy), (True, False)):
                    order = Order(by, descending)
                    every = await found(threads, order=order)
                    assert sorted(every) == names
                    assert await found(threads, order=order, skip=4) == every[4:]
                    ones = [name for name in every if int(name[1:]) % 2]
                    assert await found(threads, order=order, metadata={"kind": "one"}) == ones

    go(main())


def test_a_search_by_metadata_reads_only_threads_that_may_match(ordered: Storage, talk: Talk) -> None:
    """Whether the metadata or the viewer's filter restrict it, and whether a thread was changed or not."""

    async def main() -> None:
        database, line = ordered.open()
        async with working(database, talk.graph, works=False) as runtime:
            threads = runtime.threads
            names = [f"t{n:03}" for n in range(130)]
            for n, name in enumerate(names):
                await threads.create(name, {"owner": f"u{n % 10}"})
            for name in ("t007", *names[20:27]):
                await threads.change(name, {"more": 1})
            fetched: set[str] = set()

            async def note(effect: Any) -> None:
                if isinstance(effect, Fetch):
                    fetched.update({effect.partition.thread} & set(names))
                    fetched.update(
                        each.key[1] for each in effect.items if isinstance(each, Get) and each.key[1:]
                    )

            line.before = note
            mine = [name for name in names if name.endswith("7")]
            metadata = {"owner": "u7"}
            for asked in (
                {"metadata": metadata},
                {"sees": lambda held: held["owner"] == "u7", "holding": patterns_of(metadata)},
            ):
                for order in (Order("created_at", descending=False), Order("thread_id", descending=False)):
                    fetched.clear()
                    assert await found(threads, order=order, **asked) == mine
                    # The last one of a page is read whether it matches or not.
                    assert len(fetched & set(names)) <= len(mine) + 3
                    assert await found(threads, order=order, skip=4, **asked) == mine[4:]
                assert await threads.index.count(**asked) == len(mine)
            steps = [step async for step in threads.index.steps(metadata=metadata, order=Order("created_at"))]
            # Places count the threads that were left out, so that a search can go on from each.
            places = {row.thread_id: place for place, row in steps if row is not None}
            assert places == {name: len(names) - names.index(name) for name in mine}
            later = threads.index.steps(metadata=metadata, order=Order("created_at"), skip=places["t087"])
            ids = [row.thread_id async for _, row in later if row is not None]
            assert ids == [name for name in reversed(mine) if name < "t087"]

    go(main())


@pytest.mark.parametrize("options", [{"encryption_key": bytes(32)}, {"retention": Retention(idle="30d")}])
def test_where_the_database_cannot_leave_threads_out_the_same_are_found(
    tmp_path: Path, talk: Talk, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As entries are sealed, or as expired threads do not count."""
    monkeypatch.setattr(order_of_threads, "_FIRST_PAGE", 7)
    monkeypatch.setattr(order_of_threads, "_PAGE", 7)
    read, ago = DatabaseClock.now, 0

    async def now(clock: DatabaseClock) -> int:
        return await read(clock) - ago

    @asynccontextmanager
    async def opened() -> AsyncIterator[Threads]:
        async with (
            connect(f"sqlite:///{tmp_path / 'threads.db'}", migrate=True, **options) as database,
            Runtime(database, {"agent": talk.graph}, settings=settings(), observers=()) as runtime,
        ):
            yield runtime.threads

    async def main() -> None:
        nonlocal ago
        if "retention" in options:
            ago = 40 * 24 * 3600 * 1_000_000
            async with opened() as threads:
                for n in range(20):
                    await threads.create(f"expired {n}", {"owner": f"u{n % 5}"})
            ago = 0
        async with opened() as threads:
            for n in range(30):
                await threads.create(f"t{n:03}", {"owner": f"u{n % 5}"})
            order, mine = Order("created_at", descending=False), {"owner": "u3"}
            places = [place async for place in threads.index.steps(metadata=mine, order=order)]
            assert [(place, row.thread_id) for place, row in places if row is not None] == [
                (n + 1, f"t{n:03}") for n in range(3, 30, 5)
            ]
            assert await threads.index.count(metadata=mine) == 6
            assert await threads.index.count() == 30

    monkeypatch.setattr(DatabaseClock, "now", now)
    go(main())


async def _first(rows: Any, number: int) -> Any:
    async for row in rows:
        yield row, None
        number -= 1
        if not number:
            return


@pytest.mark.parametrize("by", get_args(SortBy))
@pytest.mark.parametrize("descending", [True, False])
def test_each_thread_that_stays_is_found_once_while_others_go(by: SortBy, *, descending: bool) -> None:
    """The listing is read in pages. Meanwhile threads that were found are removed or written to, and others
    are created."""

    async def main() -> None:
        async with working(storage.database(), Talk().graph) as runtime:
            threads = runtime.threads
            names = [f"t{n:03}" for n in range(330)]
            for name in names:
                await threads.create(name, {"kind": "old"})
            met: list[str] = []
            async for row in threads.index.search(metadata={"kind": "old"}, order=Order(by, descending)):
                met.append(row.thread_id)
                if len(met) in (1, 90):
                    # All that were found go, but for those that are written to: these move.
                    for name in met[:-3:2]:
                        await threads.remove(name)
                    for name in met[-3:]:
                        await threads.change(name, {"touched": len(met)})
                    await threads.create(f"new {len(met)}", {"kind": "new"})
            assert sorted(met) == names

    with stored("sqlite") as storage:
        go(main())
