"""Counts of activity go when their time is over, also those of a tenant without further runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from perdure.database.base import handle_of
from perdure.engine.retention.old_counts import DAYS, HOURS, KEEP_US, MINUTES, SIZES, partition_of, remove_old
from perdure.engine.transact import Budget
from perdure.model.ops import Commit, Fetch, FindThreads, Now, Put, Range
from perdure.model.records import DOCUMENT, SERVER
from perdure.retention.sweeper import RetentionOptions
from tests.backends import BACKENDS
from tests.runtime.graphs import Storage, stored


@pytest.fixture(params=BACKENDS)
def storage(request: pytest.FixtureRequest) -> Iterator[Storage]:
    with stored(request.param) as storage:
        yield storage


def put(storage: Storage, tenant: str, collection: str, age_us: int, count: int = 1) -> None:
    now = int(storage.driver.perform(Now()))
    puts = (
        Put(DOCUMENT, (collection, f"{age_us}-{n}"), {"updated_at": now - age_us}, b"{}", version=1)
        for n in range(count)
    )
    for each in puts:
        storage.driver.perform(Commit(partition_of(tenant), (each,)))


def collections_of(storage: Storage, tenant: str) -> list[str]:
    (found,) = storage.driver.perform(Fetch(partition_of(tenant), (Range(DOCUMENT, bodies=False),)))
    return [each.key[0] for each in found]


def test_a_sweep_removes_the_old_counts_of_every_tenant(storage: Storage) -> None:
    for collection, kept_us in KEEP_US.items():
        for tenant in ("gone", "quiet"):
            put(storage, tenant, collection, kept_us + 1_000_000)
        put(storage, "quiet", collection, kept_us - 600_000_000)
    database = storage.database()
    database.apply_retention(RetentionOptions(share=1.0, all_tenants=True, dry_run=True))
    assert len(collections_of(storage, "gone")) == 4
    database.apply_retention(RetentionOptions(share=1.0, all_tenants=True))
    assert collections_of(storage, "gone") == []
    assert sorted(collections_of(storage, "quiet")) == sorted((MINUTES, HOURS, DAYS, SIZES))
    found = storage.driver.perform(FindThreads(None, space=SERVER))
    assert [hit.partition for hit in found] == [partition_of("quiet")], "nor does the tenant's name stay"


def test_a_pass_is_limited_and_says_that_there_are_more() -> None:
    with stored("memory") as storage:
        put(storage, "gone", MINUTES, 2 * KEEP_US[MINUTES], 200)
        handle, now = handle_of(storage.database()), int(storage.driver.perform(Now()))
        passes = 1
        while handle.run(remove_old("gone", now, Budget(25, 100_000))):
            passes += 1
        assert (passes, collections_of(storage, "gone")) == (3, [])
