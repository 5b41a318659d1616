"""The head of a session is in the root item of its partition: it answers as the model does, at any size, is
removed with the session, and expires with it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from perdure.errors import Unavailable
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
    Refused,
)
from perdure.model.records import ITEM, SESSIONS, STORE, Partition
from perdure.storage.dynamodb.driver import DynamoDriver, open_driver
from perdure.storage.memory import MemoryDriver
from perdure.storage.port import Driver
from perdure.storage.url import open_driver as open_migrated
from tests.servers import dynamodb
from tests.servers.dynamodb_wire import answer, failing, watched

AT = Partition("acme", "s1", SESSIONS)
HEAD_KEY = ("",)
SOON = 4_000_000_000_000_000


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


def item(
    key: str, body: bytes, expect: Any = Expect.ABSENT, version: int = 1, *, expires_at: int | None = None
) -> Put:
    fields = {"created_at": 1, "updated_at": 2, "ttl": None, "expires_at": expires_at}
    return Put(ITEM, (key,), fields, body, expect, version)


def stored(driver: Driver, *ops: Any, at: Partition = AT) -> None:
    assert driver.perform(Commit(at, ops)) == Committed()


def bodies(driver: Driver, *keys: str) -> list[bytes | None]:
    answers = driver.perform(Fetch(AT, tuple(Get(ITEM, (key,)) for key in keys)))
    return [found[0].body if found else None for found in answers]


def rows(driver: DynamoDriver) -> list[dict[str, Any]]:
    """The table's items without the layout's."""
    found = driver.client.boto.scan(TableName=driver.client.table)["Items"]
    return [row for row in found if row["pk"]["B"] != b"\x00layout"]


def test_the_head_is_one_of_the_items_and_costs_one_item(driver: DynamoDriver) -> None:
    model = MemoryDriver()
    ranges = [
        Range(ITEM, prefix, reverse=reverse, after=after, limit=limit, bodies=with_bodies)
        for prefix in ((), ("",), ("a",))
        for reverse in (False, True)
        for after in (None, ("",), ("a",), ("b",))
        for limit in (None, 1, 2)
        for with_bodies in (True, False)
        if not prefix or after is None
    ]
    gets = [Get(ITEM, (key,)) for key in ("", "a", "c")]
    for some in ((item("", b"head"),), (item("a", b"1"), item("b", b"2"), item("", b"head 2", 1, 2))):
        for one in (driver, model):
            stored(one, *some)
        groups: list[list[Get | Range]] = [[*ranges], [*gets], [gets[0]], [gets[0], ranges[0]]]
        for group in groups:
            effect = Fetch(AT, tuple(group))
            for asked, found, right in zip(group, driver.perform(effect), model.perform(effect), strict=True):
                assert found == right, asked
        assert len(rows(driver)) == len(some)


@pytest.mark.parametrize("space", [STORE, SESSIONS])
def test_an_expectation_of_the_head_holds_or_refuses(driver: DynamoDriver, space: str) -> None:
    at = Partition("acme", "s1", space)
    model = MemoryDriver()
    for op in (
        Delete(ITEM, HEAD_KEY, Expect.PRESENT),
        item("", b"x", 4),
        item("", b"a"),
        item("", b"b"),
        item("", b"c", 7, 8),
        item("", b"d", 1, 2),
        item("", b"e", Expect.ANY, 3),
        Delete(ITEM, HEAD_KEY, 2),
        Delete(ITEM, HEAD_KEY, 3),
        item("", b"f"),
    ):
        effect = Commit(at, (op,))
        assert driver.perform(effect) == model.perform(effect), op
        assert driver.perform(Fetch(at, (Range(ITEM),))) == model.perform(Fetch(at, (Range(ITEM),)))


def test_a_head_of_any_size_is_replaced_without_leftovers(driver: DynamoDriver, other: DynamoDriver) -> None:
    big, bigger = b"x" * 600_000, b"y" * 800_000
    stored(driver, item("", big))
    assert bodies(other, "") == bodies(driver, "") == [big]
    assert len(rows(driver)) == 1 + 3
    stored(other, item("", bigger, 1, 2))
    assert bodies(driver, "", "none") == [bigger, None]
    (found,) = driver.perform(Fetch(AT, (Range(ITEM, bodies=False),)))
    assert [(record.key, record.body) for record in found] == [(HEAD_KEY, b"")]
    assert len(rows(driver)) == 1 + 4
    stored(driver, item("", b"small", 2, 3))
    assert bodies(other, "") == [b"small"]
    assert len(rows(driver)) == 1


def test_a_head_in_parts_that_is_replaced_during_a_read_is_read_again(
    driver: DynamoDriver, other: DynamoDriver
) -> None:
    stored(driver, item("", b"x" * 600_000))
    replaced: list[bool] = []

    def fault(name: str, request: Any) -> None:
        if name == "BatchGetItem" and not replaced:
            replaced.append(True)
            stored(other, item("", b"y" * 700_000, 1, 2))

    with failing(driver, fault):
        assert bodies(driver, "") == [b"y" * 700_000]
    assert replaced


def test_a_removed_session_shows_nothing_to_a_process_that_remembers_it(
    driver: DynamoDriver, other: DynamoDriver
) -> None:
    stored(driver, item("", b"old"), item("a", b"old"))
    assert bodies(other, "", "a") == [b"old", b"old"]
    assert driver.perform(Drop(AT)) == Committed()
    assert rows(driver) == []
    assert bodies(other, "") == [None]
    stored(driver, item("", b"new"))
    assert bodies(other, "", "a") == [b"new", None]
    assert other.perform(Commit(AT, (item("", b"late", 7, 8),))) == Refused(ITEM, HEAD_KEY)


def test_the_root_expires_with_the_head_and_with_nothing_else(driver: DynamoDriver) -> None:
    stored(driver, item("", b"a", expires_at=SOON))
    assert rows(driver)[0]["x"] == {"N": str(SOON // 1_000_000)}
    stored(driver, item("s", b"b", expires_at=SOON), item("", b"c", 1, 2, expires_at=SOON + 1))
    assert sorted(row["x"]["N"] for row in rows(driver)) == ["4000000000", "4000000001"]
    stored(driver, item("", b"d", 2, 3))
    assert ["x" in row for row in rows(driver) if row["sk"]["B"] == b"r"] == [False]
    stored(driver, item("", b"e", 3, 4, expires_at=SOON))
    stored(driver, Delete(ITEM, HEAD_KEY))
    assert ["x" in row for row in rows(driver) if row["sk"]["B"] == b"r"] == [False]
    store = Partition("acme", "s1", STORE)
    stored(driver, item("", b"a", expires_at=SOON), at=store)
    assert ["x" in row for row in rows(driver) if row["sk"]["B"] == b"r"] == [False, False]


def test_a_session_that_the_service_removed_is_absent_and_starts_anew(
    driver: DynamoDriver, other: DynamoDriver
) -> None:
    stored(driver, item("", b"a", expires_at=SOON))
    assert bodies(other, "") == [b"a"]
    (root,) = rows(driver)
    driver.client.boto.delete_item(
        TableName=driver.client.table, Key={name: root[name] for name in ("pk", "sk")}
    )
    assert bodies(driver, "") == [None]
    assert driver.perform(FindThreads("acme", space=SESSIONS)) == ()
    assert other.perform(Commit(AT, (item("", b"b", 1, 2),))) == Refused(ITEM, HEAD_KEY)
    stored(other, item("", b"c"))
    assert bodies(driver, "") == [b"c"]


def test_a_removal_that_was_cut_short_is_ended_before_the_root_may_expire(
    driver: DynamoDriver, other: DynamoDriver
) -> None:
    """The root names what is to be removed: if it expired first, that would stay for ever."""
    stored(driver, item("", b"old"), item("a", b"old"), item("b", b"old"))

    def fault(name: str, _: Any) -> Any:
        return answer("AccessDeniedException") if name == "BatchWriteItem" else None

    with failing(driver, fault), pytest.raises(Unavailable):
        driver.perform(Drop(AT))
    assert len(rows(driver)) == 3
    with watched(other) as wire:
        stored(other, item("", b"new", expires_at=SOON))
    assert wire.count()["TransactWriteItems"] == 2
    assert len(rows(driver)) == 1
    assert bodies(driver, "", "a") == [b"new", None]
