"""Values of store items: plain JSON data, and its stored bytes.

A body is a JSON object in UTF-8, so its first byte is ``{``. Any other first byte may mark another form
later.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Any

import orjson

from perdure.errors import Corrupt, Unserialisable

DEPTH = 256
"""Deepest nesting of a value, in levels."""

_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_LEAVES = frozenset((str, int, bool, type(None)))
_SEQUENCES = (list, tuple)
_TEXT = frozenset((str,))
_CONTAINERS = frozenset((dict, list))
_KNOWN = _LEAVES | _CONTAINERS | {float}
_CONTAINERS_MOST = 10_000
_DIGITS_AS_ZEROS = bytes.maketrans(b"0123456789", b"0" * 10)
_LONG_NUMBER = b"0" * 19
"""Found in a body whose digits were all replaced by zeros if that may have an integer above 64 bits, which
orjson would read as a float."""


def pack(value: object, where: object) -> bytes:
    """Encode an item's value; ``where``, as text, begins the path in the error.

    Raises:
        Unserialisable: the value is not a dict of plain JSON data.
    """
    body = _pack_quickly(value) if type(value) is dict else None
    return body or _pack_exactly(value, str(where))


def _pack_quickly(value: dict[Any, Any]) -> bytes | None:
    """Return the bytes that ``pack_data`` would make, in a tenth of its time, by orjson; ``None`` for a value
    of which orjson may make other bytes, or which is to be refused."""
    containers: list[Any] = [value]
    for container in containers:
        # orjson itself refuses keys that are not of the type str.
        if type(container) is dict:
            parts = container.values()
        else:
            parts = container
        types = set(map(type, parts))
        if types <= _LEAVES:
            continue
        if not types <= _KNOWN or (float in types and not all(map(_has_one_form, parts))):
            return None
        if not types.isdisjoint(_CONTAINERS):
            containers += [part for part in parts if type(part) in _CONTAINERS]
            # This also ends the loop for a value that contains itself.
            if len(containers) > _CONTAINERS_MOST:
                return None
    try:
        return orjson.dumps(value)
    except TypeError:
        # Integers above 64 bits, lone surrogates, and values nested more deeply than orjson allows.
        return None


def _has_one_form(part: Any) -> bool:
    """Return False for a float that encoders write differently (with an exponent) or that JSON lacks."""
    return type(part) is not float or part == 0 or 1e-4 <= abs(part) < 1e16


def _pack_exactly(value: object, where: str) -> bytes:
    if not isinstance(value, Mapping):
        raise Unserialisable(f"{where} is {_describe_type(value)}; an item's value is a dict")
    data = convert_to_plain(value, where)
    try:
        return pack_data(data)
    except ValueError as error:
        raise Unserialisable(f"{where} is not plain JSON data: {find_fault(data) or error}") from error


def pack_data(data: Any) -> bytes:
    """Encode plain data: equal data of equal types has equal bytes, anywhere in a value."""
    return _ENCODER.encode(data).encode()


def unpack(body: bytes, where: object) -> dict[str, Any]:
    """Decode a stored body; raises ``Corrupt``, with a message that begins with ``where``, if it is not an
    item's value."""
    if not body.startswith(b"{"):
        raise Corrupt(f"{where} is stored in a form that this release does not know; upgrade perdure")
    try:
        if _LONG_NUMBER in body.translate(_DIGITS_AS_ZEROS):
            value: dict[str, Any] = json.loads(body.decode())
        else:
            value = orjson.loads(body)
    except ValueError as error:
        raise Corrupt(f"{where}: what is stored is not an item's value; put it again or delete it") from error
    return value


def is_same(value: Any, other: Any) -> bool:
    """Return True if two plain values are equal, and of equal types: 1 is neither ``True`` nor 1.0. The order
    of keys does not matter."""
    if type(value) is not type(other):
        return False
    if isinstance(value, dict):
        return value.keys() == other.keys() and all(
            is_same(part, other[name]) for name, part in value.items()
        )
    if isinstance(value, list):
        return len(value) == len(other) and all(map(is_same, value, other))
    return bool(value == other)


def convert_to_plain(value: object, where: str, depth: int = 0) -> Any:
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
                raise Unserialisable(f"{where} has the key {name!r}, {_describe_type(name)}; keys are text")
            # A leaf stays as it is; formatting its path would cost more than its check.
            is_leaf = type(part) in _LEAVES or (type(part) is float and isfinite(part))
            if is_leaf:
                out[str.__str__(name)] = part
            else:
                out[str.__str__(name)] = convert_to_plain(part, f"{where}[{name!r}]", depth + 1)
        return out
    if isinstance(value, _SEQUENCES):
        return [
            part
            if type(part) in _LEAVES or (type(part) is float and isfinite(part))
            else convert_to_plain(part, f"{where}[{n}]", depth + 1)
            for n, part in enumerate(value)
        ]
    raise Unserialisable(
        f"{where} is {_describe_type(value)}; the store keeps plain JSON data: dict, list, str, int, float, "
        "bool, None. Convert it first, e.g. model_dump(mode='json') or isoformat()"
    )


def find_fault(value: object, *, are_keys_text: bool = True) -> str | None:
    """Return the path of the first part of a value that is not plain JSON data, and what it is; ``None`` if
    all of it is.

    Args:
        value: the value.
        are_keys_text: False to allow the keys that ``json.dumps`` converts to text.
    """
    return _find_fault_in(value, "", (str,) if are_keys_text else (str, int, float, type(None)), DEPTH)


def _find_fault_in(value: object, where: str, key_types: tuple[type, ...], depth: int) -> str | None:
    path = where or "it"
    match value:
        case None | bool():
            return None
        case str():
            return f"{path} holds a lone surrogate" if _has_lone_surrogate(value) else None
        case int():
            return f"{path} is an integer of more than 4,300 digits" if abs(value) >= 10**4300 else None
        case float():
            return None if isfinite(value) else f"{path} is {value!r}"
        case dict() | list() | tuple() if not depth:
            return f"{path[:200]}… is nested too deeply, or contains itself"
        case dict():
            for name, part in value.items():
                if not isinstance(name, key_types):
                    return f"{path} has the key {name!r}, {_describe_type(name)}"
                if isinstance(name, str) and _has_lone_surrogate(name):
                    return f"{path} has a key with a lone surrogate"
                if (found := _find_fault_in(part, f"{where}[{name!r}]", key_types, depth - 1)) is not None:
                    return found
            return _describe_joined_keys(path, value)
        case list() | tuple():
            for position, part in enumerate(value):
                if (found := _find_fault_in(part, f"{where}[{position}]", key_types, depth - 1)) is not None:
                    return found
            return None
        case _:
            return f"{path} is {_describe_type(value)}"


def is_deeper(value: object, most: int) -> bool:
    """Return True if the dicts and lists of a value are nested more than ``most`` levels deep."""
    level = [value]
    for _ in range(most):
        level = _list_inner(level)
        if not level:
            return False
    return True


def has_other_keys(value: object) -> bool:
    """Return True if a dict of a value has a key that is not text."""
    level = [value]
    while level:
        if any(isinstance(each, dict) and not set(map(type, each)) <= _TEXT for each in level):
            return True
        level = _list_inner(level)
    return False


def _list_inner(level: Iterable[object]) -> list[object]:
    """Return the dicts and lists within those of a level, each once: a value may contain itself."""
    parts: list[object] = []
    for each in level:
        if isinstance(each, dict):
            parts += each.values()
        elif isinstance(each, list | tuple):
            parts += each
    return list({id(part): part for part in parts if isinstance(part, dict | list | tuple)}.values())


def _describe_joined_keys(path: str, value: Mapping[Any, Any]) -> str | None:
    """Return what is wrong with a dict of which JSON would make two keys one; ``None`` for nothing."""
    if set(map(type, value)) <= _TEXT:
        return None
    seen: dict[str, object] = {}
    for name in value:
        (text,) = json.loads(json.dumps({name: None}))
        if text in seen:
            return f"{path} has the keys {seen[text]!r} and {name!r}, which are one key in JSON"
        seen[text] = name
    return None


def _has_lone_surrogate(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)


def _describe_type(value: object) -> str:
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"
