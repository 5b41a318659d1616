"""DynamoDB's read and write units, by the published rules, from what a client in this process sends and gets.

An emulator bills one unit a request, whatever its size; so the sizes are taken from the requests and answers
themselves: a write costs a unit a started kilobyte of the item, twice that in a transaction, and once more
for each index that the item stands in; a consistent read one a started 4 kB, half when it is eventual, double
in a transaction. A query costs what it read together; a filter or a projection makes it look cheaper here
than it is, and a deleted item counts as one unit.
"""

from __future__ import annotations

import importlib
import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

_NUMBER_BYTES = 21


@dataclass
class Units:
    read: float = 0.0
    write: float = 0.0
    requests: int = 0
    refused: int = 0


class Meter:
    """Counts every DynamoDB call that boto3 makes in this process after `install`. Safe for many threads."""

    def __init__(self) -> None:
        self._units = Units()
        self._indexes: dict[str, list[Mapping[str, Any]]] = {}
        self._lock = threading.Lock()
        self.installed = False

    def install(self) -> None:
        """Repeatable. It wraps the one method of the client through which all calls pass."""
        if self.installed:
            return
        self.installed = True
        client: Any = importlib.import_module("botocore.client")
        call = client.BaseClient._make_api_call

        def call_counted(client: Any, name: str, params: dict[str, Any]) -> Any:
            if client.meta.service_model.service_name != "dynamodb":
                return call(client, name, params)
            self._learn(client, name, params, call)
            try:
                answer = call(client, name, params)
            except client.exceptions.ClientError:
                with self._lock:
                    self._units.requests += 1
                    self._units.refused += 1
                raise
            with self._lock:
                self._units.requests += 1 + answer.get("ResponseMetadata", {}).get("RetryAttempts", 0)
                read, write = self._bill(name, params, answer)
                self._units.read += read
                self._units.write += write
            return answer

        client.BaseClient._make_api_call = call_counted

    def units(self) -> dict[str, float]:
        with self._lock:
            return asdict(self._units)

    def _learn(self, client: Any, name: str, params: Mapping[str, Any], call: Callable[..., Any]) -> None:
        """Before the first write to a table, which indexes it has."""
        for table in _find_written(name, params) - self._indexes.keys():
            described = call(client, "DescribeTable", {"TableName": table})["Table"]
            self._indexes[table] = described.get("GlobalSecondaryIndexes", [])

    def _bill(self, name: str, asked: Mapping[str, Any], got: Mapping[str, Any]) -> tuple[float, float]:
        if name == "GetItem":
            return _read([got["Item"]] if "Item" in got else [], consistent=_consistent(asked)), 0
        if name == "Query":
            size = sum(map(item_bytes, got.get("Items", ())))
            return _read_units(size, consistent=_consistent(asked)), 0
        if name == "BatchGetItem":
            return sum(
                _read(items, consistent=_consistent(asked["RequestItems"].get(table, {})))
                for table, items in got.get("Responses", {}).items()
            ), 0
        if name == "TransactGetItems":
            items = [each["Item"] for each in got.get("Responses", ()) if "Item" in each]
            return 2 * _read(items, consistent=True), 0
        if name == "PutItem":
            return 0, self._put(asked["TableName"], asked["Item"])
        if name in ("DeleteItem", "UpdateItem"):
            return 0, 1
        if name == "BatchWriteItem":
            return 0, sum(
                self._put(table, each["PutRequest"]["Item"]) if "PutRequest" in each else 1
                for table, requests in asked["RequestItems"].items()
                for each in requests
            )
        if name == "TransactWriteItems":
            return 0, sum(self._in_transaction(each) for each in asked["TransactItems"])
        return 0, 0

    def _in_transaction(self, item: Mapping[str, Any]) -> float:
        if (update := item.get("Update")) is not None:
            # The item is at least as large as what is set in it.
            return 2 * _write_units(item_bytes(update.get("ExpressionAttributeValues", {})))
        put = item.get("Put")
        if put is None:
            return 2
        table = put["TableName"]
        return 2 * _write_units(item_bytes(put["Item"])) + self._count_indexed(table, put["Item"])

    def _put(self, table: str, item: Mapping[str, Any]) -> float:
        return _write_units(item_bytes(item)) + self._count_indexed(table, item)

    def _count_indexed(self, table: str, item: Mapping[str, Any]) -> float:
        total = 0.0
        for index in self._indexes.get(table, ()):
            keys = [each["AttributeName"] for each in index["KeySchema"]]
            if all(key in item for key in keys):
                whole = index.get("Projection", {}).get("ProjectionType") == "ALL"
                total += _write_units(item_bytes(item if whole else {key: item[key] for key in keys}))
        return total


def _find_written(name: str, asked: Mapping[str, Any]) -> set[str]:
    if name == "PutItem":
        return {asked["TableName"]}
    if name == "BatchWriteItem":
        return set(asked["RequestItems"])
    if name == "TransactWriteItems":
        return {each["Put"]["TableName"] for each in asked["TransactItems"] if "Put" in each}
    return set()


METER = Meter()
"""The one of this process."""


def item_bytes(item: Mapping[str, Any]) -> int:
    """The size that DynamoDB bills: names and values, in UTF-8 and bytes."""
    return sum(len(name.encode()) + _value_bytes(value) for name, value in item.items())


def _value_bytes(value: Any) -> int:
    """Of an attribute as the low-level client writes it, `{"S": …}`, or as the resource does, bare."""
    if isinstance(value, Mapping) and len(value) == 1:
        ((kind, inner),) = value.items()
        if kind == "M":
            return 3 + sum(1 + len(name.encode()) + _value_bytes(each) for name, each in inner.items())
        if kind == "L":
            return 3 + sum(1 + _value_bytes(each) for each in inner)
        if kind in ("S", "B"):
            return _plain_bytes(inner)
        if kind == "N":
            return min(_NUMBER_BYTES, 1 + math.ceil(len(str(inner)) / 2))
        if kind in ("SS", "BS", "NS"):
            return sum(map(_plain_bytes, inner))
        return 1
    return _plain_bytes(value)


def _plain_bytes(value: Any) -> int:
    if isinstance(value, str):
        return len(value.encode())
    if isinstance(value, bytes | bytearray | memoryview):
        return len(value)
    return _NUMBER_BYTES


def _consistent(asked: Mapping[str, Any]) -> bool:
    return bool(asked.get("ConsistentRead"))


def _read(items: Any, *, consistent: bool) -> float:
    """One by one, as GetItem and BatchGetItem round; a miss costs the least."""
    return sum(_read_units(item_bytes(item), consistent=consistent) for item in items) or _read_units(
        0, consistent=consistent
    )


def _read_units(size: int, *, consistent: bool) -> float:
    return max(1, math.ceil(size / 4096)) * (1.0 if consistent else 0.5)


def _write_units(size: int) -> int:
    return max(1, math.ceil(size / 1024))
