"""Threads in Redis that have a time to live end whole, and leave nothing behind that others trip over."""

from __future__ import annotations

import time
from contextlib import closing

import pytest

from perdure.model.ops import Check, Commit, Committed, Delete, Expect, FindRuns, FindThreads, Op, Put
from perdure.model.records import HEAD, ITEM, LANE, Partition
from perdure.storage.redis import driver as backend
from perdure.testing.conformance import rows
from perdure.testing.conformance.queues import list_due
from tests.servers import valkey
from tests.storage.climbers import eventually, step
from tests.storage.test_redis import opened
from tests.storage.test_redis_faults import AT


def test_threads_expire_whole_and_leave_nothing_behind() -> None:
    with valkey.empty() as url, valkey.shared().client() as client:
        with opened(f"{url}&ttl=3s") as driver:
            store = Partition("", "items", "store")
            item = {"created_at": 1, "updated_at": 1, "ttl": None, "expires_at": None}
            driver.perform(Commit(store, (Put(ITEM, ("k",), item, b"v", version=1),)))
            for n in range(30):
                at = Partition("", f"t{n}")
                driver.perform(Commit(at, (*step(1), rows.checkpoint("r", 2, run_id="run"), rows.head())))
            assert len(driver.perform(FindThreads(""))) == 30
            assert len(driver.perform(FindRuns("", "run"))) == 30
            kept = Partition("", "t0")

            def is_alone() -> bool:
                driver.perform(Commit(kept, (rows.head(),)))
                return len(driver.perform(FindThreads(""))) == 1

            eventually(is_alone)
            assert [f.partition for f in driver.perform(FindThreads(""))] == [kept]
            assert [f.partition for f in driver.perform(FindRuns("", "run"))] == [kept]
            assert rows.get(driver, HEAD, "", at=Partition("", "t1")) is None
            assert (
                driver.perform(Commit(Partition("", "t1"), (Check(HEAD, ("",), Expect.ABSENT),)))
                == Committed()
            )
            assert rows.get(driver, ITEM, "k", at=store) is not None
            eventually(lambda: driver.perform(FindThreads("")) == ())
            assert driver.perform(FindRuns("", "run")) == ()
        prefix = url.partition("prefix=")[2]
        left = [key for key in client.scan_iter(f"{prefix}:*", count=1000) if b"store" not in key]
        assert left == [f"{prefix}:layout".encode()]


def test_a_thread_that_is_written_without_a_ttl_is_kept_for_ever() -> None:
    with valkey.empty() as url, valkey.shared().client() as client:
        with opened(f"{url}&ttl=1h") as driver:
            assert driver.perform(Commit(AT, step(1))) == Committed()
        keys = list(client.scan_iter(f"{url.partition('prefix=')[2]}:*", count=1000))
        assert max(map(client.pttl, keys)) > 0
        with opened(url) as driver:
            assert driver.perform(Commit(AT, step(2))) == Committed()
        assert set(map(client.pttl, keys)) == {-1}


@pytest.mark.parametrize("done", [rows.lane("inbox", None), Delete(LANE, ("inbox",))])
def test_a_thread_with_something_due_stays_until_it_is_done(done: Op) -> None:
    with valkey.empty() as url, valkey.shared().client() as client, opened(f"{url}&ttl=1h") as driver:

        def is_ending() -> bool:
            keys = client.scan_iter(f"{url.partition('prefix=')[2]}:*", count=1000)
            lives = {bool(client.pttl(key) > 0) for key in keys if b":r:" in key or b":o:" in key}
            assert len(lives) == 1, "a thread would end in part"
            return lives.pop()

        rows.store_ops(driver, *step(1), at=AT)
        assert is_ending()
        rows.store_ops(driver, rows.lane("inbox", 1), rows.lane("outbox", None), at=AT)
        assert not is_ending()
        rows.store_ops(driver, *step(2), at=AT)
        assert not is_ending(), "what is due was forgotten at the next write"
        assert list_due(driver, 1) == [(AT.thread, "inbox")]
        assert rows.commit(driver, done, at=AT)
        assert is_ending()
        rows.store_ops(driver, rows.lane("outbox", 2), at=Partition("", "new"))
        assert list_due(driver, 2) == [("new", "outbox")]


def test_a_new_thread_takes_no_entries_away_of_kinds_that_a_later_release_has() -> None:
    with valkey.empty() as url, valkey.shared().client() as client:
        prefix = url.partition("prefix=")[2]
        client.set(f"{prefix}:layout", f"{backend.SCHEMA_VERSION} 1")
        client.zadd(f"{prefix}:{{0}}:i", {b"later:" + bytes(30): 0})
        with opened(f"{url}&ttl=1h") as driver:
            rows.store_ops(driver, *step(1), at=AT)
        assert client.zcard(f"{prefix}:{{0}}:i") == 1


def test_expired_threads_leave_the_catalogue_even_if_nobody_looks() -> None:
    with valkey.empty() as url, valkey.shared().client() as client:
        prefix = url.partition("prefix=")[2]
        client.set(f"{prefix}:layout", f"{backend.SCHEMA_VERSION} 1")
        with closing(backend.open_driver(f"{url}&ttl=1s")) as driver:
            for n in range(100):
                driver.perform(
                    Commit(Partition("", f"old{n}"), (*step(1), rows.checkpoint("r", run_id="run")))
                )
            time.sleep(1.2)
            for n in range(100):
                driver.perform(Commit(Partition("", f"new{n}"), step(1)))
            assert client.zcard(f"{prefix}:{{0}}:c:thread") < 150
            assert client.zcard(f"{prefix}:{{0}}:i") < 20


def test_runs_of_expired_threads_leave_the_index_although_each_thread_was_due() -> None:
    """A thread that begins with a message does not expire then, and has many checkpoints later."""
    with valkey.empty() as url, valkey.shared().client() as client:
        prefix = url.partition("prefix=")[2]
        client.set(f"{prefix}:layout", f"{backend.SCHEMA_VERSION} 1")
        with closing(backend.open_driver(f"{url}&ttl=1h")) as driver:
            for name in ("old", "new"):
                for n in range(10):
                    at = Partition("", f"{name}{n}")
                    rows.store_ops(driver, rows.lane("inbox", 1), at=at)
                    for seq in range(20):
                        rows.store_ops(driver, rows.checkpoint(f"c{seq}", seq, run_id="run"), at=at)
                    rows.store_ops(driver, rows.lane("inbox", None), at=at)
                if name == "old":
                    assert client.zcard(f"{prefix}:{{0}}:i") == 200
                    # As if their time was over.
                    client.unlink(*client.scan_iter(f"{prefix}:{{0}}:[ro]:*"))
            assert client.zcard(f"{prefix}:{{0}}:i") < 300
            assert client.zcard(f"{prefix}:{{0}}:c:thread") < 18
