"""Reads the tables of langgraph-checkpoint-aws: DynamoDBSaver's checkpoints, payloads and pending writes, and
DynamoDBStore's items."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from importlib.util import find_spec
from typing import Any

from boto3.dynamodb.types import Binary, TypeDeserializer
from boto3.session import Session
from botocore import exceptions as aws
from botocore.config import Config
from langgraph.checkpoint.base import CheckpointTuple

from perdure.errors import BadUrl, Contention, Corrupt, Unavailable, Unserialisable
from perdure.imports.payloads import StockSerde, load, payload
from perdure.imports.source import (
    DAMAGED,
    CheckpointEntry,
    DamagedItem,
    Outline,
    SourceCheckpoint,
    SourceItem,
    SourceWrite,
    StockSource,
    WriteSlot,
    translate_errors,
)
from perdure.model.times import read_time
from perdure.storage.dynamodb.client import DynamoUrl, target_of

PACKAGE = "langgraph-checkpoint-aws"
_CHECKPOINTS, _WRITES = "CHECKPOINT_", "WRITES_"
_PAGE = 32
_BATCH = 100
"""Maximum number of keys of one request, which is DynamoDB's limit."""
_DESERIALIZER = TypeDeserializer()


def _find_error_name(error: Exception) -> str:
    code = ""
    if isinstance(error, aws.ClientError):
        code = error.response["Error"]["Code"]
    return code or type(error).__name__


reading = translate_errors(aws.ClientError, aws.BotoCoreError, name_of=_find_error_name)
"""Decorator for methods of a source that call DynamoDB: the client's errors become ``Unavailable``."""


KEYS = ("PK", "SK")
"""The attributes of the key of a table of the package's."""


def read_key_names_at(url: str) -> list[str]:
    """Return the names of the attributes of a table's key.

    Raises:
        BadUrl: The URL cannot be used.
        Unavailable: The service does not answer, or there is no such table.
    """
    target = target_of(url)
    try:
        return read_key_names(open_client(target), target.table)
    except (aws.ClientError, aws.BotoCoreError) as error:
        raise Unavailable(f"{target} cannot be read: {_find_error_name(error)}") from error


def read_key_names(client: Any, table: str) -> list[str]:
    """Return the names of a table's keys; the client's errors are not translated."""
    keys = client.describe_table(TableName=table)["Table"]["KeySchema"]
    return [key["AttributeName"] for key in keys]


def open_client(target: DynamoUrl) -> Any:
    """Return a client of a table's service; raise ``BadUrl`` if its URL cannot be used."""
    config = Config(retries={"mode": "adaptive", "max_attempts": 8})
    try:
        session = Session(region_name=target.region)
        return session.client("dynamodb", endpoint_url=target.endpoint, config=config)
    except (aws.BotoCoreError, ValueError) as error:
        raise BadUrl(f"{target} cannot be used: {type(error).__name__}") from error


class DynamoSource(StockSource):
    """A table of DynamoDBSaver or of DynamoDBStore, opened for reading. A thread with payloads that were
    moved to S3 is refused with that reason.

    Args:
        url: ``dynamodb://table?region=…``, as for Perdure's own tables.

    Raises:
        BadUrl: The URL cannot be used, or the table is not one of the package's.
        Unavailable: The service does not answer.
    """

    package = PACKAGE

    def __init__(self, url: str) -> None:
        target = target_of(url)
        self.name, self._table = str(target), target.table
        self._client: Any = open_client(target)
        self._check()
        self._slots: tuple[str, dict[CheckpointEntry, list[tuple[WriteSlot, str]]]] = ("", {})
        self.saver = self._open_stock_saver(target.region, target.endpoint)

    @reading
    def _check(self) -> None:
        if set(read_key_names(self._client, self._table)) != set(KEYS):
            raise BadUrl(f"{self.name} is not a table of {PACKAGE}, whose keys are PK and SK")

    def _open_stock_saver(self, region: str | None, endpoint: str | None) -> Any:
        if find_spec("langgraph_checkpoint_aws") is None:
            return None
        from langgraph_checkpoint_aws import DynamoDBSaver

        saver = DynamoDBSaver(self._table, region_name=region, endpoint_url=endpoint)
        # The constructor takes no serializer, so replace the saver's own.
        saver.serializer.serde = StockSerde()
        return saver

    def count(self) -> int | None:
        """Return ``None``: counting would read the whole table."""
        return None

    def threads(self) -> Iterator[str]:
        """Yield the ids of the threads, in no order."""
        seen: set[str] = set()
        for item in read_items(
            self._call,
            "scan",
            ProjectionExpression="PK",
            FilterExpression="begins_with(PK, :kind) AND attribute_exists(ref_key)",
            ExpressionAttributeValues={":kind": {"S": _CHECKPOINTS}},
        ):
            thread = item["PK"]["S"].removeprefix(_CHECKPOINTS)
            if thread not in seen:
                seen.add(thread)
                yield thread

    def outline(self, thread: str) -> Outline:
        """Return the outline of a thread. Writes without a checkpoint can be found only by reading the whole
        table, and are left out."""
        outline = Outline()
        for item in self._query(_CHECKPOINTS + thread, "ns, id, parent_checkpoint_id"):
            parent = item.get("parent_checkpoint_id", {}).get("S")
            outline.checkpoints.append(CheckpointEntry(item["ns"]["S"], item["id"]["S"], parent or None))
        outline.checkpoints.sort(key=lambda entry: entry.id)
        by_entry = {entry: self._read_slots(thread, entry) for entry in outline.checkpoints}
        outline.writes = [slot for slots in by_entry.values() for slot, _ in slots]
        self._slots = (thread, by_entry)
        return outline

    def _read_slots(self, thread: str, entry: CheckpointEntry) -> list[tuple[WriteSlot, str]]:
        """Return the writes of a checkpoint in the saver's order, each with the path of its task."""
        key = f"{_WRITES}{thread}#{entry.namespace}#{entry.id}"
        return [
            (
                WriteSlot(entry.namespace, entry.id, item["task_id"]["S"], int(item["idx"]["N"])),
                item.get("task_path", {}).get("S", ""),
            )
            for item in self._query(key, "task_id, idx, task_path")
        ]

    def _find_slots(self, thread: str, entry: CheckpointEntry) -> list[tuple[WriteSlot, str]]:
        """Return the writes of a checkpoint, from the last outline if that is the thread's."""
        outlined_thread, by_entry = self._slots
        if outlined_thread == thread and entry in by_entry:
            return by_entry[entry]
        return self._read_slots(thread, entry)

    def checkpoints(self, thread: str, wanted: Sequence[CheckpointEntry]) -> Iterator[SourceCheckpoint]:
        """Yield checkpoints in the given order."""
        keys = [(_CHECKPOINTS + thread, f"{entry.namespace}#{entry.id}") for entry in wanted]
        for entry, (_, kind, body) in zip(wanted, self._read_payloads(keys), strict=True):
            found = load(kind, body)
            if not isinstance(found, dict) or not isinstance(found.get("checkpoint"), dict):
                raise Corrupt(f"checkpoint {entry.id} is damaged at the source")
            yield SourceCheckpoint(entry, found["checkpoint"], dict(found.get("metadata") or {}))

    def writes(self, thread: str, wanted: Sequence[WriteSlot]) -> Iterator[SourceWrite]:
        """Yield pending writes in the given order."""
        keys = [
            (f"{_WRITES}{thread}#{slot.namespace}#{slot.checkpoint_id}", f"{slot.task_id}#{slot.idx}")
            for slot in wanted
        ]
        for slot, (item, kind, body) in zip(wanted, self._read_payloads(keys), strict=True):
            path = item.get("task_path", {}).get("S", "")
            yield SourceWrite(slot, path, item["channel"]["S"], *payload(kind, body))

    def slots_of(self, thread: str, entry: CheckpointEntry) -> list[WriteSlot]:
        """Return the slots of a checkpoint's pending writes."""
        return [slot for slot, _ in self._find_slots(thread, entry)]

    @reading
    def read_stock(self, thread: str, entry: CheckpointEntry) -> CheckpointTuple:
        """Return a checkpoint as the saver returns it, but with its writes in LangGraph's order: the saver
        orders them by the text of their keys."""
        found, slots = super().read_stock(thread, entry), self._find_slots(thread, entry)
        if len(found.pending_writes or ()) != len(slots):
            raise Contention(f"checkpoint {entry.id} at {self.name} changed")
        pairs = zip(slots, found.pending_writes or (), strict=True)
        ordered = sorted(pairs, key=lambda pair: (pair[0][1], pair[0][0].task_id, pair[0][0].idx))
        return found._replace(pending_writes=[write for _, write in ordered])

    def items(self) -> Iterator[SourceItem | DamagedItem]:
        """Yield the items of a table of DynamoDBStore, in no order."""
        pages = read_items(
            self._call,
            "scan",
            ProjectionExpression="PK, SK, #value, created_at, updated_at, expires_at",
            FilterExpression="attribute_exists(#value) AND attribute_exists(created_at)",
            ExpressionAttributeNames={"#value": "value"},
        )
        return map(_make_item, pages)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _query(self, key: str, projection: str) -> Iterator[Mapping[str, Any]]:
        return read_items(
            self._call,
            "query",
            KeyConditionExpression="PK = :key",
            ExpressionAttributeValues={":key": {"S": key}},
            ProjectionExpression=projection,
        )

    def _read_payloads(
        self, keys: Sequence[tuple[str, str]]
    ) -> Iterator[tuple[Mapping[str, Any], str, bytes]]:
        """Yield the items of keys in the given order, each with the form and the bytes of its payload."""
        for start in range(0, len(keys), _PAGE):
            page = keys[start : start + _PAGE]
            items_by_key = self._read_items(page)
            items = [items_by_key[key] for key in page]
            for item in items:
                if item["ref_loc"]["S"] != "DYNAMODB":
                    raise Unserialisable(
                        "a value was moved to S3, which this command does not read. Load the thread in your "
                        "own program with DynamoDBSaver(s3_offload_config=…), and put it with "
                        "db.checkpointer()"
                    )
            places = [(item["ref_key"]["S"], "CHUNK") for item in items]
            bodies = self._read_items(places)
            for item, place in zip(items, places, strict=True):
                yield item, item["type"]["S"], _unpack(item, bodies[place]["payload"]["B"])

    def _read_items(self, keys: Sequence[tuple[str, str]]) -> dict[tuple[str, str], Mapping[str, Any]]:
        """Return items by key; raise ``Contention`` if one is gone."""
        found: dict[tuple[str, str], Mapping[str, Any]] = {}
        rest: list[Any] = [{"PK": {"S": key}, "SK": {"S": sort}} for key, sort in dict.fromkeys(keys)]
        while rest:
            asked, rest = rest[:_BATCH], rest[_BATCH:]
            answer = self._read_batch(asked)
            for item in answer["Responses"].get(self._table, ()):
                found[item["PK"]["S"], item["SK"]["S"]] = item
            # Items that do not fit one answer, or the table's capacity, are requested again.
            rest += answer.get("UnprocessedKeys", {}).get(self._table, {}).get("Keys", ())
        for key in keys:
            if key not in found:
                raise Contention(f"an item of {key[0]!r} is gone from {self.name}")
        return found

    @reading
    def _read_batch(self, keys: Sequence[Any]) -> dict[str, Any]:
        wanted = {self._table: {"Keys": keys, "ConsistentRead": True}}
        answer: dict[str, Any] = self._client.batch_get_item(RequestItems=wanted)
        return answer

    @reading
    def _call(self, operation: str, **parameters: Any) -> dict[str, Any]:
        answer: dict[str, Any] = getattr(self._client, operation)(TableName=self._table, **parameters)
        return answer


def read_items(call: Callable[..., Any], *args: Any, **parameters: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the items of all pages of a query or a scan, which are read with strong consistency."""
    start: dict[str, Any] = {}
    while True:
        page = call(*args, ConsistentRead=True, **parameters, **start)
        yield from page["Items"]
        if "LastEvaluatedKey" not in page:
            return
        start = {"ExclusiveStartKey": page["LastEvaluatedKey"]}


def _make_item(row: Mapping[str, Any]) -> SourceItem | DamagedItem:
    """Return an item of DynamoDBStore, which joins the labels of a namespace by colons and splits them
    there."""
    prefix, key = row["PK"]["S"], row["SK"]["S"]
    try:
        value = read_value(row["value"])
        if not isinstance(value, dict):
            raise TypeError("the value is not a map")
        created, updated = (read_time(row[name]["S"]) for name in ("created_at", "updated_at"))
        # DynamoDBStore stores the time when an item expires, from which its lifetime is derived.
        expires = ttl = None
        if "expires_at" in row:
            expires = int(row["expires_at"]["N"]) * 1_000_000
            ttl = max(expires - updated, 1)
        return SourceItem(tuple(prefix.split(":")), key, value, created, updated, ttl, expires)
    except DAMAGED as error:
        where = f"item {key!r} of the store's namespace {prefix!r}"
        return DamagedItem(f"{where}: it is not of JSON values ({type(error).__name__}: {error})")


def read_value(attribute: Mapping[str, Any], *, decodes: bool = False) -> Any:
    """Return the value of an attribute as a JSON value; whole numbers become integers.

    Args:
        attribute: The attribute, as the client returns it.
        decodes: True to decode bytes as text.

    Raises:
        TypeError: The attribute is not a JSON value.
    """

    def convert(value: Any) -> Any:
        if isinstance(value, Decimal):
            if value == value.to_integral_value():
                return int(value)
            return float(value)
        if isinstance(value, dict):
            return {key: convert(held) for key, held in value.items()}
        if isinstance(value, list):
            return [convert(held) for held in value]
        if decodes and isinstance(value, Binary):
            return bytes(value.value).decode()
        if value is None or isinstance(value, str | bool):
            return value
        raise TypeError(f"{type(value).__name__} is not a JSON value")

    return convert(_DESERIALIZER.deserialize(attribute))


def _unpack(item: Mapping[str, Any], body: bytes) -> bytes:
    """Return an item's payload, decompressed if it is compressed."""
    if not item.get("compression", {}).get("S"):
        return body
    try:
        return gzip.decompress(body)
    except (OSError, EOFError, zlib.error) as error:
        raise Corrupt("a compressed value is damaged at the source") from error
