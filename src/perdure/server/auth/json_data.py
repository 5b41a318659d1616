"""Conversion of users, claims and filters to JSON data, which is stored with runs, compared with metadata and
sent on.

No meaning is attached to the values. A value that has no form in JSON raises an error that names its place
and its type, never its content.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from math import isfinite
from typing import Any
from uuid import UUID

DEPTH = 64
"""Maximum nesting depth of a value."""


def json_data(value: object, where: str, depth: int = 0) -> Any:
    """Return the value in the types that JSON has.

    Ids, dates and decimals become text, tuples and sets lists, data classes and pydantic models dicts.

    Args:
        value: the value to convert.
        where: name of the value's place, for error messages.
        depth: nesting depth of the value so far.

    Raises:
        TypeError: another type, a key that is not text, a number that JSON does not have, text that is not
            Unicode, or nesting deeper than ``DEPTH``.
    """
    if depth > DEPTH:
        raise TypeError(f"{where[:200]}… is nested deeper than {DEPTH} levels, or contains itself")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Enum):
        return json_data(value.value, where, depth + 1)
    if isinstance(value, str):
        return _check_text(value, where)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        if not isfinite(value):
            raise TypeError(f"{where} is a number that JSON does not have")
        return float.__float__(value)
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, UUID | Decimal):
        return str(value)
    if isinstance(value, list | tuple | set | frozenset):
        return [json_data(part, f"{where}[{n}]", depth + 1) for n, part in enumerate(value)]
    if isinstance(value, Mapping):
        return {
            _check_key(name, where): json_data(part, f"{where}.{name}", depth + 1)
            for name, part in value.items()
        }
    if is_dataclass(value) and not isinstance(value, type):
        return {
            part.name: json_data(getattr(value, part.name), f"{where}.{part.name}", depth + 1)
            for part in fields(value)
        }
    dump = getattr(value, "model_dump", None)
    if callable(dump) and not isinstance(value, type):
        return json_data(dump(mode="json"), where, depth + 1)
    raise TypeError(f"{where} is a {type(value).__name__}, which has no form in JSON; convert it first")


def same(left: Any, right: Any) -> bool:
    """Return True if two values are equal as JSON data. Python takes ``True`` for 1; here they differ."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[name], right[name]) for name in left)
    return bool(left == right)


def _check_key(name: object, where: str) -> str:
    if not isinstance(name, str):
        raise TypeError(f"{where} has a key that is a {type(name).__name__}; keys are text")
    return _check_text(name, where)


def _check_text(value: str, where: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise TypeError(f"{where} holds text that is not well-formed Unicode (a lone surrogate)") from None
    return str.__str__(value)
