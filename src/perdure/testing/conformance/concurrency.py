"""Contract of concurrent writes by many OS threads and tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event
from typing import TypeVar

from perdure.errors import PerdureError
from perdure.model.ops import (
    Commit,
    Committed,
    Delete,
    Drop,
    Expect,
    Fetch,
    FindThreads,
    Get,
    Put,
    Range,
    Stage,
)
from perdure.model.records import CHECKPOINT, CHUNK, HEAD, TAG, WRITE, Partition
from perdure.storage.port import Driver
from perdure.testing.conformance import rows
from perdure.testing.conformance.rows import HERE

WRITERS = 12

T = TypeVar("T")


def at_once(count: int, work: Callable[[int], T]) -> list[T]:
    """Return the results of ``work(0)`` to ``work(count - 1)``, each in an OS thread, all started
    together."""
    start = Barrier(count)

    def begin(n: int) -> T:
        start.wait()
        return work(n)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(begin, range(count)))


class Concurrency:
    """Contract of a driver under many callers."""

    def test_of_many_os_threads_one_wins_a_compare_and_set(self, driver: Driver) -> None:
        rows.store_ops(driver, rows.head("", "c0", version=1))
        for version in range(1, 8):
            ops = [rows.head("", f"c{n}", n, expect=version, version=version + 1) for n in range(WRITERS)]
            won = at_once(WRITERS, lambda n: rows.commit(driver, ops[n], rows.tag(f"{version}-{n}")))  # noqa: B023
            assert won.count(True) == 1, f"{won.count(True)} writers won one compare-and-set"
            record = rows.read(driver, HEAD, "")
            assert record.fields["checkpoint_id"] == f"c{won.index(True)}"
            tags = [k for (k,) in rows.keys(driver, Range(TAG)) if k.startswith(f"{version}-")]
            assert tags == [f"{version}-{won.index(True)}"], "a loser's other operations were written"

    def test_of_many_os_threads_one_makes_an_absent_record(self, driver: Driver) -> None:
        for n in range(8):
            won = at_once(WRITERS, lambda _: rows.commit(driver, rows.tag(f"t{n}", Expect.ABSENT)))  # noqa: B023
            assert won.count(True) == 1

    def test_of_many_tasks_one_wins_a_compare_and_set(self, driver: Driver) -> None:
        async def race() -> list[bool]:
            outcomes = await asyncio.gather(
                *(
                    driver.aperform(
                        Commit(HERE, (rows.head("", f"c{n}", expect=Expect.ABSENT), rows.tag(f"{n}")))
                    )
                    for n in range(WRITERS)
                )
            )
            return [isinstance(outcome, Committed) for outcome in outcomes]

        won = asyncio.run(race())
        assert won.count(True) == 1
        assert rows.keys(driver, Range(TAG)) == [(str(won.index(True)),)]

    def test_increments_under_retry_lose_none(self, driver: Driver) -> None:
        rows.store_ops(driver, rows.head(seq=0, version=1))
        rounds = 10

        def increment(_: int) -> None:
            for _ in range(rounds):
                while True:
                    record = rows.read(driver, HEAD, "")
                    put = rows.head(
                        seq=record.fields["seq"] + 1, expect=record.version, version=record.version + 1
                    )
                    if rows.commit(driver, put):
                        break

        at_once(6, increment)
        record = rows.read(driver, HEAD, "")
        assert (record.fields["seq"], record.version) == (6 * rounds, 6 * rounds + 1)

    def test_tasks_and_os_threads_share_a_driver(self, driver: Driver) -> None:
        async def tasks(n: int) -> None:
            await asyncio.gather(
                *(driver.aperform(Commit(HERE, (rows.write(f"task{n}", i),))) for i in range(10))
            )
            (answer,) = await driver.aperform(Fetch(HERE, (Range(WRITE, ("", "c", f"task{n}")),)))
            assert len(answer) == 10, "a task does not read its own writes"

        at_once(4, lambda n: asyncio.run(tasks(n)))
        assert len(rows.keys(driver, Range(WRITE))) == 40

    def test_every_caller_reads_its_own_writes(self, driver: Driver) -> None:
        def work(n: int) -> None:
            at = Partition("acme", f"thread{n}")
            for i in range(10):
                rows.store_ops(driver, rows.checkpoint(f"c{i}", i), rows.head("", f"c{i}", i), at=at)
                heads, found = driver.perform(Fetch(at, (Get(HEAD, ("",)), Range(CHECKPOINT))))
                assert heads[0].fields["seq"] == i
                assert len(found) == i + 1
            assert at in [f.partition for f in driver.perform(FindThreads("acme"))]

        at_once(WRITERS, work)

    def test_a_write_that_fails_does_not_fail_its_neighbours(self, driver: Driver) -> None:
        """Commits may share a transaction. The bad one has a number that a database may refuse: whether it is
        refused or stored, the others are stored."""

        async def crowd() -> list[object]:
            return await asyncio.gather(
                *(
                    driver.aperform(Commit(HERE, (rows.checkpoint(f"c{n}", 1 << 70 if n == 7 else n),)))
                    for n in range(24)
                ),
                return_exceptions=True,
            )

        outcomes = asyncio.run(crowd())
        bad = outcomes.pop(7)
        assert isinstance(bad, Committed | PerdureError), f"a driver's client's error came through: {bad!r}"
        assert outcomes == [Committed()] * 23
        found = {key[1] for key in rows.keys(driver, Range(CHECKPOINT, bodies=False))} - {"c7"}
        assert found == {f"c{n}" for n in range(24)} - {"c7"}
        rows.store_ops(driver, rows.checkpoint("after"))

    def test_a_refused_commit_does_not_refuse_its_neighbours(self, driver: Driver) -> None:
        async def crowd() -> list[object]:
            return await asyncio.gather(
                *(
                    driver.aperform(
                        Commit(
                            Partition("acme", f"t{n % 3}"),
                            (rows.tag(f"{n}", Expect.PRESENT if n % 4 == 0 else Expect.ABSENT),),
                        )
                    )
                    for n in range(24)
                )
            )

        outcomes = asyncio.run(crowd())
        assert [isinstance(o, Committed) for o in outcomes] == [n % 4 != 0 for n in range(24)]
        found = {k for t in range(3) for (k,) in rows.keys(driver, Range(TAG), Partition("acme", f"t{t}"))}
        assert found == {str(n) for n in range(24) if n % 4 != 0}

    def test_a_fetch_of_several_items_is_of_one_moment(self, driver: Driver) -> None:
        def state(n: int) -> tuple[Put, ...]:
            return (rows.head(seq=n), *(rows.tag(f"t{i}", version=n) for i in range(6)), rows.gc(n))

        rows.store_ops(driver, *state(1))
        done = Event()

        def work(n: int) -> None:
            if n == 0:
                try:
                    for version in range(2, 150):
                        rows.store_ops(driver, *state(version))
                finally:
                    done.set()
                return
            while not done.is_set():
                items: tuple[Get | Range, ...] = (
                    Get(HEAD, ("",)),
                    Range(TAG),
                    *(Get(TAG, (f"t{i}",)) for i in range(6)),
                )
                heads, *tags = driver.perform(Fetch(HERE, items))
                seen = {heads[0].fields["seq"], *(r.version for answer in tags for r in answer)}
                assert len(seen) == 1, f"one fetch saw the versions {sorted(seen)}"

        at_once(4, work)

    def test_staging_from_many_callers_keeps_the_youngest_generation(self, driver: Driver) -> None:
        digest = b"d" * 16

        def work(n: int) -> None:
            for generation in range(n, n + 10):
                driver.perform(Stage(HERE, (rows.chunk(digest, generation),)))

        at_once(WRITERS, work)
        record = rows.read(driver, CHUNK, digest)
        assert record.fields["generation"] == WRITERS - 1 + 9

    def test_what_is_stored_while_an_empty_name_is_removed_stays(self, driver: Driver) -> None:
        def work(n: int) -> None:
            for i in range(15):
                if n < 2:
                    driver.perform(Drop(HERE, if_empty=True))
                    continue
                rows.store_ops(driver, rows.tag(f"{n}-{i}"))
                assert rows.get(driver, TAG, f"{n}-{i}") is not None, "a record that was stored is gone"
                rows.store_ops(driver, Delete(TAG, (f"{n}-{i}",), Expect.PRESENT))
            if n > 1:
                rows.store_ops(driver, rows.tag(f"{n}"))

        at_once(4, work)
        assert rows.keys(driver, Range(TAG)) == [("2",), ("3",)]

    def test_drop_beside_commits_leaves_whole_commits_or_none(self, driver: Driver) -> None:
        def work(n: int) -> None:
            for i in range(15):
                if n == 0:
                    driver.perform(Drop(HERE))
                else:
                    rows.store_ops(driver, rows.tag(f"a{n}-{i}"), rows.write(f"a{n}-{i}", 0))

        at_once(4, work)
        tags = {key[0] for key in rows.keys(driver, Range(TAG))}
        assert tags == {key[2] for key in rows.keys(driver, Range(WRITE))}
