"""The Redis driver keeps the contract of the storage port, through both doors, on a server and a cluster.

Covers perdure.storage.redis.find, perdure.storage.redis.requests, perdure.storage.redis.url.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from perdure.model.ops import Delete, Now, Range
from perdure.model.records import CHECKPOINT, INBOX, LANE, Partition
from perdure.storage.port import Driver
from perdure.storage.redis import driver as backend
from perdure.storage.redis.driver import RedisDriver
from perdure.testing.conformance import DriverContract, rows
from perdure.testing.conformance.queues import T, list_due
from tests.backends import FACES_OVER_A_NETWORK
from tests.servers import valkey


@contextmanager
def opened(url: str) -> Iterator[RedisDriver]:
    """A migrated driver."""
    backend.migrate(url)
    with closing(backend.open_driver(url)) as driver:
        yield driver


class TestRedis(DriverContract):
    @pytest.fixture(params=FACES_OVER_A_NETWORK)
    def driver(self, request: pytest.FixtureRequest) -> Iterator[Driver]:
        with valkey.empty() as url, opened(url) as driver:
            yield request.param(driver)


class TestCluster(DriverContract):
    @pytest.fixture(params=FACES_OVER_A_NETWORK)
    def driver(self, request: pytest.FixtureRequest) -> Iterator[Driver]:
        with valkey.empty_on_cluster() as url, opened(url) as driver:
            yield request.param(driver)


def test_a_page_by_a_field_begins_with_an_empty_id() -> None:
    with valkey.empty() as url, opened(url) as driver:
        rows.store_ops(driver, *(rows.checkpoint(name, seq) for seq, name in enumerate(("a", "", "b"), 1)))
        pages = [rows.keys(driver, Range(CHECKPOINT, ("",), "seq", after=seq)) for seq in (0, 1, 2)]
        assert pages == [[("", "a"), ("", ""), ("", "b")], [("", ""), ("", "b")], [("", "b")]]


def test_the_time_is_the_server_s() -> None:
    with valkey.empty() as url, opened(url) as driver, valkey.shared().client() as client:
        before, now, after = client.time(), driver.perform(Now()), client.time()
        assert before[0] * 1_000_000 + before[1] <= now <= after[0] * 1_000_000 + after[1]


# What is due


def test_looking_for_what_is_due_costs_what_is_due() -> None:
    with valkey.empty() as url, opened(url) as driver, valkey.shared().client() as client:
        for n in range(60):
            rows.store_ops(driver, rows.lane("inbox", T + n if n % 2 else None), at=Partition("", f"t{n}"))
        for until, found in ((T, 0), (T + 3, 2)):
            client.config_resetstat()
            assert len(list_due(driver, until)) == found
            calls = {name: each["calls"] for name, each in client.info("commandstats").items()}
            assert calls["cmdstat_zrangebylex"] <= backend.BUCKETS + found
            assert calls.get("cmdstat_evalsha", 0) == calls.get("cmdstat_hget", 0) == found


def test_what_is_due_in_one_bucket_is_found_in_order_past_what_is_gone() -> None:
    with valkey.empty() as url, valkey.shared().client() as client:
        prefix = url.partition("prefix=")[2]
        client.set(f"{prefix}:layout", f"{backend.SCHEMA_VERSION} 1")
        with opened(url) as driver:
            for n in range(90):
                rows.store_ops(driver, rows.lane("inbox", T + n), at=Partition(f"tenant {n % 3}", f"t{n:02}"))
            for n in range(40):
                # As a release does it that does not know the index.
                client.unlink(
                    *client.scan_iter(f"{prefix}:*:r:*t{n:02}", count=1000),
                    *client.scan_iter(f"{prefix}:*:o:*t{n:02}", count=1000),
                )
            threads = [f"t{n:02}" for n in range(40, 90)]
            assert [thread for thread, _ in list_due(driver, T + 90, limit=2)] == threads[:2]
            assert client.zcard(f"{prefix}:{{0}}:d") == 50
            assert [thread for thread, _ in list_due(driver, T + 90, "tenant 1", limit=12)] == threads[0:36:3]
            assert [thread for thread, _ in list_due(driver, T + 90, limit=40)] == threads[:40]
            assert [thread for thread, _ in list_due(driver, T + 90)] == threads


def test_a_delete_looks_at_every_sort_of_field() -> None:
    with valkey.empty() as url, opened(url) as driver:
        message = rows.inbox(1)
        long = rows.inbox(2)._replace(fields={**message.fields, "dedupe": b"d" * 300})
        rows.store_ops(driver, rows.lane("inbox", T), message, long)
        for kind, key, right, wrong in (
            (
                LANE,
                ("inbox",),
                {"due_at": T, "owner": "worker 1", "stop": None, "epoch": 5},
                {"due_at": None},
            ),
            (INBOX, (1,), {"dedupe": b"\0d", "accepted_at": 1 << 50}, {"dedupe": b"\0e"}),
            (INBOX, (2,), {"dedupe": b"d" * 300, "accepted_at": 1 << 50}, {"dedupe": b"d" * 299}),
        ):
            for name, value in wrong.items():
                assert not rows.commit(driver, Delete(kind, key, unchanged={**right, name: value}))
            assert rows.commit(driver, Delete(kind, key, unchanged=right))
