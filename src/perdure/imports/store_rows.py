"""Reads the rows of the stock stores' table, which is the same on SQLite and PostgreSQL."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from perdure.errors import Corrupt
from perdure.imports.source import DAMAGED, DamagedItem, SourceItem
from perdure.model.times import read_time, to_micros

_MINUTE = 60_000_000


def read_item(prefix: Any, key: Any, *row: Any) -> SourceItem | DamagedItem:
    """Return the item of a row like ``item_of``, or a ``DamagedItem`` with the reason if it cannot be
    read."""
    try:
        prefix.encode()
        key.encode()
        return item_of(prefix, key, *row)
    except Corrupt as error:
        return DamagedItem(str(error))
    except DAMAGED as error:
        where = f"item {key!r} of the store's namespace {prefix!r}"
        return DamagedItem(f"{where}: its row cannot be read ({type(error).__name__}); the source is damaged")


def item_of(prefix: str, key: str, value: Any, created_at: Any, updated_at: Any, *expiry: Any) -> SourceItem:
    """Return the item of a row.

    Args:
        prefix: The namespace, its labels joined by dots; the stock stores refuse labels with dots in them.
        key: The item's key.
        value: Its value, as JSON text or decoded.
        created_at: A time, as text in UTC or decoded.
        updated_at: A time, likewise.
        expiry: ``expires_at``, a time or ``None``, and ``ttl_minutes``, a number or ``None``.

    Raises:
        Corrupt: the value is not a JSON object. Other damage of a row raises one of ``DAMAGED``.
    """
    expires_at, minutes = expiry
    if isinstance(value, str | bytes):
        value = json.loads(value)
    if not isinstance(value, dict):
        raise Corrupt(f"item {key!r} of the store's namespace {prefix!r} is not a JSON object")
    return SourceItem(
        tuple(prefix.split(".")) if prefix else (),
        key,
        value,
        _to_microseconds(created_at),
        _to_microseconds(updated_at),
        None if minutes is None else round(float(minutes) * _MINUTE),
        None if expires_at is None else _to_microseconds(expires_at),
    )


def _to_microseconds(value: Any) -> int:
    if value is None:
        return 0
    if isinstance(value, datetime):
        return to_micros(value)
    return read_time(str(value))
