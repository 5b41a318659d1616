"""A sweep removes what a server's index and its crons hold of threads that are gone, and of no other."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

import perdure
from perdure.database.base import handle_of
from perdure.engine import documents
from perdure.engine.documents import Document
from perdure.engine.queue import crons
from perdure.engine.queue.crons import Due
from perdure.engine.retention import orphaned_records
from perdure.engine.retention.orphaned_records import YOUNG_US, remove_copies
from perdure.model.ops import Drop, Fetch, Now, Range
from perdure.model.program import Program, ask
from perdure.model.records import DOCUMENT, EXPIRING, LISTED, Partition
from perdure.retention.expiring_driver import with_expired
from perdure.retention.sweeper import RetentionOptions
from perdure.runtime import Runtime
from perdure.storage.port import Driver
from tests.backends import BACKENDS
from tests.runtime.graphs import Storage, Talk, go, stored, working
from tests.servers import valkey

DAY = {"ttl": 1440}
LATER_US = 2 * YOUNG_US
"""A time at which no copy is young, whatever the clocks of a runtime and its database differ by."""


@pytest.fixture(params=BACKENDS)
def storage(request: pytest.FixtureRequest) -> Iterator[Storage]:
    with stored(request.param) as storage:
        yield storage


@pytest.fixture
def memory() -> Iterator[Storage]:
    with stored("memory") as storage:
        yield storage


def copies(driver: Driver, tenant: str = "", collection: str = LISTED[0]) -> list[str]:
    """The names of the threads of which the index has an entry."""
    (found,) = driver.perform(Fetch(Partition(tenant, *LISTED), (Range(DOCUMENT, (collection,)),)))
    return [each.key[1] for each in found]


def find_all(runtime: Runtime, later_us: int, tenant: str = "") -> Program[None]:
    """All pages, by a clock that is so much later."""
    now = yield from ask(Now())
    after: str | None = ""
    while after is not None:
        budget = handle_of(runtime.database).budget
        after = yield from remove_copies(tenant, after, now + later_us, budget)


def sweep(runtime: Runtime, later_us: int = LATER_US, tenant: str = "") -> None:
    handle_of(runtime.database).run(find_all(runtime, later_us, tenant))


def drop(storage: Storage, *names: str, tenant: str = "") -> None:
    """Remove threads as a database does by itself."""
    for name in names:
        storage.driver.perform(Drop(Partition(tenant, name)))


def test_entries_of_threads_that_are_gone_are_removed_and_no_others(storage: Storage) -> None:
    async def fill(runtime: Runtime) -> None:
        for name in ("a", "b", "c", "d"):
            assert await runtime.threads.create(name, {"user": "ada"}, DAY if name in "bc" else None)
        assert await runtime.for_tenant("other").threads.create("a", {})

    async def main() -> None:
        async with working(storage.database(), Talk().graph, works=False) as runtime:
            await fill(runtime)
            drop(storage, "a", "b")
            await asyncio.to_thread(sweep, runtime, 0)
            assert copies(storage.driver) == ["a", "b", "c", "d"], "a thread may be about to be stored"
            await asyncio.to_thread(sweep, runtime)
            assert copies(storage.driver) == ["c", "d"]
            assert copies(storage.driver, collection=EXPIRING) == ["c"]
            found = [row.thread_id async for row in runtime.threads.index.search(metadata={"user": "ada"})]
            assert sorted(found) == ["c", "d"]
            assert copies(storage.driver, "other") == ["a"]

    go(main())


@pytest.mark.parametrize("page", [1, 2, 3, 100])
def test_pages_end_where_the_shorter_of_both_lists_does(
    memory: Storage, monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    monkeypatch.setattr(orphaned_records, "PAGE", page)
    listed, unlisted = [f"b{n}" for n in range(9)], [*(f"a{n}" for n in range(5)), "b3a", "b3b", "c"]

    async def main() -> None:
        async with working(memory.database(), Talk().graph, works=False) as runtime:
            for name in (*listed, *unlisted):
                assert await runtime.threads.create(name, {})
            for name in unlisted:
                await runtime.threads.index.remove(name)
            drop(memory, *listed[1::2], listed[8])
            sweep(runtime)
            assert copies(memory.driver) == listed[:8:2]
            drop(memory, *unlisted, *listed)
            sweep(runtime)
            assert copies(memory.driver) == []

    go(main())


def test_a_thread_that_is_created_again_meanwhile_keeps_its_entries(memory: Storage) -> None:
    reached = 0

    async def race(at: int) -> bool:
        """Create it again before a request of the removal; return False if there are not as many."""
        nonlocal reached
        async with working(memory.database(), Talk().graph, works=False) as runtime:
            names = [f"{at} {n}" for n in range(3)]
            for name in names:
                assert await runtime.threads.create(name, {"made": "first"}, DAY)
            drop(memory, *names)
            program = find_all(runtime, LATER_US)
            answer: Any = None
            has_come = False
            for step in count():
                try:
                    effect = program.send(answer)
                except StopIteration:
                    break
                if step == at:
                    assert await runtime.threads.create(names[1], {"made": "again"}, DAY)
                    has_come = True
                answer = memory.driver.perform(effect)
            if has_come:
                reached += 1
                assert copies(memory.driver) == [names[1]]
                assert copies(memory.driver, collection=EXPIRING) == [names[1]]
                again = runtime.threads.index.search(metadata={"made": "again"})
                assert [row.thread_id async for row in again] == [names[1]]
                await runtime.threads.remove(names[1])
            assert copies(memory.driver) == []
        return has_come

    at = 0
    while go(race(at)):
        at += 1
    assert reached >= 6


def test_a_sweep_removes_entries_and_crons_of_threads_that_are_gone(
    memory: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with working(memory.database(), Talk().graph, works=False) as runtime:
            handle = handle_of(runtime.database)
            for name in ("gone", "kept"):
                assert await runtime.threads.create(name, {})
            await runtime.accept("program", "hello")
            for number, bound in enumerate(("gone", "kept", "program", None)):
                new = Due({"thread_id": bound, "input": "secret"}, None)
                handle.run(crons.create(crons.place(""), str(bound), new, 1, number + 1))
            drop(memory, "gone")
            monkeypatch.setattr(orphaned_records, "YOUNG_US", -YOUNG_US)
            planned = await perdure.Database(handle).apply_retention(
                RetentionOptions(dry_run=True, share=1.0)
            )
            assert planned is not None
            assert copies(memory.driver) == ["gone", "kept"]
            await perdure.Database(handle).apply_retention(RetentionOptions(all_tenants=True, share=1.0))
            assert copies(memory.driver) == ["kept"]
            left = handle.run(crons.read_all_crons(crons.place("")))
            assert sorted(cron.id for cron in left) == ["None", "kept", "program"]

    go(main())


def test_threads_that_redis_removes_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orphaned_records, "YOUNG_US", -YOUNG_US)

    async def main(url: str) -> None:
        async with (
            perdure.connect(f"{url}&ttl=1s", migrate=True) as database,
            Runtime(database, {"agent": Talk().graph}, works=False, observers=()) as runtime,
        ):
            driver = with_expired(handle_of(database).driver)
            for number in range(20):
                assert await runtime.threads.create(f"t{number}", {"user": "ada"}, DAY)
            await asyncio.sleep(1.5)
            assert [row async for row in runtime.threads.index.search()] == []
            assert len(await asyncio.to_thread(copies, driver)) == 20
            assert await runtime.threads.create("new", {"user": "ada"}) is not None
            assert await database.apply_retention(RetentionOptions(all_tenants=True, share=1.0))
            left = await asyncio.to_thread(copies, driver)
            assert set(left) <= {"new"}
            assert await asyncio.to_thread(copies, driver, "", EXPIRING) == []

    with valkey.empty() as url:
        go(main(url))


def test_an_old_copy_of_a_thread_with_a_document_stays(memory: Storage) -> None:
    """Whatever the time of the copy is."""

    async def main() -> None:
        async with working(memory.database(), Talk().graph, works=False) as runtime:
            await runtime.threads.create("a", {})
            found = handle_of(runtime.database).run(documents.get(Partition("", "a"), "thread", ""))
            assert found is not None
            await runtime.threads.index.write("a", Document("", found.body, 1, found.version + 1))
            sweep(runtime)
            assert copies(memory.driver) == ["a"]

    go(main())
