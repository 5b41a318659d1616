"""What goes over the wire to DynamoDB: recorded, weighed in capacity units, or made to fail on purpose.

Units are counted by the published rules from each request and the items that it meets: the emulator's own
figures leave out sizes. Reads: 4 KB a unit when strongly consistent, half when not. Writes: 1 KB a unit,
twice in a transaction, also for its checks; an index entry is a write of its own.
"""

from __future__ import annotations

import io
import json
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import urllib3
from botocore.awsrequest import AWSResponse
from botocore.exceptions import ConnectionClosedError
from botocore.httpsession import URLLib3Session

from perdure.storage.dynamodb.driver import DynamoDriver

Item = dict[str, Any]
INDEXED = ("pk", "sk", "g", "h", "n", "k")


@dataclass
class Call:
    """One request as the client was asked for it, and its answer."""

    operation: str
    parameters: Item
    answer: Item


@dataclass
class Wire:
    """What a driver asked for while it was watched. Every answer counts, also a refusal."""

    calls: list[Call] = field(default_factory=list)
    reads: float = 0.0
    writes: float = 0.0

    def count(self) -> Counter[str]:
        return Counter(call.operation for call in self.calls)


@contextmanager
def watched(driver: DynamoDriver, *, weigh: bool = False) -> Iterator[Wire]:
    """Record what a driver asks for, in the order of the answers, and weigh it on demand."""
    wire = Wire()
    asked = threading.local()
    lock = threading.Lock()
    events = driver.client.boto.meta.events
    scale = Scale(driver) if weigh else None

    def before(params: Item, **_: Any) -> None:
        if getattr(asked, "weighing", False):
            return
        asked.params = params
        asked.units = (0.0, 0.0)
        if scale is not None:
            asked.weighing = True
            try:
                asked.units = scale.written(params)
            finally:
                asked.weighing = False

    def after(parsed: Item, model: Any, **_: Any) -> None:
        if getattr(asked, "weighing", False):
            return
        reads, writes = asked.units
        if scale is not None:
            reads += scale.read(model.name, asked.params, parsed)
        with lock:
            wire.calls.append(Call(model.name, asked.params, parsed))
            wire.reads += reads
            wire.writes += writes

    events.register("provide-client-params.dynamodb", before)
    events.register("after-call.dynamodb", after)
    try:
        yield wire
    finally:
        events.unregister("provide-client-params.dynamodb", before)
        events.unregister("after-call.dynamodb", after)


class Scale:
    """The units of a request, by the items that stand in the table before it."""

    def __init__(self, driver: DynamoDriver) -> None:
        self._boto = driver.client.boto
        self._table = driver.client.table

    def written(self, params: Item) -> tuple[float, float]:
        if "TransactItems" in params:
            return 0.0, sum(
                (self._action(name, part, 2) for a in params["TransactItems"] for name, part in a.items()),
                0.0,
            )
        if "RequestItems" in params:
            requests = params["RequestItems"][self._table]
            if isinstance(requests, dict):
                return 0.0, 0.0
            puts = sum(self._put(r["PutRequest"]["Item"], 1) for r in requests if "PutRequest" in r)
            gone = [r["DeleteRequest"]["Key"] for r in requests if "DeleteRequest" in r]
            return 0.0, puts + sum(self._standing(key, 1) for key in gone)
        if "Item" in params:
            return 0.0, self._put(params["Item"], 1)
        if "UpdateExpression" in params:
            return 0.0, self._updated(params, 1)
        if "Key" in params and "ConsistentRead" not in params:
            return 0.0, self._standing(params["Key"], 1)
        return 0.0, 0.0

    def read(self, operation: str, params: Item, answer: Item) -> float:
        if operation == "GetItem":
            return _read_units(size_of(answer.get("Item", {})))
        if operation == "BatchGetItem":
            found = answer.get("Responses", {}).get(self._table, [])
            asked = len(params["RequestItems"][self._table]["Keys"])
            return sum(_read_units(size_of(item)) for item in found) + asked - len(found)
        if operation == "Query":
            units = _read_units(sum(size_of(item) for item in answer.get("Items", ())))
            return units if params.get("ConsistentRead") else units / 2
        return 0.0

    def _action(self, name: str, action: Item, factor: int) -> float:
        if name == "Put":
            return self._put(action["Item"], factor)
        return self._updated(action, factor) if name == "Update" else self._standing(action["Key"], factor)

    def _updated(self, action: Item, factor: int) -> float:
        """An update costs what the larger of the item before and after it does."""
        values = action.get("ExpressionAttributeValues", {}).values()
        return max(self._standing(action["Key"], factor), factor * _write_units(sum(map(_size, values))))

    def _put(self, item: Item, factor: int) -> float:
        units = factor * _write_units(size_of(item))
        if "o" in item:
            units += _write_units(size_of(item))
        if "g" in item:
            units += _write_units(size_of({k: v for k, v in item.items() if k in INDEXED}))
        return units

    def _standing(self, key: Item, factor: int) -> float:
        answer = self._boto.get_item(TableName=self._table, Key=key, ConsistentRead=True)
        return factor * _write_units(size_of(answer.get("Item", {})))


def size_of(item: Item) -> int:
    """The bytes of an item: names and values."""
    return sum(len(name) + _size(value) for name, value in item.items())


def _size(value: Item) -> int:
    ((kind, held),) = value.items()
    if kind == "N":
        return 1 + (len(held.strip("-")) + 1) // 2
    if kind == "M":
        return 3 + sum(1 + len(name) + _size(inner) for name, inner in held.items())
    if kind == "BS":
        return sum(map(len, held))
    return len(held.encode() if isinstance(held, str) else held)


def _write_units(size: int) -> int:
    return max(1, -(-size // 1024))


def _read_units(size: int) -> int:
    return max(1, -(-size // 4096))


# Faults


def answer(code: str, *, status: int = 400, **more: Any) -> AWSResponse:
    """An answer of DynamoDB's own make."""
    body = json.dumps(
        {"__type": f"com.amazonaws.dynamodb.v20120810#{code}", "message": code, **more}
    ).encode()
    raw = urllib3.HTTPResponse(body=io.BytesIO(body), preload_content=False)
    return AWSResponse("http://127.0.0.1/", status, {"content-type": "application/x-amz-json-1.0"}, raw)


def conflict(actions: int) -> AWSResponse:
    reasons = [{"Code": "TransactionConflict" if n == 0 else "None"} for n in range(actions)]
    return answer("TransactionCanceledException", CancellationReasons=reasons)


def lose(request: Any) -> AWSResponse:
    """Carry a request out, and lose its answer."""
    session = URLLib3Session()
    session.send(request)
    session.close()
    raise ConnectionClosedError(endpoint_url=request.url)


@contextmanager
def failing(driver: DynamoDriver, fault: Callable[[str, Any], AWSResponse | None]) -> Iterator[None]:
    """Let ``fault`` answer in the service's place: it gets the operation's name and the request, and answers,
    raises, or returns ``None`` to let the request pass."""

    def hook(request: Any, **_: Any) -> AWSResponse | None:
        target = request.headers["X-Amz-Target"]
        name = (target.decode() if isinstance(target, bytes) else target).rpartition(".")[2]
        return fault(name, request)

    events = driver.client.boto.meta.events
    events.register("before-send.dynamodb", hook)
    try:
        yield
    finally:
        events.unregister("before-send.dynamodb", hook)


def storm(seed: int, often: float = 0.3) -> tuple[Callable[[str, Any], AWSResponse | None], Counter[str]]:
    """Faults of every sort at random, and how many of each there were."""
    dice = random.Random(seed)
    lock = threading.Lock()
    seen: Counter[str] = Counter()

    def fault(name: str, request: Any) -> AWSResponse | None:
        with lock:
            hit, sort = dice.random() < often, dice.choice(("throttled", "conflict", "broken", "lost"))
            if not hit:
                return None
            if sort == "conflict" and name != "TransactWriteItems":
                sort = "throttled"
            seen[sort] += 1
        if sort == "throttled":
            return answer("ProvisionedThroughputExceededException")
        if sort == "conflict":
            return conflict(len(json.loads(request.body)["TransactItems"]))
        if sort == "broken":
            return answer("InternalServerError", status=500)
        return lose(request)

    return fault, seen
