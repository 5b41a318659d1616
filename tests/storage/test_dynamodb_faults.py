"""DynamoDB throttles, conflicts, breaks off: nothing acknowledged is missing, nothing is applied twice."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from botocore.exceptions import ConnectionClosedError, SSLError

from perdure.errors import TooLarge, Unavailable
from perdure.model.ops import (
    Check,
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
from perdure.model.records import CHUNK, GC, HEAD, ITEM, STORE, TAG, WRITE, Partition
from perdure.storage.dynamodb.driver import DynamoDriver, open_driver
from perdure.storage.url import open_driver as open_migrated
from perdure.testing.conformance import rows
from perdure.testing.conformance.rows import HERE
from tests.servers import dynamodb
from tests.servers.dynamodb_wire import answer, conflict, failing, lose, storm, watched

BIG = b"x" * 600_000


@pytest.fixture
def url() -> Iterator[str]:
    with dynamodb.empty() as url:
        yield url


@pytest.fixture
def driver(url: str) -> Iterator[DynamoDriver]:
    opened = open_migrated(url, migrate=True)
    assert isinstance(opened, DynamoDriver)
    yield opened
    opened.close()


@pytest.mark.parametrize("seed", range(3))
def test_in_a_storm_of_faults_every_increment_counts_once(driver: DynamoDriver, seed: int) -> None:
    """Each worker raises one number by compare-and-set and leaves a row for every acknowledged step: a lost
    answer that was repeated blindly would be refused, or counted twice."""
    rows.store_ops(driver, rows.head(seq=0, version=1))
    fault, seen = storm(seed)

    def work(n: int) -> int:
        acknowledged = 0
        while acknowledged < 8:
            record = rows.get(driver, HEAD, "")
            assert record is not None
            seq = record.fields["seq"] + 1
            raised = rows.head(seq=seq, expect=record.version, version=record.version + 1)
            if rows.commit(driver, raised, rows.write(f"w{n}", seq)):
                acknowledged += 1
        return acknowledged

    with failing(driver, fault), ThreadPoolExecutor(4) as pool:
        total = sum(pool.map(work, range(4)))
    record = rows.get(driver, HEAD, "")
    assert record is not None
    assert (record.fields["seq"], record.version) == (total, total + 1)
    assert sorted(key[3] for key in rows.keys(driver, Range(WRITE))) == list(range(1, total + 1))
    assert set(seen) == {"throttled", "conflict", "broken", "lost"}


def test_a_storm_over_every_verb_loses_nothing(driver: DynamoDriver) -> None:
    fault, _ = storm(7)
    at = [Partition("acme", f"t{n}") for n in range(4)]
    big = bytes(range(256)) * 2500
    with failing(driver, fault):
        for n, place in enumerate(at):
            driver.perform(Stage(place, tuple(rows.chunk(bytes((i,)) * 16, n) for i in range(12))))
            rows.store_ops(driver, rows.checkpoint("c", body=big, run_id="run"), rows.tag("t"), at=place)
        driver.perform(Drop(at[0]))
        assert [f.partition for f in driver.perform(FindThreads("acme"))] == at[1:]
        for place in at[1:]:
            (chunks,) = driver.perform(Fetch(place, (Range(CHUNK),)))
            assert len(chunks) == 12
            assert rows.everything(driver, place)[0].body == big
        assert rows.everything(driver, at[0]) == []


def test_a_commit_whose_every_answer_is_lost_is_known_by_its_traces(driver: DynamoDriver) -> None:
    """Past the patience of the client the table itself is asked."""
    rows.store_ops(driver, rows.head(version=1))
    driver.client.patience = 0.2

    def fault(name: str, request: Any) -> None:
        if name == "TransactWriteItems":
            lose(request)

    with failing(driver, fault):
        assert rows.commit(driver, rows.head(version=2, expect=1))
    record = rows.get(driver, HEAD, "")
    assert record is not None
    assert record.version == 2
    with watched(driver) as wire:
        assert rows.commit(driver, rows.head(version=3, expect=2))
    assert wire.count() == {"TransactWriteItems": 1}, "what was found out is remembered"


def final(request: Any) -> Any:
    """An answer that no repetition mends."""
    return answer("ExpiredTokenException")


def forgotten(request: Any) -> None:
    """Let the request pass to a service that no longer knows its token, to which it is a new one."""
    asked = json.loads(request.body)
    asked["ClientRequestToken"] = asked["ClientRequestToken"][::-1]
    request.body = json.dumps(asked).encode()


@pytest.mark.parametrize("then", [final, forgotten])
def test_a_body_in_parts_outlives_a_lost_answer_and_whatever_its_repetition_says(
    driver: DynamoDriver, then: Callable[[Any], Any]
) -> None:
    seen = 0

    def fault(name: str, request: Any) -> Any:
        nonlocal seen
        if name != "TransactWriteItems":
            return None
        seen += 1
        return lose(request) if seen == 1 else then(request)

    with failing(driver, fault):
        assert rows.commit(driver, rows.gc(1, Expect.ABSENT), rows.checkpoint("c", body=BIG))
    assert seen == 2
    (gc, checkpoint) = rows.everything(driver)
    assert (gc.version, checkpoint.body) == (1, BIG)


def test_a_body_in_parts_outlives_an_answer_that_breaks_in_tls(driver: DynamoDriver) -> None:
    def fault(name: str, request: Any) -> None:
        if name == "TransactWriteItems":
            with suppress(ConnectionClosedError):
                lose(request)
            raise SSLError(endpoint_url=request.url, error="DECRYPTION_FAILED_OR_BAD_RECORD_MAC")

    with failing(driver, fault):
        assert rows.commit(driver, rows.checkpoint("c", body=BIG))
    assert rows.everything(driver)[0].body == BIG


def test_what_anybody_may_have_written_acknowledges_nothing_without_an_answer(driver: DynamoDriver) -> None:
    chunk = rows.chunk(b"d" * 16)
    rows.store_ops(driver, rows.gc(1), chunk)
    driver.client.patience = 0.2

    def fault(name: str, request: Any) -> Any:
        return answer("InternalServerError", status=500) if name == "TransactWriteItems" else None

    with failing(driver, fault):
        for ops in ((), (chunk,), (Delete(TAG, ("none",)),)):
            with pytest.raises(Unavailable, match="not known"):
                rows.commit(driver, Check(GC, (), 7), *ops)


def test_a_commit_that_never_arrives_is_unavailable_and_not_stored(driver: DynamoDriver) -> None:
    rows.store_ops(driver, rows.head(version=1))
    driver.client.patience = 0.2

    def fault(name: str, request: Any) -> None:
        if name == "TransactWriteItems":
            raise ConnectionClosedError(endpoint_url=request.url)

    with failing(driver, fault), pytest.raises(Unavailable, match="not known"):
        rows.commit(driver, rows.head(version=2, expect=1))
    record = rows.get(driver, HEAD, "")
    assert record is not None
    assert record.version == 1
    assert rows.commit(driver, rows.head(version=2, expect=1)), "the driver goes on without being reopened"


def test_throttling_without_end_is_unavailable_in_one_sentence(driver: DynamoDriver) -> None:
    driver.client.patience = 0.2
    with failing(driver, lambda *_: answer("ThrottlingException")):
        for effect in (
            Commit(HERE, (rows.tag("t"),)),
            Fetch(HERE, (Get(TAG, ("t",)),)),
            FindThreads(None),
        ):
            with pytest.raises(
                Unavailable, match=r"throttled or contended.*Nothing of this write was stored"
            ):
                driver.perform(effect)
    assert rows.get(driver, TAG, "t") is None


def test_a_transaction_that_is_cancelled_for_its_size_is_too_large(driver: DynamoDriver) -> None:
    size = {"Code": "ValidationError", "Message": "Item size has exceeded the maximum allowed size"}
    cancelled = answer("TransactionCanceledException", CancellationReasons=[{"Code": "None"}, size])
    with failing(driver, lambda *_: cancelled), pytest.raises(TooLarge, match="nothing of this write"):
        rows.commit(driver, rows.tag("t"))


def test_a_conflict_between_transactions_is_no_refusal(driver: DynamoDriver) -> None:
    left = [3]

    def fault(name: str, request: Any) -> Any:
        if name != "TransactWriteItems" or not left[0]:
            return None
        left[0] -= 1
        return conflict(2)

    with failing(driver, fault), watched(driver) as wire:
        assert driver.perform(Commit(HERE, (rows.tag("t", Expect.ABSENT),))) == Committed()
    assert wire.count()["TransactWriteItems"] == 4


def test_another_processes_drop_reaches_a_driver_that_remembers(url: str, driver: DynamoDriver) -> None:
    """What a process remembers of a partition is a guess, checked by every request that rests on it."""
    other = open_driver(url)
    try:
        rows.store_ops(driver, *rows.every_kind())
        rows.store_ops(other, rows.tag("theirs"))
        for again in range(3):
            driver.perform(Drop(HERE))
            assert rows.everything(other) == []
            assert not rows.commit(other, rows.gc(2, expect=1))
            other.perform(Stage(HERE, (rows.chunk(b"s" * 16, again),)))
            assert rows.get(driver, CHUNK, b"s" * 16) is not None
            rows.store_ops(driver, *rows.every_kind(f"{again}"))
            rows.store_ops(other, rows.tag("theirs", Expect.ABSENT))
            assert len(rows.everything(driver)) == len(rows.every_kind()) + 2
    finally:
        other.close()


def test_a_drop_that_was_cut_short_is_finished_by_the_next(driver: DynamoDriver) -> None:
    rows.store_ops(driver, *rows.every_kind(), *(rows.write("t", n) for n in range(60)))
    driver.client.patience = 0.1

    def fault(name: str, request: Any) -> Any:
        return answer("ThrottlingException") if name == "BatchWriteItem" else None

    with failing(driver, fault), pytest.raises(Unavailable):
        driver.perform(Drop(HERE))
    assert rows.everything(driver) == [], "what is being removed is not to be read any more"
    rows.store_ops(driver, rows.tag("new"))
    assert len(rows.everything(driver)) == 1
    driver.perform(Drop(HERE))
    boto, table = driver.client.boto, driver.client.table
    left = boto.scan(TableName=table)["Items"]
    assert len(left) == 1, "only the record of the layout is left"
    assert driver.perform(FindThreads(None)) == ()


def test_the_parts_of_a_large_body_go_with_it(driver: DynamoDriver) -> None:
    big, bigger = b"a" * 700_000, b"b" * 1_000_000
    boto, table = driver.client.boto, driver.client.table

    def count() -> int:
        return len(boto.scan(TableName=table)["Items"])

    rows.store_ops(driver, rows.checkpoint("c", body=big))
    held = count()
    assert not rows.commit(driver, rows.checkpoint("c", body=big, expect=Expect.ABSENT))
    assert count() == held, "a refused commit left parts behind"
    rows.store_ops(driver, rows.checkpoint("c", body=bigger))
    assert rows.everything(driver)[0].body == bigger
    assert count() == held + 1
    rows.store_ops(driver, rows.checkpoint("c", body=b"small"))
    assert rows.everything(driver)[0].body == b"small"
    assert count() == held - 3


def test_parts_that_cannot_be_removed_do_not_undo_the_commit_that_replaced_them(
    driver: DynamoDriver,
) -> None:
    rows.store_ops(driver, rows.checkpoint("c", body=BIG))
    driver.client.patience = 0.1

    def fault(name: str, request: Any) -> Any:
        return answer("ProvisionedThroughputExceededException") if name == "BatchWriteItem" else None

    with failing(driver, fault):
        assert rows.commit(driver, rows.checkpoint("c", body=b"small"))
    assert rows.everything(driver)[0].body == b"small"


def test_an_expired_item_whose_parts_went_first_is_gone_and_its_neighbours_stay(
    driver: DynamoDriver,
) -> None:
    """DynamoDB removes what is over item by item, in no order."""
    at = Partition("", "items", STORE)

    def item(key: str, body: bytes, expires: int | None) -> Put:
        fields = {"created_at": 1, "updated_at": 1, "ttl": None, "expires_at": expires}
        return Put(ITEM, (key,), fields, body, version=1)

    long_ago = 1_000_000
    rows.store_ops(driver, item("a", BIG, long_ago), item("b", b"b", None), item("c", b"c", None), at=at)
    boto, table = driver.client.boto, driver.client.table
    parts = [i for i in boto.scan(TableName=table)["Items"] if len(i.get("b", {}).get("B", b"")) > 1]
    boto.delete_item(TableName=table, Key={name: parts[0][name] for name in ("pk", "sk")})
    assert rows.get(driver, ITEM, "a", at=at) is None
    assert rows.keys(driver, Range(ITEM), at) == [("b",), ("c",)]
    assert rows.keys(driver, Range(ITEM, limit=1), at) == [("b",)], "a short page is the last one"
