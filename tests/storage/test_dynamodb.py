"""The DynamoDB driver keeps the contract of the storage port, through both of its doors.

Covers perdure.storage.dynamodb.find.
"""

import time
from collections.abc import Iterator

import pytest

from perdure.model.ops import Fetch, Find, FindDue, FindRuns, FindThreads, IndexHit, Now, Range
from perdure.model.records import CHECKPOINT, LANE, TAG, Partition
from perdure.storage.dynamodb.clock import ServiceClock
from perdure.storage.dynamodb.driver import DynamoDriver
from perdure.storage.memory import MemoryDriver
from perdure.storage.port import Driver
from perdure.storage.url import open_driver
from perdure.testing.conformance import DriverContract, rows
from tests.backends import FACES_OVER_A_NETWORK
from tests.servers import dynamodb


class TestDynamoDb(DriverContract):
    @pytest.fixture(params=FACES_OVER_A_NETWORK)
    def driver(self, request: pytest.FixtureRequest) -> Iterator[Driver]:
        with dynamodb.empty() as url:
            driver = open_driver(url, migrate=True)
            yield request.param(driver)
            driver.close()


@pytest.fixture
def pair() -> Iterator[tuple[Driver, Driver]]:
    """An empty table, and the model."""
    with dynamodb.empty() as url:
        driver = open_driver(url, migrate=True)
        yield driver, MemoryDriver()
        driver.close()


STEM = "n" * 990
LONG = (
    "n",
    STEM,
    *(STEM + tail for tail in ("n" * 9, "n" * 10, "n" * 11, "n" * 400, "o", "a" * 40, "z" * 60)),
)
"""Names about as long as a sort key may be, and longer, in which only the end differs."""


@pytest.mark.parametrize("reverse", [False, True])
def test_keys_past_the_length_of_an_index_keep_their_order(
    pair: tuple[Driver, Driver], reverse: bool
) -> None:
    for one in pair:
        rows.store_ops(one, *(rows.tag(name) for name in LONG), *(rows.head(name) for name in LONG))
        rows.store_ops(one, *(rows.checkpoint("c", n, namespace=name) for n, name in enumerate(LONG)))
    items = [
        Range(TAG, after=after, reverse=reverse, limit=limit)
        for after in (None, ("",), *((name,) for name in LONG), (STEM + "p",))
        for limit in (None, 1, 3)
    ]
    items += [Range(CHECKPOINT, (name,), by, reverse=reverse) for name in LONG for by in (None, "seq")]
    answers, expected = (one.perform(Fetch(rows.HERE, tuple(items))) for one in pair)
    for item, answer, right in zip(items, answers, expected, strict=True):
        assert [r.key for r in answer] == [r.key for r in right], item


def test_long_names_of_threads_keep_their_order_in_the_catalogue(pair: tuple[Driver, Driver]) -> None:
    places = [Partition(tenant, name) for tenant in ("acme", STEM) for name in LONG]
    for one in pair:
        for place in places:
            rows.store_ops(one, rows.checkpoint("c", run_id="run"), at=place)
    finds: list[Find] = [
        FindThreads(tenant, limit=limit) for tenant in (None, "acme", STEM) for limit in (3, 99)
    ]
    finds += [FindThreads(None, after=place, limit=2) for place in places]
    finds += [
        FindThreads("acme", prefix=STEM + "n"),
        FindRuns(STEM, "run"),
        FindRuns(None, "run"),
    ]
    for find in finds:
        found, right = ([f.partition for f in one.perform(find)] for one in pair)
        assert sorted(found) == sorted(right)
        assert isinstance(find, FindRuns) or found == right


def test_what_is_due_is_found_in_order_whatever_its_names_and_in_pages(pair: tuple[Driver, Driver]) -> None:
    places = [Partition(tenant, name) for tenant in ("acme", "a\0me", STEM) for name in (*LONG, "\0", "")]
    for one in pair:
        for n, place in enumerate(places):
            names = ("inbox", STEM, STEM + "n" * 99) if n % 3 == 0 else ("inbox",)
            lanes = [rows.lane(name, (n * 7 % 11) * 1000 + at - 5) for at, name in enumerate(names)]
            rows.store_ops(one, *lanes, rows.lane("idle", None), at=place)
    for tenant in (None, "acme", "a\0me", STEM, "none"):
        for until in (-6, 4000, 4001, (1 << 63) - 1):
            whole, right = ([_due(f) for f in one.perform(FindDue(tenant, until=until))] for one in pair)
            assert sorted(whole) == sorted(right)
            assert [due for due, *_ in whole] == [due for due, *_ in right]
            for limit in (1, 2, 7):
                find = FindDue(tenant, until=until, limit=limit)
                assert [_due(f) for f in pair[0].perform(find)] == whole[:limit]


def _due(found: IndexHit) -> tuple[int, Partition, str]:
    assert found.record is not None
    assert found.record.kind is LANE
    return found.record.fields["due_at"], found.partition, found.record.key[0]


def test_a_host_whose_clock_is_wrong_tells_the_services_time(pair: tuple[Driver, Driver]) -> None:
    driver = pair[0]
    assert isinstance(driver, DynamoDriver)
    for off in (3600, -3600, 0):
        driver.client.clock = ServiceClock(lambda off=off: time.time_ns() // 1000 + off * 1_000_000)  # type: ignore[misc]
        assert abs(driver.perform(Now()) / 1e6 - time.time()) < 2
