"""In which order due lanes are tried, whatever else is due."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from perdure.database.base import handle_of
from perdure.model.ops import Commit
from perdure.model.records import Partition
from perdure.runtime.worker import backlog as backlogs
from perdure.runtime.worker.backlog import Backlog, Foreign
from perdure.runtime.worker.fairness import Due
from perdure.testing.conformance import rows
from tests.runtime.graphs import Storage, go, stored

FOREIGN = Foreign("graph", "other")


@pytest.fixture(params=["memory", "sqlite"])
def near(request: pytest.FixtureRequest) -> Iterator[Storage]:
    with stored(request.param) as storage:
        yield storage


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlogs, "_PAGE", 10)
    monkeypatch.setattr(backlogs, "_PAGES", 3)


def due(storage: Storage, name: str, at: int, tenant: str = "") -> Due:
    partition = Partition(tenant, name)
    storage.driver.perform(Commit(partition, (rows.lane("inbox", at),)))
    return partition, "inbox"


async def looks(backlog: Backlog, wanted: Due, most: int) -> int:
    """How many looks it takes to try a lane, all others being another worker's."""
    for number in range(1, most + 1):
        await backlog.read_due(1 << 40, 0.0, {}, 4)
        while tried := backlog.take({}, 4, None):
            if wanted in tried:
                return number
            for item in tried:
                backlog.postpone(item, 0.0, FOREIGN)
    return most + 1


@pytest.mark.parametrize("tenant", [None, ""])
def test_however_many_lanes_are_foreign_the_one_behind_them_is_tried(
    near: Storage, tenant: str | None
) -> None:
    async def main() -> None:
        for n in range(100):
            due(near, f"t{n}", n)
        wanted = due(near, "wanted", 1000)
        backlog = Backlog(handle_of(near.database()), tenant, 1.0)
        assert await looks(backlog, wanted, 12) <= 12, "a page behind the first one is read in each look"
        assert 80 < backlog.counts[FOREIGN] <= 100

    go(main())


def test_the_next_lane_of_the_second_is_named_and_not_tried(near: Storage) -> None:
    async def main() -> None:
        backlog = Backlog(handle_of(near.database()), None, 1.0)
        now = 10_000_000
        for n in range(25):
            due(near, f"due{n}", now - n)
        due(near, "later", now + 2_000_000)
        await backlog.read_due(now, 0.0, {}, 100)
        assert backlog.next_due_at is None
        for n in range(25):
            due(near, f"soon{n}", now + 500_000 - n)
        assert await backlog.read_due(now, 0.0, {}, 100) == 25
        assert backlog.next_due_at == now + 500_000 - 24
        assert {partition.thread[:3] for partition, _ in backlog.take({}, 100, None)} == {"due"}
        await backlog.read_due(now - 5_000_000, 0.0, {}, 100)
        assert backlog.next_due_at is None, "of the last look only"

    go(main())


def test_lanes_due_at_one_moment_hide_nobody(near: Storage) -> None:
    async def main() -> None:
        lanes = {due(near, f"t{n}", 5) for n in range(35)} | {due(near, "behind", 6)}
        backlog = Backlog(handle_of(near.database()), None, 1.0)
        tried: set[Due] = set()
        for _ in range(4):
            await backlog.read_due(1 << 40, 0.0, {}, 100)
            while chosen := backlog.take({}, 8, None):
                tried.update(chosen)
                for item in chosen:
                    backlog.postpone(item, 0.0)
        assert tried == lanes

    go(main())


def test_tenants_take_turns_beyond_the_first_page(near: Storage) -> None:
    async def main() -> None:
        for n in range(60):
            due(near, f"t{n}", n, "many")
        few = due(near, "one", 100, "few")
        backlog = Backlog(handle_of(near.database()), None, 1.0)
        looked = 0
        while few not in backlog.take({"many": 3}, 1, None):
            await backlog.read_due(1 << 40, 0.0, {}, 4)
            looked += 1
            assert looked < 8

    go(main())


def test_what_was_put_off_comes_behind_what_was_not_and_is_not_forgotten(near: Storage) -> None:
    async def main() -> None:
        first, second, third = (due(near, f"t{n}", n) for n in range(3))
        backlog = Backlog(handle_of(near.database()), None, 1.0)
        await backlog.read_due(10, 0.0, {}, 4)
        assert backlog.take({}, 1, None) == [first]
        backlog.postpone(first, 0.0, failed=True)
        await backlog.read_due(10, 0.5, {}, 4)
        assert backlog.take({}, 9, None) == [second, third]
        for item in (second, third):
            backlog.note_served(item)
        await backlog.read_due(10, 1.0, {}, 4)
        assert backlog.take({}, 9, None) == [second, third, first], "it comes last once its pause is over"
        backlog.postpone(first, 1.0, failed=True)
        await backlog.read_due(10, 2.9, {second: None, third: None}, 4)
        assert len(backlog) == 0, "each pause is twice as long"
        # However much else there is, what was put off is tried now and then.
        turns = 0
        while first not in backlog.take({}, 1, None):
            turns += 1
            assert turns < 20
            await backlog.read_due(10, 3.0, {}, 4)

    go(main())


def test_a_lane_that_has_moved_on_is_tried_at_once(near: Storage) -> None:
    async def main() -> None:
        lane = due(near, "t", 1)
        backlog = Backlog(handle_of(near.database()), None, 1.0)
        await backlog.read_due(10, 0.0, {}, 4)
        (item,) = backlog.take({}, 1, None)
        backlog.postpone(item, 0.0, FOREIGN)
        assert backlog.counts[FOREIGN] == 1
        near.driver.perform(Commit(lane[0], (rows.lane("inbox", 2, 1, 2),)))
        await backlog.read_due(10, 0.1, {}, 4)
        assert backlog.take({}, 1, None) == [lane]
        assert backlog.counts[FOREIGN] == 0

    go(main())


def test_what_is_for_other_workers_does_not_wait_for_a_slot_here(near: Storage) -> None:
    async def main() -> None:
        for n in range(6):
            due(near, f"t{n}", n)
        backlog = Backlog(handle_of(near.database()), None, 1.0)
        await backlog.read_due(1 << 40, 0.0, {}, 10)
        assert backlog.waiting_count == 6
        for item in backlog.take({}, 4, None):
            backlog.postpone(item, 0.0, FOREIGN)
        assert backlog.waiting_count == 2
        # They are tried again in time, and count as little as before.
        await backlog.read_due(1 << 40, 5.0, {}, 10)
        assert (backlog.waiting_count, len(backlog)) == (2, 6)

    go(main())
