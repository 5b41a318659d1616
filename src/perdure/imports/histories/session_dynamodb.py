"""Reads a table of DynamoDB that has an item for each session, with its messages as a list or as JSON."""

from __future__ import annotations

import time
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from boto3.dynamodb.types import Binary, TypeDeserializer
from boto3.session import Session
from botocore import exceptions as aws
from botocore.config import Config

from perdure.errors import BadUrl
from perdure.imports.histories.session_tables import COLUMNS, SessionTable
from perdure.imports.histories.sessions import SourceSession
from perdure.imports.source import DAMAGED, translate_errors
from perdure.storage.dynamodb.client import target_of

_DESERIALIZER = TypeDeserializer()


def _error_name(error: Exception) -> str:
    code = error.response["Error"]["Code"] if isinstance(error, aws.ClientError) else ""
    return code or type(error).__name__


_reading = translate_errors(aws.ClientError, aws.BotoCoreError, name_of=_error_name)


class DynamoSessions:
    """A table whose only key is that of a session, read by strongly consistent pages.

    Args:
        url: ``dynamodb://table?region=…``, as for Perdure's own tables.
        names: The names of the key and of the attribute with the messages.

    Raises:
        BadUrl: The URL cannot be used, or the table has another key.
        Unavailable: The service does not answer.
    """

    def __init__(self, url: str, names: SessionTable) -> None:
        target = target_of(url)
        self.name, self._table, self._names = str(target), target.table, names
        config = Config(retries={"mode": "adaptive", "max_attempts": 8})
        try:
            session = Session(region_name=target.region)
            self._client: Any = session.client("dynamodb", endpoint_url=target.endpoint, config=config)
        except (aws.BotoCoreError, ValueError) as error:
            raise BadUrl(f"{self.name} cannot be used: {type(error).__name__}") from error
        self._check()
        self._expires = self._expiry()

    @_reading
    def _check(self) -> None:
        keys = self._client.describe_table(TableName=self._table)["Table"]["KeySchema"]
        found = [key["AttributeName"] for key in keys]
        if found != [self._names.key]:
            raise BadUrl(
                f"{self.name} has the key {', '.join(found)}, not {self._names.key} alone; name it with --key"
            )

    @_reading
    def _expiry(self) -> str | None:
        """Return the attribute with the time at which an item expires, if the table has one."""
        found = self._client.describe_time_to_live(TableName=self._table)["TimeToLiveDescription"]
        if found.get("TimeToLiveStatus") not in ("ENABLED", "ENABLING"):
            return None
        name: str | None = found.get("AttributeName")
        return name

    def sessions(self) -> Iterator[SourceSession]:
        """Yield the sessions, in no order, without those that have expired and are not removed yet."""
        start: dict[str, Any] = {}
        while True:
            page = self._page(start)
            for item in page["Items"]:
                if not self._has_expired(item):
                    yield self._session(item)
            if "LastEvaluatedKey" not in page:
                return
            start = {"ExclusiveStartKey": page["LastEvaluatedKey"]}

    @_reading
    def _page(self, start: dict[str, Any]) -> Any:
        return self._client.scan(TableName=self._table, ConsistentRead=True, **start)

    def _has_expired(self, item: dict[str, Any]) -> bool:
        at = item.get(self._expires or "", {}).get("N")
        return at is not None and float(at) <= time.time()

    def _session(self, item: dict[str, Any]) -> SourceSession:
        ((kind, key),) = item[self._names.key].items()
        if kind not in ("S", "N"):
            return SourceSession(repr(key), why="its key is neither text nor a number")
        named = (self._names.column,) if self._names.column else COLUMNS
        held = next((item[name] for name in named if name in item), None)
        if held is None:
            return SourceSession(key, why=f"it has no {' or '.join(map(str, named))}")
        try:
            return SourceSession(key, _plain(_DESERIALIZER.deserialize(held)))
        except DAMAGED as error:
            return SourceSession(key, why=f"its history cannot be read ({type(error).__name__})")

    def close(self) -> None:
        """Close the connections."""
        self._client.close()


def _plain(value: Any) -> Any:
    """Return a value of an item as JSON has it: numbers are integers where they are whole."""
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, Binary):
        return bytes(value.value).decode()
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_plain(part) for part in value]
    return value
