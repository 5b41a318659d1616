"""DynamoDB's units are counted by the published rules: sizes rounded up, doubled in a transaction."""

from __future__ import annotations

from typing import Any

import pytest

from bench.capacity import Meter, item_bytes

KB = 1024


def item(size: int, **more: Any) -> dict[str, Any]:
    """Of exactly that many bytes: the name of the attribute counts."""
    return {"b": {"B": bytes(size - 1)}, **more}


@pytest.mark.parametrize(
    ("value", "size"),
    [
        ({"k": {"S": "ab"}}, 3),
        ({"ü": {"S": "ü"}}, 4),
        ({"k": {"B": b"abc"}}, 4),
        ({"k": {"N": "1234"}}, 4),
        ({"k": {"BOOL": True}}, 2),
        ({"k": {"M": {"a": {"S": "b"}}}}, 1 + 3 + 1 + 2),
        ({"k": "ab"}, 3),
        ({}, 0),
    ],
)
def test_an_item_weighs_its_names_and_values(value: dict[str, Any], size: int) -> None:
    assert item_bytes(value) == size


@pytest.mark.parametrize(
    ("name", "asked", "got", "units"),
    [
        ("GetItem", {"ConsistentRead": True}, {"Item": item(4 * KB)}, (1, 0)),
        ("GetItem", {"ConsistentRead": True}, {"Item": item(4 * KB + 1)}, (2, 0)),
        ("GetItem", {}, {"Item": item(4 * KB)}, (0.5, 0)),
        ("GetItem", {"ConsistentRead": True}, {}, (1, 0)),
        ("Query", {"ConsistentRead": True}, {"Items": [item(KB)] * 8}, (2, 0)),
        (
            "BatchGetItem",
            {"RequestItems": {"t": {"ConsistentRead": True}}},
            {"Responses": {"t": [item(KB)] * 8}},
            (8, 0),
        ),
        ("TransactGetItems", {}, {"Responses": [{"Item": item(KB)}] * 2}, (4, 0)),
        ("PutItem", {"TableName": "t", "Item": item(KB)}, {}, (0, 1)),
        ("PutItem", {"TableName": "t", "Item": item(KB + 1)}, {}, (0, 2)),
        (
            "BatchWriteItem",
            {"RequestItems": {"t": [{"PutRequest": {"Item": item(3 * KB)}}, {"DeleteRequest": {}}]}},
            {},
            (0, 4),
        ),
        (
            "TransactWriteItems",
            {
                "TransactItems": [
                    {"Put": {"TableName": "t", "Item": item(3 * KB)}},
                    {"ConditionCheck": {"TableName": "t"}},
                ]
            },
            {},
            (0, 8),
        ),
        ("DescribeTable", {}, {}, (0, 0)),
    ],
)
def test_a_request_costs_what_the_service_would_bill(
    name: str, asked: dict[str, Any], got: dict[str, Any], units: tuple[float, float]
) -> None:
    assert Meter()._bill(name, asked, got) == units


def test_an_item_that_stands_in_an_index_costs_its_copy_too() -> None:
    meter = Meter()
    keys = [{"AttributeName": "p"}, {"AttributeName": "due"}]
    meter._indexes["t"] = [{"KeySchema": keys, "Projection": {"ProjectionType": "KEYS_ONLY"}}]
    indexed = item(3 * KB, p={"S": "a"}, due={"N": "1"})
    assert meter._bill("PutItem", {"TableName": "t", "Item": item(3 * KB, p={"S": "a"})}, {}) == (0, 4)
    assert meter._bill("PutItem", {"TableName": "t", "Item": indexed}, {}) == (0, 4 + 1)
