"""A thread that has expired by its own time to live is neither listed nor counted, swept or not.

Covers perdure.engine.retention.expiring_threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import pytest

from perdure import Retention, RetentionRules
from perdure.database.base import handle_of
from perdure.database.blocking import SyncDatabase
from perdure.database.handle import DatabaseHandle
from perdure.engine.retention.expiring_threads import find_overdue
from perdure.model.ops import Fetch, FindListed, FindThreads
from perdure.retention.expiring_driver import ExpiringDriver, with_expired
from perdure.runtime import Runtime
from perdure.runtime.threads.order import Order, SortBy
from perdure.runtime.threads.threads import Threads
from tests.backends import BACKENDS
from tests.runtime.graphs import HOUR_US, Line, Storage, Talk, go, stored, working

SHORT = {"ttl": 30}
LISTING = ("sqlite", "postgresql", "d1")
RULES = {
    "no policy": RetentionRules(thread_ttl=True),
    "a long idle": RetentionRules(Retention(idle="90d"), thread_ttl=True),
}


@pytest.fixture(params=BACKENDS)
def each_storage(request: pytest.FixtureRequest) -> Iterator[Storage]:
    with stored(request.param) as storage:
        yield storage


@pytest.fixture
def talk() -> Talk:
    return Talk()


@pytest.fixture(params=LISTING)
def ordered(request: pytest.FixtureRequest) -> Iterator[Storage]:
    with stored(request.param) as storage:
        yield storage


def opened(storage: Storage, rules: RetentionRules) -> tuple[SyncDatabase, Line]:
    """Return a database with these rules, and its line."""
    database, line = storage.open()
    handle = handle_of(database)
    driver = ExpiringDriver(with_expired(handle.driver), rules)
    made = DatabaseHandle(driver, tenant=handle.tenant, digest=handle.digest, retention=rules)
    return SyncDatabase(made), line


async def found(threads: Threads, **asked: Any) -> list[str]:
    return [row.thread_id async for row in threads.index.search(**asked)]


async def filled(runtime: Runtime) -> list[str]:
    """Create threads of which every second one has a short time to live; return the names of the others."""
    for n in range(4):
        await runtime.threads.create(f"{n} lives", {"kind": "x"})
        await runtime.threads.create(f"{n} ends", {"kind": "x"}, SHORT)
    return [f"{n} lives" for n in range(4)]


def moved_on(runtime: Runtime, line: Line) -> None:
    line.ahead_us = HOUR_US
    runtime._context.clock._asked_at = None


@pytest.mark.each_backend
@pytest.mark.parametrize("which", RULES)
def test_every_page_and_count_leaves_out_threads_whose_own_time_to_live_is_over(
    each_storage: Storage, talk: Talk, which: str
) -> None:
    async def main() -> None:
        database, line = opened(each_storage, RULES[which])
        async with working(database, talk.graph, works=False) as runtime:
            threads, living = runtime.threads, await filled(runtime)
            assert await threads.index.count() == 8
            moved_on(runtime, line)
            for status in (None, "idle"):
                assert await threads.index.count(status=status) == 4
                for by in get_args(SortBy):
                    for descending in (True, False):
                        asked: dict[str, Any] = {"order": Order(by, descending), "status": status}
                        names = await found(threads, **asked)
                        assert sorted(names) == living, asked
                        for skip in range(5):
                            assert await found(threads, **asked, skip=skip, enough=2) == names[skip:], asked
            for metadata, number in (({"kind": "x"}, 4), ({"kind": "y"}, 0)):
                assert await threads.index.count(metadata=metadata) == number
                assert len(await found(threads, metadata=metadata)) == number
            assert len(await found(threads, metadata={"kind": "x"}, skip=3)) == 1
            hits = handle_of(database).driver.perform(FindThreads(""))
            assert [hit.partition.thread for hit in hits] == living

    go(main())


@pytest.mark.each_backend
def test_a_listing_follows_each_change_of_a_time_to_live(each_storage: Storage, talk: Talk) -> None:
    async def main() -> None:
        database, line = opened(each_storage, RULES["no policy"])
        async with working(database, talk.graph, works=False) as runtime:
            threads = runtime.threads
            for name in ("longer", "touched", "new again", "deleted"):
                await threads.create(name, {}, SHORT)
            for name in ("shorter", "keeps its state"):
                await threads.create(name, {}, {"ttl": 600})
            await threads.create("given one", {})
            await threads.change("longer", {}, {"ttl": 600})
            await threads.change("shorter", {}, SHORT)
            await threads.change("given one", {"more": 1}, SHORT)
            await threads.change("keeps its state", {}, {"ttl": 1, "strategy": "keep_latest"})
            await threads.remove("deleted")
            await threads.remove("new again")
            await threads.create("new again", {})
            line.ahead_us = HOUR_US // 4
            runtime._context.clock._asked_at = None
            await threads.touch("touched")
            line.ahead_us = HOUR_US * 7 // 10
            runtime._context.clock._asked_at = None
            living = ["keeps its state", "longer", "new again", "touched"]
            assert sorted(await found(threads)) == living
            assert await threads.index.count() == 4
            overdue = await handle_of(database).arun(find_overdue(""))
            assert overdue.names == {"shorter", "given one"}

    go(main())


def test_a_tagged_thread_is_listed_although_its_time_to_live_is_over(ordered: Storage, talk: Talk) -> None:
    async def main() -> None:
        database, line = opened(ordered, RULES["no policy"])
        async with working(database, talk.graph) as runtime:
            threads = runtime.threads
            await filled(runtime)
            for name in ("0 ends", "2 ends"):
                await runtime.wait(await runtime.accept(name, "hello"), 30)
            await threads.set_tag("2 ends", "kept")
            moved_on(runtime, line)
            expected = ["0 lives", "1 lives", "2 ends", "2 lives", "3 lives"]
            assert sorted(await found(threads)) == expected
            assert await threads.index.count() == 5
            assert sum([len(await found(threads, skip=skip, enough=1)) for skip in range(5)]) == 15

    go(main())


def test_many_expired_threads_are_left_out_of_short_pages(ordered: Storage, talk: Talk) -> None:
    """So many that they are read only as far as a page needs it."""

    async def main() -> None:
        database, line = opened(ordered, RULES["no policy"])
        async with working(database, talk.graph, works=False) as runtime:
            threads = runtime.threads
            for n in range(100):
                await threads.create(f"{n:03}", {}, SHORT if n % 10 else None)
            moved_on(runtime, line)
            names = [f"{n:03}" for n in range(0, 100, 10)]
            assert await threads.index.count() == 10
            order = Order("created_at", descending=False)
            pages = [await found(threads, order=order, skip=skip, enough=1) for skip in range(11)]
            assert pages == [names[skip:] for skip in range(11)]

    go(main())


def test_a_search_costs_one_small_request_more_where_no_thread_has_a_time_to_live(
    ordered: Storage, talk: Talk
) -> None:
    async def main() -> None:
        database, line = opened(ordered, RULES["no policy"])
        async with working(database, talk.graph, works=False) as runtime:
            for n in range(20):
                await runtime.threads.create(f"t{n}", {})
            asked: list[Any] = []

            async def note(effect: Any) -> None:
                asked.append(effect)

            line.before = note
            await handle_of(database).driver.aperform(FindListed("", skip=10, limit=2))
            assert [type(each) for each in asked] == [Fetch, FindListed]

    go(main())
