"""Reads the table of langgraph-checkpoint-aws's DynamoDBSaver: checkpoints, payloads and pending writes."""

from __future__ import annotations

import functools
import gzip
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, TypeVar

from boto3.session import Session
from botocore import exceptions as aws
from botocore.config import Config
from langgraph.checkpoint.base import CheckpointTuple

from perdure.errors import BadUrl, Contention, Corrupt, Unavailable, Unserialisable
from perdure.imports.expected_tuples import as_tuple
from perdure.imports.payloads import SERDE, StockSerde, loaded, payload
from perdure.imports.source import (
    CheckpointEntry,
    Outline,
    SourceCheckpoint,
    SourceItem,
    SourceWrite,
    WriteSlot,
)
from perdure.storage.dynamodb.client import target_of

PACKAGE = "langgraph-checkpoint-aws"
_CHECKPOINTS, _WRITES = "CHECKPOINT_", "WRITES_"
R = TypeVar("R")


def _reading(method: Callable[..., R]) -> Callable[..., R]:
    """Translate the client's errors, in one place."""

    @functools.wraps(method)
    def call(self: DynamoSource, *args: Any, **more: Any) -> R:
        try:
            return method(self, *args, **more)
        except (aws.ClientError, aws.BotoCoreError) as error:
            code = error.response["Error"]["Code"] if isinstance(error, aws.ClientError) else ""
            raise Unavailable(f"{self.name} cannot be read: {code or type(error).__name__}") from error

    return call


class DynamoSource:
    """A table of DynamoDBSaver, opened for reading. Payloads that were moved to S3 are refused by name.

    Args:
        url: ``dynamodb://table?region=…``, as for Perdure's own tables.

    Raises:
        BadUrl: The URL cannot be used, or the table is not one of the saver's.
        Unavailable: The service does not answer.
    """

    def __init__(self, url: str) -> None:
        target = target_of(url)
        self.name, self._table = str(target), target.table
        config = Config(retries={"mode": "adaptive", "max_attempts": 8})
        try:
            session = Session(region_name=target.region)
            self._client: Any = session.client("dynamodb", endpoint_url=target.endpoint, config=config)
        except (aws.BotoCoreError, ValueError) as error:
            raise BadUrl(f"{self.name} cannot be used: {type(error).__name__}") from error
        self._check()
        self._saver = self._stock_saver(target.region, target.endpoint)
        self.verifier = PACKAGE if self._saver is not None else self.name

    @_reading
    def _check(self) -> None:
        keys = self._client.describe_table(TableName=self._table)["Table"]["KeySchema"]
        if {key["AttributeName"] for key in keys} != {"PK", "SK"}:
            raise BadUrl(f"{self.name} is no table of {PACKAGE}'s DynamoDBSaver, whose keys are PK and SK")

    def _stock_saver(self, region: str | None, endpoint: str | None) -> Any:
        if find_spec("langgraph_checkpoint_aws") is None:
            return None
        from langgraph_checkpoint_aws import DynamoDBSaver

        saver = DynamoDBSaver(self._table, region_name=region, endpoint_url=endpoint)
        # Its constructor takes no serializer.
        saver.serializer.serde = StockSerde()
        return saver

    def count(self) -> int | None:
        """Return ``None``: counting would read the whole table."""
        return None

    def threads(self) -> Iterator[str]:
        """Yield the ids of the threads, in no order."""
        seen: set[str] = set()
        for item in self._pages(
            "scan",
            ProjectionExpression="PK",
            FilterExpression="begins_with(PK, :kind)",
            ExpressionAttributeValues={":kind": {"S": _CHECKPOINTS}},
        ):
            thread = item["PK"]["S"].removeprefix(_CHECKPOINTS)
            if thread not in seen:
                seen.add(thread)
                yield thread

    def outline(self, thread: str) -> Outline:
        """Return what there is of a thread. Writes without a checkpoint can be found only by reading the
        whole table, and are left out."""
        outline = Outline()
        for item in self._query(_CHECKPOINTS + thread, "ns, id, parent_checkpoint_id"):
            parent = item.get("parent_checkpoint_id", {}).get("S")
            outline.checkpoints.append(CheckpointEntry(item["ns"]["S"], item["id"]["S"], parent or None))
        outline.checkpoints.sort(key=lambda entry: entry.id)
        for entry in outline.checkpoints:
            outline.writes += [slot for slot, _ in self._slots(thread, entry)]
        return outline

    def _slots(self, thread: str, entry: CheckpointEntry) -> list[tuple[WriteSlot, str]]:
        """Return the writes of a checkpoint in the saver's order, each with the path of its task."""
        key = f"{_WRITES}{thread}#{entry.namespace}#{entry.id}"
        return [
            (
                WriteSlot(entry.namespace, entry.id, item["task_id"]["S"], int(item["idx"]["N"])),
                item.get("task_path", {}).get("S", ""),
            )
            for item in self._query(key, "task_id, idx, task_path")
        ]

    def checkpoints(self, thread: str, wanted: Sequence[CheckpointEntry]) -> Iterator[SourceCheckpoint]:
        """Yield checkpoints in the given order."""
        for entry in wanted:
            item = self._item(_CHECKPOINTS + thread, f"{entry.namespace}#{entry.id}")
            found = loaded(*self._payload(item))
            if not isinstance(found, dict) or not isinstance(found.get("checkpoint"), dict):
                raise Corrupt(f"checkpoint {entry.id} is damaged at the source")
            yield SourceCheckpoint(entry, found["checkpoint"], dict(found.get("metadata") or {}))

    def writes(self, thread: str, wanted: Sequence[WriteSlot]) -> Iterator[SourceWrite]:
        """Yield pending writes in the given order."""
        for slot in wanted:
            key = f"{_WRITES}{thread}#{slot.namespace}#{slot.checkpoint_id}"
            item = self._item(key, f"{slot.task_id}#{slot.idx}")
            path = item.get("task_path", {}).get("S", "")
            yield SourceWrite(slot, path, item["channel"]["S"], *payload(*self._payload(item)))

    def expected(self, thread: str, wanted: Sequence[CheckpointEntry]) -> Iterator[CheckpointTuple]:
        """Yield checkpoints as the saver returns them, or as they are read here without its package. The
        saver orders writes by the text of their keys; here they are in LangGraph's order."""
        for entry in wanted:
            slots = self._slots(thread, entry)
            if self._saver is None:
                (found,) = self.checkpoints(thread, [entry])
                yield as_tuple(thread, found, self.writes(thread, [slot for slot, _ in slots]), SERDE)
                continue
            yield self._stock(thread, entry, slots)

    @_reading
    def _stock(
        self, thread: str, entry: CheckpointEntry, slots: list[tuple[WriteSlot, str]]
    ) -> CheckpointTuple:
        configurable = {"thread_id": thread, "checkpoint_ns": entry.namespace, "checkpoint_id": entry.id}
        found: CheckpointTuple | None = self._saver.get_tuple({"configurable": configurable})
        if found is None or len(found.pending_writes or ()) != len(slots):
            raise Contention(f"checkpoint {entry.id} is gone from {self.name}, or changed")
        pairs = zip(slots, found.pending_writes or (), strict=True)
        ordered = sorted(pairs, key=lambda pair: (pair[0][1], pair[0][0].task_id, pair[0][0].idx))
        return found._replace(pending_writes=[write for _, write in ordered])

    def latest(self, thread: str, namespace: str, outline: Outline) -> str:
        """Return the largest id: the saver's rule."""
        return max(entry.id for entry in outline.checkpoints if entry.namespace == namespace)

    def items(self) -> Iterator[SourceItem]:
        """Return nothing: the package's store has a table of its own, which is not read."""
        return iter(())

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _query(self, key: str, projection: str) -> Iterator[Mapping[str, Any]]:
        return self._pages(
            "query",
            KeyConditionExpression="PK = :key",
            ExpressionAttributeValues={":key": {"S": key}},
            ProjectionExpression=projection,
        )

    def _pages(self, operation: str, **parameters: Any) -> Iterator[Mapping[str, Any]]:
        start: dict[str, Any] = {}
        while True:
            page = self._call(operation, ConsistentRead=True, **parameters, **start)
            yield from page["Items"]
            if "LastEvaluatedKey" not in page:
                return
            start = {"ExclusiveStartKey": page["LastEvaluatedKey"]}

    def _item(self, key: str, sort: str) -> Mapping[str, Any]:
        answer = self._call("get_item", Key={"PK": {"S": key}, "SK": {"S": sort}}, ConsistentRead=True)
        if "Item" not in answer:
            raise Contention(f"an item of {key!r} is gone from {self.name}")
        found: Mapping[str, Any] = answer["Item"]
        return found

    @_reading
    def _call(self, operation: str, **parameters: Any) -> dict[str, Any]:
        answer: dict[str, Any] = getattr(self._client, operation)(TableName=self._table, **parameters)
        return answer

    def _payload(self, item: Mapping[str, Any]) -> tuple[str, bytes]:
        """Return the form and the bytes of an item's payload."""
        if item["ref_loc"]["S"] != "DYNAMODB":
            raise Unserialisable(
                "a value was moved to S3, which this command does not read. Load the thread in your own "
                "program with DynamoDBSaver(s3_offload_config=…), and put it with db.checkpointer()"
            )
        body: bytes = self._item(item["ref_key"]["S"], "CHUNK")["payload"]["B"]
        if item.get("compression", {}).get("S"):
            try:
                body = gzip.decompress(body)
            except (OSError, EOFError, zlib.error) as error:
                raise Corrupt("a compressed value is damaged at the source") from error
        return item["type"]["S"], body
