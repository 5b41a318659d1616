"""Byte patterns by which a database leaves out threads whose metadata cannot match.

The copies in the index are JSON text from one encoder, so equal text is stored in equal bytes. Patterns come
in groups: the stored form of metadata that matches contains at least one pattern of each group. Metadata that
contains them may still not match.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

Patterns = tuple[tuple[bytes, ...], ...]

MOST = 8
"""Maximum number of groups in one request, and of patterns in one group."""
_BYTES = 256
_EXACT = 1 << 53


def patterns_of(part: Any) -> Patterns:
    """Return the patterns of JSON data that contains ``part``."""
    return tuple((each.encode("utf-8", "surrogatepass")[:_BYTES],) for each in _list_texts(part))


def any_of(alternatives: list[Patterns]) -> Patterns:
    """Return the patterns of metadata that match one of several alternatives, each given by its patterns."""
    if not all(alternatives) or len(alternatives) > MOST:
        return ()
    group = tuple(pattern for groups in alternatives for pattern in groups[0])
    if len(group) > MOST:
        return ()
    return (group,)


def _list_texts(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield _to_json(value)
        case list():
            for each in value:
                yield from _list_texts(each)
        case Mapping():
            for name, each in value.items():
                yield f"{_to_json(name)}:{_start_of(each)}"
                if not isinstance(each, str):
                    yield from _list_texts(each)
        case _:
            pass


def _start_of(value: Any) -> str:
    """Return the text with which every value that contains this one begins."""
    match value:
        case str() | bool() | None:
            return _to_json(value)
        case int() | float() if 0 < abs(value) < _EXACT and value == int(value):
            return str(int(value))
        case list():
            return "["
        case Mapping():
            return "{"
        case _:
            return ""


def _to_json(value: str | bool | None) -> str:
    return json.dumps(value, ensure_ascii=False)
