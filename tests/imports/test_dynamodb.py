"""Threads of langgraph-checkpoint-aws's DynamoDBSaver, made by it, as they are after an import."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import boto3
import pytest
from langgraph_checkpoint_aws import DynamoDBStore

import perdure
from perdure.errors import BadUrl
from perdure.imports.dynamodb import DynamoSource
from perdure.imports.importer import ImportOptions
from perdure.imports.items import ItemImporter
from tests.imports import parity, threads
from tests.imports.stocks import dynamodb_table
from tests.imports.test_items import ODD
from tests.servers import dynamodb


@pytest.fixture
def table() -> Iterator[tuple[str, Any]]:
    """The URL of an empty table of the saver's, and the saver."""
    with dynamodb_table() as opened:
        yield opened


@pytest.mark.slow
# At full size the saver makes tens of thousands of requests to the emulator, one for each item.
@pytest.mark.timeout(7200)
def test_an_import_keeps_every_promise(table: tuple[str, Any], tmp_path: Path) -> None:
    url, stock = table
    with perdure.connect_sync(f"sqlite:///{tmp_path}/new.db", migrate=True) as db:
        parity.check(stock, lambda: DynamoSource(url), db)


def test_a_thread_comes_along_and_one_on_s3_is_refused(table: tuple[str, Any], tmp_path: Path) -> None:
    url, stock = table
    made = threads.fill(stock, 2)
    name = stock.table_name
    item = stock.client.query(
        TableName=name,
        KeyConditionExpression="PK = :key",
        ExpressionAttributeValues={":key": {"S": "CHECKPOINT_finished 1"}},
        Limit=1,
    )["Items"][0]
    stock.client.put_item(TableName=name, Item={**item, "ref_loc": {"S": "S3"}})
    with perdure.connect_sync(f"sqlite:///{tmp_path}/new.db", migrate=True) as db:
        source = DynamoSource(url)
        reports = {r.thread: r for r in parity.imported(source, db)}
        source.close()
        assert reports["parked 0"].state == "imported"
        assert reports["parked 0"].verified > 0
        assert (reports["finished 1"].state, "S3" in reports["finished 1"].why) == ("skipped", True)
        thread = "parked 0"
        assert threads.seen(db.checkpointer(), thread, made[thread]) == threads.seen(
            stock, thread, made[thread]
        )
        assert [t.thread_id for t in db.threads()] == ["parked 0"]


def test_values_are_read_many_a_request_and_asked_for_again_where_an_answer_lacks_some(
    table: tuple[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, stock = table
    made = threads.fill(stock, 1)
    source = DynamoSource(url)
    calls: Counter[str] = Counter()
    source._client.meta.events.register("before-call.dynamodb", lambda model, **_: calls.update([model.name]))
    with perdure.connect_sync("memory://") as db:
        (report,) = parity.imported(source, db)
    assert report.checkpoints + report.writes > 20
    # One for the thread, one for the writes of each checkpoint; two for a page of items and their values.
    assert calls == {"Scan": 1, "Query": 1 + report.checkpoints, "BatchGetItem": 4}
    real = source._client.batch_get_item

    def half(**parameters: Any) -> Any:
        ((name, asked),) = parameters["RequestItems"].items()
        answer = real(RequestItems={name: {**asked, "Keys": asked["Keys"][:3]}})
        rest = asked["Keys"][3:]
        return {**answer, "UnprocessedKeys": {name: {**asked, "Keys": rest}} if rest else {}}

    monkeypatch.setattr(source._client, "batch_get_item", half)
    with perdure.connect_sync("memory://") as db:
        assert parity.imported(source, db) == [report]
        for thread in made:
            assert threads.raw(db.checkpointer(), thread) == threads.raw(stock, thread)
    source.close()


def test_the_items_of_a_store_come_along_with_their_times_to_live() -> None:
    with dynamodb.empty() as url, perdure.connect_sync("memory://") as db:
        name = url.removeprefix("dynamodb://").partition("?")[0]
        stock = DynamoDBStore(name, region_name=dynamodb.REGION, endpoint_url=dynamodb.endpoint())
        stock.setup()
        value = {"is": [1, None, "x", True], "part": {"half": Decimal("0.5")}}
        for namespace in ODD:
            stock.put(namespace, "two/ž", value)
        stock.put(("users",), "short", {"n": 1}, ttl=60)
        stock.put(("users",), "bytes", {"raw": b"x"})
        source = DynamoSource(url)
        assert list(source.threads()) == []
        for written in (len(ODD) + 1, 0):
            counts = ItemImporter(db, ImportOptions(), time.time_ns() // 1000).run(source.items())
            assert (counts.written, counts.written + counts.unchanged) == (written, len(ODD) + 1)
            assert ["item 'bytes'" in why for why in counts.skipped] == [True]
        source.close()
        for namespace, key in (*((each, "two/ž") for each in ODD), (("users",), "short")):
            here, there = db.store().get(namespace, key), stock.get(namespace, key)
            assert here is not None
            assert there is not None
            assert (here.value, here.created_at, here.updated_at) == (
                there.value,
                there.created_at,
                there.updated_at,
            )


def test_another_table_is_refused_by_name() -> None:
    with dynamodb.empty() as url:
        name = url.removeprefix("dynamodb://").partition("?")[0]
        where: dict[str, Any] = {"region_name": dynamodb.REGION, "endpoint_url": dynamodb.endpoint()}
        boto3.client("dynamodb", **where).create_table(
            TableName=name,
            KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
        )
        with pytest.raises(BadUrl, match="is not a table of langgraph-checkpoint-aws"):
            DynamoSource(url)
