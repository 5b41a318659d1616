"""Compares an object with the one read back: equal, and of the same type."""

from __future__ import annotations

import dataclasses
from collections import deque
from decimal import Decimal
from typing import Any

from langgraph.types import Send
from pydantic import BaseModel

from perdure.langgraph.values.datatypes import is_old_model
from perdure.langgraph.values.object_building import kept_fields

_NATIVE = (str, int, float, dict, list)


def is_same(before: Any, after: Any) -> bool:
    """Return True if a value was read back as it was stored. Changes that MessagePack always makes are
    allowed: tuples and subclasses of built-in types become the plain type, other sequences of bytes become
    bytes, and exceptions become text."""
    kind, other = type(before), type(after)
    if kind is not other:
        return _is_changed_on_purpose(before, after)
    if isinstance(before, BaseModel) or is_old_model(kind):
        return _is_same_dict(kept_fields(before), kept_fields(after))
    if kind is dict:
        return _is_same_dict(before, after)
    if isinstance(before, deque) and before.maxlen != after.maxlen:
        return False
    if isinstance(before, list | tuple | deque):
        return len(before) == len(after) and all(map(is_same, before, after))
    if dataclasses.is_dataclass(before):
        return all(
            is_same(getattr(before, field.name), getattr(after, field.name))
            for field in dataclasses.fields(before)
        )
    if isinstance(before, Send):
        return bool(before.node == after.node) and is_same(before.arg, after.arg)
    if hasattr(before, "dtype"):
        return bool(before.dtype == after.dtype) and bool(before.tobytes() == after.tobytes())
    if isinstance(before, Decimal):  # a signalling NaN refuses every comparison
        return bool(before.as_tuple() == after.as_tuple())
    return before is after or bool(before == after) or (before != before and after != after)


def _is_changed_on_purpose(before: Any, after: Any) -> bool:
    if isinstance(before, list | tuple) and type(after) is list:
        return len(before) == len(after) and all(map(is_same, before, after))
    if isinstance(before, BaseException):
        return bool(after == repr(before))
    if isinstance(before, bytearray | memoryview):
        return type(after) is bytes and after == bytes(before)
    if isinstance(before, dict) and type(after) is dict:
        return _is_same_dict(before, after)
    return isinstance(before, _NATIVE) and type(after) in _NATIVE and bool(before == after)


def _is_same_dict(before: dict[Any, Any], after: dict[Any, Any]) -> bool:
    return len(before) == len(after) and all(
        is_same(left, right) and is_same(stored, read)
        for (left, stored), (right, read) in zip(before.items(), after.items(), strict=True)
    )
