"""The layout that saves write units: heads in the root, checks and chunks that are left out of transactions.
It answers as the model does, and leaves nothing behind.

Covers perdure.storage.dynamodb.actions, perdure.storage.dynamodb.items, perdure.storage.dynamodb.commit_plan.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from perdure.model.ops import Check, Commit, Committed, Delete, Drop, Expect, Fetch, Get, Put, Range, Refused
from perdure.model.records import CHECKPOINT, CHUNK, GC, HEAD, WRITE
from perdure.storage.dynamodb.driver import DynamoDriver, open_driver
from perdure.storage.memory import MemoryDriver
from perdure.storage.url import open_driver as open_migrated
from perdure.testing.conformance import rows
from perdure.testing.conformance.rows import HERE
from tests.servers import dynamodb
from tests.servers.dynamodb_wire import failing, watched

NUMBERS = (-33, -17, -16, -4, -3, -1, 0, 1, 7, 15, 16, 17, 40)


@pytest.fixture
def driver() -> Iterator[DynamoDriver]:
    with dynamodb.empty() as url:
        opened = open_migrated(url, migrate=True)
        assert isinstance(opened, DynamoDriver)
        yield opened
        opened.close()


@pytest.fixture
def other(driver: DynamoDriver) -> Iterator[DynamoDriver]:
    """Another process on the same table."""
    opened = open_driver(driver.client.target.url)
    yield opened
    opened.close()


def write(n: int, body: bytes = b"w", expect: Any = Expect.ABSENT, *, task: str = "t") -> Put:
    fields = {"channel": "c", "task_path": "", "nonce": str(n)}
    return Put(WRITE, ("", "c", task, n), fields, body, expect, version=5)


def test_writes_are_read_in_order_and_in_pages(driver: DynamoDriver) -> None:
    long = "n" * 1200
    puts = [write(n, bytes((n % 251,)), task=task) for task in ("s", "t", long) for n in NUMBERS]
    model = MemoryDriver()
    for one in (driver, model):
        rows.store_ops(one, *puts)
    ranges = [
        Range(WRITE, prefix, reverse=reverse, after=after, limit=limit, bodies=bodies)
        for prefix in ((), ("", "c"), ("", "c", "t"), ("", "c", long))
        for reverse in (False, True)
        for after in (None, ("", "c", "t", -17), ("", "c", "t", 15), ("", "c", "t", 20), ("", "c", long, 0))
        for limit in (None, 1, 4)
        for bodies in (True, False)
    ]
    gets = [Get(WRITE, ("", "c", "t", n)) for n in range(-5, 20)] + [Get(WRITE, ("", "c", "t", 0))]
    effect = Fetch(HERE, (*ranges, *gets))
    for item, answer, right in zip(effect.items, driver.perform(effect), model.perform(effect), strict=True):
        assert answer == right, item


def test_the_head_in_the_root_is_one_of_the_heads(driver: DynamoDriver) -> None:
    model = MemoryDriver()
    effect = Fetch(
        HERE,
        (
            *(
                Range(HEAD, after=after, reverse=reverse, limit=limit)
                for after in (None, ("",), ("a",), ("b",))
                for reverse in (False, True)
                for limit in (None, 1, 2, 3)
            ),
            Range(HEAD, ("",)),
            Range(HEAD, ("a",)),
            Get(HEAD, ("",)),
            Get(HEAD, ("a",)),
        ),
    )
    for some in ((rows.head("a"), rows.head("b")), (rows.head(""),)):
        for one in (driver, model):
            rows.store_ops(one, *some)
        for item, answer, right in zip(
            effect.items, driver.perform(effect), model.perform(effect), strict=True
        ):
            assert answer == right, item


def test_a_check_of_what_this_process_wrote_last_costs_nothing(driver: DynamoDriver) -> None:
    rows.store_ops(driver, rows.checkpoint("c"))
    with watched(driver) as wire:
        rows.store_ops(driver, Check(CHECKPOINT, ("", "c"), Expect.PRESENT), write(0))
    (call,) = wire.calls
    assert [list(action) for action in call.parameters["TransactItems"]] == [["Update"], ["Put"]]


@pytest.mark.parametrize("is_removed", [False, True])
def test_a_check_that_was_left_out_is_made_if_another_process_wrote(
    driver: DynamoDriver, other: DynamoDriver, is_removed: bool
) -> None:
    rows.store_ops(driver, rows.checkpoint("c"))
    rows.store_ops(other, Delete(CHECKPOINT, ("", "c")) if is_removed else rows.tag("t"))
    effect = Commit(HERE, (Check(CHECKPOINT, ("", "c"), Expect.PRESENT), write(0)))
    assert driver.perform(effect) == (Refused(CHECKPOINT, ("", "c")) if is_removed else Committed())
    assert rows.keys(driver, Range(WRITE)) == ([] if is_removed else [("", "c", "t", 0)])


def test_chunks_precede_a_commit_that_a_collection_would_refuse(driver: DynamoDriver) -> None:
    rows.store_ops(driver, rows.gc(1))
    with watched(driver) as wire:
        rows.store_ops(driver, Check(GC, (), 1), rows.chunk(b"a" * 16), rows.chunk(b"b" * 16), rows.tag("t"))
    assert wire.count() == {"PutItem": 2, "TransactWriteItems": 1}
    assert wire.calls[-1].operation == "TransactWriteItems"
    with watched(driver) as wire:
        rows.store_ops(driver, rows.chunk(b"c" * 16), rows.tag("t"))
    assert wire.count() == {"TransactWriteItems": 1}, "nothing would refuse this one"
    assert len(rows.keys(driver, Range(CHUNK))) == 3


@pytest.mark.parametrize("before", ["PutItem", "TransactWriteItems"])
def test_a_thread_that_is_removed_around_its_chunks_keeps_neither_them_nor_the_commit(
    driver: DynamoDriver, other: DynamoDriver, before: str
) -> None:
    rows.store_ops(driver, rows.gc(1))
    dropped: list[bool] = []

    def fault(name: str, request: Any) -> None:
        if name == before and not dropped:
            dropped.append(True)
            other.perform(Drop(HERE))

    ops = (Check(GC, (), 1), rows.chunk(b"a" * 16), rows.tag("t"))
    with failing(driver, fault):
        assert driver.perform(Commit(HERE, ops)) == Refused(GC, ())
    assert dropped
    with contextlib.closing(open_driver(driver.client.target.url)) as fresh:
        assert len(fresh.client.boto.scan(TableName=fresh.client.table)["Items"]) == 1
