"""Contract of partitions: isolation of threads and tenants, listing, and removal."""

from __future__ import annotations

import threading
from contextlib import suppress

from perdure.errors import Unavailable
from perdure.model.ops import (
    Check,
    Commit,
    Committed,
    Delete,
    Drop,
    Expect,
    Fetch,
    FindRuns,
    FindThreads,
    Get,
    Range,
    Refused,
    Stage,
)
from perdure.model.records import CHECKPOINT, CHUNK, EPOCH, GC, HEAD, LANE, TAG, WRITE, Partition
from perdure.storage.port import Driver
from perdure.testing.conformance import rows
from perdure.testing.conformance.rows import HERE, NAMES

NEIGHBOURS = (
    Partition("acme", "thread2"),
    Partition("acme", "Thread"),
    Partition("acme", "thread\0"),
    Partition("ACME", "thread"),
    Partition("", "thread"),
    Partition("acme\0thread", "x"),
    Partition("acme", "\0thread"),
    Partition("acme\0", "thread"),
    Partition("acm", "ethread"),
)


class Partitions:
    """Contract of isolation, ``Find``, ``Drop`` and ``close``."""

    def test_partitions_do_not_see_each_other(self, driver: Driver) -> None:
        for n, at in enumerate((HERE, *NEIGHBOURS)):
            assert rows.everything(driver, at) == [], f"{at} sees what another partition holds"
            rows.store_ops(driver, *rows.every_kind(f"mark{n}", n + 1), at=at)
        for n, at in enumerate((HERE, *NEIGHBOURS)):
            found = rows.everything(driver, at)
            assert len(found) == len(rows.every_kind())
            assert {r.version for r in found} <= {0, n + 1}
            bodies = {r.body for r in found if r.kind.body}
            assert bodies == {f"mark{n}".encode()}

    def test_expectations_are_checked_in_their_own_partition(self, driver: Driver) -> None:
        rows.store_ops(driver, rows.head(version=5))
        for at in NEIGHBOURS:
            assert not rows.commit(driver, Check(HEAD, ("",), 5), at=at)
            assert rows.commit(driver, rows.head(version=1, expect=Expect.ABSENT), at=at)
            assert not rows.commit(driver, Delete(HEAD, ("",), 5), at=at)
        record = rows.read(driver, HEAD, "")
        assert record.version == 5

    def test_writes_and_deletes_stay_in_their_partition(self, driver: Driver) -> None:
        for at in (HERE, *NEIGHBOURS):
            rows.store_ops(driver, rows.chunk(b"d" * 16, 1), at=at)
        driver.perform(Stage(HERE, (rows.chunk(b"d" * 16, 9),)))
        rows.store_ops(driver, Delete(CHUNK, (b"d" * 16,)), at=NEIGHBOURS[0])
        assert rows.everything(driver, NEIGHBOURS[0]) == []
        for at in NEIGHBOURS[1:]:
            record = rows.read(driver, CHUNK, b"d" * 16, at=at)
            assert record.fields["generation"] == 1

    def test_drop_removes_its_partition_and_no_other(self, driver: Driver) -> None:
        for at in (HERE, *NEIGHBOURS):
            rows.store_ops(driver, *rows.every_kind(), at=at)
        driver.perform(Drop(HERE))
        assert rows.everything(driver) == []
        for at in NEIGHBOURS:
            assert len(rows.everything(driver, at)) == len(rows.every_kind()), f"dropping {HERE} emptied {at}"

    def test_drop_is_repeatable_and_needs_nothing_to_drop(self, driver: Driver) -> None:
        driver.perform(Drop(HERE))
        rows.store_ops(driver, *rows.every_kind())
        driver.perform(Drop(HERE))
        driver.perform(Drop(HERE))
        assert driver.perform(FindThreads(None)) == ()

    def test_a_drop_is_carried_out_only_if_its_checks_hold(self, driver: Driver) -> None:
        rows.store_ops(driver, *rows.every_kind("ns", 7))
        rows.store_ops(driver, *rows.every_kind("ns", 7), at=NEIGHBOURS[0])
        everything = rows.everything(driver)
        holding = (Check(HEAD, ("ns",), 7), Check(LANE, ("none",), Expect.ABSENT))
        for failing in (
            Check(HEAD, ("ns",), 8),
            Check(HEAD, ("ns",), Expect.ABSENT),
            Check(TAG, ("none",), Expect.PRESENT),
            Check(GC, (), Expect.ABSENT),
            Check(EPOCH, (), 99),
        ):
            at = Refused(failing.kind, failing.key)
            checks = (*(check for check in holding if check[:2] != failing[:2]), failing)
            assert driver.perform(Drop(HERE, checks)) == at
            assert rows.everything(driver) == everything
        assert driver.perform(Drop(HERE, holding)) == Committed()
        assert rows.everything(driver) == []
        assert len(rows.everything(driver, NEIGHBOURS[0])) == len(everything)
        assert driver.perform(Drop(HERE, holding)) == Refused(HEAD, ("ns",))
        assert driver.perform(Drop(HERE, holding[1:])) == Committed(), (
            "nothing is stored that has to be absent"
        )
        assert [found.partition for found in driver.perform(FindThreads(None))] == [NEIGHBOURS[0]]

    def test_of_a_drop_and_writers_at_once_nothing_that_was_written_is_dropped(self, driver: Driver) -> None:
        """A drop that expects a queue record unchanged, beside writers that each raise its version."""
        for n in range(8):
            at = Partition("acme", f"raced{n}")
            rows.store_ops(driver, rows.lane("inbox", None), at=at)
            outcomes: list[bool] = []
            start = threading.Barrier(3)

            def write(at: Partition = at, start: threading.Barrier = start) -> None:
                start.wait()
                outcomes.append(rows.commit(driver, rows.lane("inbox", 5, 1, 2), rows.inbox(1), at=at))  # noqa: B023

            def drop(at: Partition = at, start: threading.Barrier = start) -> None:
                start.wait()
                driver.perform(Drop(at, (Check(LANE, ("inbox",), 1),)))

            threads = [threading.Thread(target=work) for work in (write, drop)]
            for thread in threads:
                thread.start()
            start.wait()
            for thread in threads:
                thread.join()
            (written,) = outcomes
            assert len(rows.everything(driver, at)) == (2 if written else 0)

    def test_a_dropped_partition_starts_anew(self, driver: Driver) -> None:
        rows.store_ops(driver, *rows.every_kind("old", 7))
        rows.store_ops(driver, rows.tag("other"), at=NEIGHBOURS[0])
        driver.perform(Drop(HERE))
        assert not rows.commit(driver, Check(HEAD, ("old",), 7))
        assert not rows.commit(driver, rows.gc(8, 7))
        for n in range(20):
            # Other partitions are created meanwhile: a driver with numbers must not reuse the old number.
            rows.store_ops(driver, rows.tag("new"), at=Partition("acme", f"new{n}"))
            assert len(rows.everything(driver, Partition("acme", f"new{n}"))) == 1
        rows.store_ops(driver, rows.head(version=1, expect=Expect.ABSENT))
        assert [r.kind for r in rows.everything(driver)] == [HEAD]

    def test_the_catalogue_lists_threads_in_order_and_in_pages(self, driver: Driver) -> None:
        names = [name for name in NAMES if name]
        for name in reversed(names):
            rows.store_ops(driver, rows.tag("t"), at=Partition("acme", name))
            rows.store_ops(driver, rows.tag("t"), at=Partition("bull", name))
        for tenant, expected in (
            ("acme", [Partition("acme", n) for n in sorted(names)]),
            (None, [Partition(t, n) for t in ("acme", "bull") for n in sorted(names)]),
            ("none", []),
        ):
            assert [f.partition for f in driver.perform(FindThreads(tenant))] == expected
            for size in (1, 7, len(expected) or 1):
                paged: list[Partition] = []
                while page := driver.perform(
                    FindThreads(tenant, after=paged[-1] if paged else None, limit=size)
                ):
                    assert len(page) <= size
                    paged += [f.partition for f in page]
                assert paged == expected

    def test_a_thread_is_in_the_catalogue_while_it_holds_anything(self, driver: Driver) -> None:
        def find() -> list[Partition]:
            return [f.partition for f in driver.perform(FindThreads("acme"))]

        assert find() == []
        assert not rows.commit(driver, Check(GC, (), Expect.PRESENT))
        assert find() == [], "a refused commit made a thread"
        rows.store_ops(driver, rows.write("t", 0))
        assert find() == [HERE]
        driver.perform(Drop(HERE))
        assert find() == []
        driver.perform(Stage(HERE, (rows.chunk(b"d" * 16),)))
        assert find() == [HERE]

    def test_the_name_of_a_partition_goes_once_it_holds_nothing(self, driver: Driver) -> None:
        other = Partition("acme", "other")
        for each in rows.every_kind("old", 7):
            rows.store_ops(driver, each)
            driver.perform(Drop(HERE, if_empty=True))
            assert len(rows.everything(driver)) == 1, f"a record of the kind {each.kind.name} was removed"
            rows.store_ops(driver, Delete(each.kind, each.key))
            driver.perform(Drop(HERE, if_empty=True))
            assert driver.perform(FindThreads("acme")) == ()
        rows.store_ops(driver, rows.tag("t"))
        rows.store_ops(driver, rows.tag("t"), at=other)
        driver.perform(Drop(HERE, if_empty=True))
        driver.perform(Drop(Partition("acme", "none"), if_empty=True))
        assert [f.partition for f in driver.perform(FindThreads("acme"))] == [other, HERE]

    def test_checkpoints_are_found_by_run(self, driver: Driver) -> None:
        other, foreign = Partition("acme", "other"), Partition("bull", "thread")
        rows.store_ops(
            driver, rows.checkpoint("a", run_id="r1"), rows.checkpoint("b", namespace="n", run_id="r1")
        )
        rows.store_ops(driver, rows.checkpoint("c", run_id="r2"), rows.checkpoint("d"))
        rows.store_ops(driver, rows.checkpoint("e", run_id="r1"), at=other)
        rows.store_ops(driver, rows.checkpoint("f", run_id="r1"), at=foreign)

        def find(tenant: str | None, run_id: str) -> set[tuple[Partition, str]]:
            answer = driver.perform(FindRuns(tenant, run_id))
            assert all(f.record is not None and f.record.kind is CHECKPOINT for f in answer)
            assert all(f.record is not None and f.record.fields["run_id"] == run_id for f in answer)
            return {(f.partition, f.record.key[1]) for f in answer if f.record is not None}

        assert find("acme", "r1") == {(HERE, "a"), (HERE, "b"), (other, "e")}
        assert find(None, "r1") == {(HERE, "a"), (HERE, "b"), (other, "e"), (foreign, "f")}
        assert find("bull", "r1") == {(foreign, "f")}
        assert find("acme", "R1") == set()
        assert find("acme", "") == set()
        assert len(driver.perform(FindRuns("acme", "r1", limit=2))) == 2
        rows.store_ops(driver, rows.checkpoint("a", run_id="r3"), Delete(CHECKPOINT, ("n", "b")))
        driver.perform(Drop(other))
        assert find("acme", "r1") == set()
        assert find("acme", "r3") == {(HERE, "a")}

    def test_a_bulk_of_threads_stays_apart(self, driver: Driver) -> None:
        threads = [Partition(f"tenant{n % 3}", f"thread{n}") for n in range(60)]
        for n, at in enumerate(threads):
            rows.store_ops(driver, rows.head("", str(n)), rows.write("t", n), at=at)
        for n, at in enumerate(threads):
            heads, writes, tags = driver.perform(Fetch(at, (Get(HEAD, ("",)), Range(WRITE), Range(TAG))))
            assert heads[0].fields["checkpoint_id"] == str(n)
            assert [r.key[3] for r in writes] == [n]
            assert tags == ()

    def test_a_closed_driver_says_so(self, driver: Driver) -> None:
        """A closed driver without resources may still answer; any other raises ``Unavailable``."""
        rows.store_ops(driver, rows.tag("t"))
        driver.close()
        driver.close()
        for effect in (
            Fetch(HERE, (Get(TAG, ("t",)),)),
            Fetch(HERE, (Range(CHECKPOINT),)),
            FindThreads(None),
            Commit(HERE, (rows.tag("u"),)),
            Stage(HERE, (rows.chunk(b"d" * 16),)),
        ):
            with suppress(Unavailable):
                driver.perform(effect)
