"""Knowing that a value is unchanged without serialising it, and handing out copies of it.

A witness of an object lists every mutable container inside it with a snapshot of what the container holds.
The object is unchanged exactly when each container still holds the very same objects: comparing identities
of immutable leaves cannot miss a change. Anything whose inside cannot be listed completely has no witness
and is serialised every time.
"""

from __future__ import annotations

import datetime
import decimal
import uuid
from operator import is_
from typing import Any

from langchain_core.messages import (
    AIMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)

_IMMUTABLE = frozenset(
    {
        str, int, float, bool, bytes, type(None),
        uuid.UUID, decimal.Decimal, datetime.datetime, datetime.date, datetime.timedelta,
    }
)  # fmt: skip
_MODELS = frozenset({AIMessage, ChatMessage, FunctionMessage, HumanMessage, SystemMessage, ToolMessage})
_DEPTH = 16

_set = object.__setattr__


class Witness:
    """A snapshot of an object's mutable inside."""

    __slots__ = ("_fields", "_full", "_hollow", "_root", "_values")

    def __init__(
        self,
        root: dict[str, Any],
        hollow: tuple[Any, ...],
        full: tuple[tuple[Any, tuple[Any, ...] | None, tuple[Any, ...]], ...],
    ) -> None:
        self._root = root
        self._fields = tuple(root)
        self._values = tuple(root.values())
        self._hollow = hollow
        self._full = full

    def holds(self, inside: dict[str, Any]) -> bool:
        """Whether the object, whose ``__dict__`` is ``inside``, is what it was."""
        if inside is not self._root or len(inside) != len(self._values):
            return False
        if not all(map(is_, inside.values(), self._values)) or tuple(inside) != self._fields:
            return False
        for container in self._hollow:
            if container:
                return False
        for container, keys, values in self._full:
            if len(container) != len(values):
                return False
            if keys is None:
                if not all(map(is_, container, values)):
                    return False
            elif not all(map(is_, container.values(), values)) or not all(map(is_, container, keys)):
                return False
        return True


def witness(message: Any) -> Witness | None:
    """A witness of a message, or ``None`` for anything that cannot be watched completely."""
    if type(message) not in _MODELS or message.__pydantic_extra__ or message.__pydantic_private__:
        return None
    root = message.__dict__
    hollow: list[Any] = []
    full: list[tuple[Any, tuple[Any, ...] | None, tuple[Any, ...]]] = []
    for value in root.values():
        if type(value) not in _IMMUTABLE and not _list_inside(value, hollow, full, 0):
            return None
    return Witness(root, tuple(hollow), tuple(full))


def is_unchanged(message: Any, seen: Witness) -> bool:
    """Whether the message that ``seen`` was taken of is the same as then."""
    return seen.holds(message.__dict__) and not message.__pydantic_extra__


def copy(message: Any) -> Any:
    """A copy that shares nothing mutable with a witnessed message."""
    cls = type(message)
    inside = message.__dict__.copy()
    for name, value in inside.items():
        if type(value) not in _IMMUTABLE:
            inside[name] = _copy_inside(value)
    new = cls.__new__(cls)
    _set(new, "__dict__", inside)
    _set(new, "__pydantic_fields_set__", message.__pydantic_fields_set__.copy())
    _set(new, "__pydantic_extra__", {} if message.__pydantic_extra__ is not None else None)
    _set(new, "__pydantic_private__", None)
    return new


def _list_inside(value: Any, hollow: list[Any], full: list[Any], depth: int) -> bool:
    kind = type(value)
    if kind in _IMMUTABLE:
        return True
    if depth > _DEPTH:
        return False
    if kind is dict:
        if not value:
            hollow.append(value)
            return True
        if not all(type(k) in _IMMUTABLE for k in value):
            return False
        full.append((value, tuple(value), tuple(value.values())))
        return all(_list_inside(v, hollow, full, depth + 1) for v in value.values())
    if kind is list:
        if not value:
            hollow.append(value)
            return True
        full.append((value, None, tuple(value)))
        return all(_list_inside(v, hollow, full, depth + 1) for v in value)
    return False


def _copy_inside(value: Any) -> Any:
    kind = type(value)
    if kind is dict:
        return {k: v if type(v) in _IMMUTABLE else _copy_inside(v) for k, v in value.items()}
    if kind is list:
        return [v if type(v) in _IMMUTABLE else _copy_inside(v) for v in value]
    return value
