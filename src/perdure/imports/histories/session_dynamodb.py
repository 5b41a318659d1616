"""Reads a table of DynamoDB that has an item for each session, with its messages as a list or as JSON."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from perdure.errors import BadUrl
from perdure.imports.dynamodb import open_client, read_items, read_key_names, read_value, reading
from perdure.imports.histories.session_tables import SessionTable
from perdure.imports.histories.sessions import SourceSession
from perdure.imports.source import DAMAGED
from perdure.storage.dynamodb.client import target_of


class DynamoSessions:
    """A table whose only key is the session's id, read by strongly consistent pages.

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
        self._client = open_client(target)
        self._check()
        self._expiry_attribute = self._find_expiry_attribute()

    @reading
    def _check(self) -> None:
        found = read_key_names(self._client, self._table)
        if found != [self._names.key]:
            raise BadUrl(
                f"{self.name} has the key {', '.join(found)}, not {self._names.key} alone; name it with --key"
            )

    @reading
    def _find_expiry_attribute(self) -> str | None:
        """Return the attribute with the time at which an item expires, if the table has one."""
        found = self._client.describe_time_to_live(TableName=self._table)["TimeToLiveDescription"]
        if found.get("TimeToLiveStatus") not in ("ENABLED", "ENABLING"):
            return None
        name: str | None = found.get("AttributeName")
        return name

    def sessions(self) -> Iterator[SourceSession]:
        """Yield the sessions, in no order, without those that have expired and are not removed yet."""
        for item in read_items(self._scan_page):
            if not self._has_expired(item):
                yield self._read_session(item)

    @reading
    def _scan_page(self, **parameters: Any) -> Any:
        return self._client.scan(TableName=self._table, **parameters)

    def _has_expired(self, item: Mapping[str, Any]) -> bool:
        expires_at = item.get(self._expiry_attribute or "", {}).get("N")
        return expires_at is not None and float(expires_at) <= time.time()

    def _read_session(self, item: Mapping[str, Any]) -> SourceSession:
        ((kind, key),) = item[self._names.key].items()
        if kind not in ("S", "N"):
            return SourceSession(repr(key), why="its key is neither text nor a number")
        named = self._names.columns
        history = next((item[name] for name in named if name in item), None)
        if history is None:
            return SourceSession(key, why=f"it has no {' or '.join(named)}")
        try:
            return SourceSession(key, read_value(history, decodes=True))
        except DAMAGED as error:
            return SourceSession(key, why=f"its history cannot be read ({type(error).__name__})")

    def close(self) -> None:
        """Close the connections."""
        self._client.close()
