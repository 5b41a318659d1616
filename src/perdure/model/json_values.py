"""Values of store items: plain JSON data, and its stored bytes.

A body is a JSON object in UTF-8; its first byte is ``{``. Another first byte is free for another form.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import isfinite
from typing import Any

from perdure.errors import Corrupt, Unserialisable

DEPTH = 256
"""Deepest nesting of a value, in levels."""

_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_LEAVES = frozenset((str, int, bool, type(None)))
_SEQUENCES = (list, tuple)


def pack(value: object, where: str) -> bytes:
    """Encode an item's value; ``where`` begins the path in the error.

    Raises:
        Unserialisable: the value is not a dict of plain JSON data.
    """
    if not isinstance(value, Mapping):
        raise Unserialisable(f"{where} is {_a(value)}; an item's value is a dict")
    data = plain(value, where)
    try:
        return packed(data)
    except UnicodeEncodeError as error:
        raise Unserialisable(
            f"{where} holds text that is not well-formed Unicode (a lone surrogate)"
        ) from error
    except ValueError as error:
        raise Unserialisable(
            f"{where} holds an integer of more than 4,300 digits; store it as text"
        ) from error


def packed(data: Any) -> bytes:
    """Encode plain data: equal data of equal types has equal bytes, anywhere in a value."""
    return _ENCODER.encode(data).encode()


def unpack(body: bytes, where: str) -> dict[str, Any]:
    """Decode a stored body; raises ``Corrupt`` if it is not an item's value."""
    if not body.startswith(b"{"):
        raise Corrupt(f"{where} is stored in a form that this release does not know; upgrade perdure")
    try:
        value: dict[str, Any] = json.loads(body.decode())
    except ValueError as error:
        raise Corrupt(f"{where}: what is stored is not an item's value; put it again or delete it") from error
    return value


def is_same(value: Any, other: Any) -> bool:
    """Return True if two plain values are equal, and of equal types: 1 is neither ``True`` nor 1.0. The order
    of keys is free."""
    if type(value) is not type(other):
        return False
    if isinstance(value, dict):
        return value.keys() == other.keys() and all(
            is_same(part, other[name]) for name, part in value.items()
        )
    if isinstance(value, list):
        return len(value) == len(other) and all(map(is_same, value, other))
    return bool(value == other)


def plain(value: object, where: str, depth: int = 0) -> Any:
    """Convert a value to the types of JSON: tuples become lists, subclasses their base types.

    Raises:
        Unserialisable: a part is of another type; the message begins with its path, from ``where``.
    """
    if type(value) in _LEAVES:
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        if not isfinite(value):
            raise Unserialisable(f"{where} is {value!r}, which JSON does not have; store None or text")
        return float.__float__(value)
    if depth >= DEPTH:
        raise Unserialisable(f"{where[:200]}… is nested deeper than {DEPTH} levels, or contains itself")
    if type(value) is dict or isinstance(value, Mapping):
        out: dict[str, Any] = {}
        for name, part in value.items():
            if not isinstance(name, str):
                raise Unserialisable(f"{where} has the key {name!r}, {_a(name)}; keys are text")
            # A leaf stays as it is; formatting its path would cost more than its check.
            leaf = type(part) in _LEAVES or (type(part) is float and isfinite(part))
            out[str.__str__(name)] = part if leaf else plain(part, f"{where}[{name!r}]", depth + 1)
        return out
    if isinstance(value, _SEQUENCES):
        return [
            part
            if type(part) in _LEAVES or (type(part) is float and isfinite(part))
            else plain(part, f"{where}[{n}]", depth + 1)
            for n, part in enumerate(value)
        ]
    raise Unserialisable(
        f"{where} is {_a(value)}; the store keeps plain JSON data: dict, list, str, int, float, bool, None. "
        "Convert it first, e.g. model_dump(mode='json') or isoformat()"
    )


def _a(value: object) -> str:
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"
