"""Validation of arguments whose wrong type would fail later, or pass for something else."""

from __future__ import annotations

import operator
import uuid
from collections.abc import Iterable, Mapping
from typing import Any, SupportsIndex

COUNT_MOST = 1 << 53
"""Number beyond which no database counts: a larger limit or offset is cut to it."""

_TEXT = (str, bytes, bytearray, memoryview)


def refuse_text(what: str, values: object) -> None:
    """Raise ``TypeError`` for text or bytes where a sequence of names is expected. ``what`` names the
    argument."""
    if isinstance(values, _TEXT):
        raise TypeError(f"{what} takes a sequence, not {type(values).__name__}; for one name write [name]")


def to_text_ids(what: str, ids: object) -> list[str]:
    """Return ids that are texts or UUIDs as texts; raise ``TypeError`` for any other. ``what`` names the
    argument."""
    listed = list_ids(what, ids)
    for each in listed:
        if isinstance(each, int):
            raise TypeError(f"{what} takes texts or UUIDs, not {type(each).__name__}; pass their ids as text")
    return list(map(str, listed))


def list_ids(what: str, ids: object) -> list[str | uuid.UUID | int]:
    """Return a sequence of ids as a list; raise ``TypeError`` for anything else. ``what`` names the
    argument."""
    refuse_text(what, ids)
    if not isinstance(ids, Iterable):
        raise TypeError(f"{what} takes a sequence of ids, not {type(ids).__name__}; for one id write [id]")
    listed = list(ids)
    for each in listed:
        if not _is_id(each):
            raise TypeError(f"{what} takes ids, none of which is {type(each).__name__}; pass them as text")
    return listed


def require_id(what: str, value: object) -> None:
    """Raise ``TypeError`` for anything but one id: text, a UUID or a whole number. ``what`` names the
    argument."""
    if not _is_id(value):
        raise TypeError(f"{what} takes one id, not {type(value).__name__}; pass it as text")


def _is_id(value: object) -> bool:
    return isinstance(value, str | uuid.UUID | int) and not isinstance(value, bool)


def require_text(what: str, value: object) -> None:
    """Raise ``TypeError`` for anything but text. ``what`` names the argument."""
    if not isinstance(value, str):
        raise TypeError(f"{what} is text, not {type(value).__name__}")


def read_count(what: str, value: object) -> int:
    """Return a limit, an offset or a depth as a whole number, cut to what databases count to. Raise
    ``TypeError`` for any other type, which each database would take for something else. ``what`` names the
    argument."""
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise TypeError(f"{what} is a whole number, not {value!r}")
    return min(operator.index(value), COUNT_MOST)


def require_mapping(what: str, value: object) -> None:
    """Raise ``TypeError`` for anything but a mapping. ``what`` names the argument."""
    if not isinstance(value, Mapping):
        raise TypeError(f"{what} is a mapping, not {type(value).__name__}")


def read_mapping(value: object) -> Mapping[str, Any]:
    """Return a mapping as it is, and an empty one for anything else, in data that others have made."""
    if isinstance(value, Mapping):
        return value
    return {}


def require_number(what: str, value: object) -> None:
    """Raise ``TypeError`` for anything but a number; ``True`` and ``False`` are none. ``what`` names the
    argument."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{what} is a number, not {type(value).__name__}")


def require_whole(what: str, value: object) -> None:
    """Raise ``TypeError`` for anything but a whole number. ``what`` names the argument."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{what} is a whole number, not {value!r:.100}")


def check_run_config(config: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` if a config of LangGraph's, as JSON data, has a part that no run can use. ``None``
    counts as absent."""
    given = {name: part for name, part in config.items() if part is not None}
    for name in ("configurable", "metadata"):
        if not isinstance(given.get(name, {}), Mapping):
            raise ValueError(f"{name} of a config is an object")
    for name in ("recursion_limit", "max_concurrency"):
        number = given.get(name, 1)
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            raise ValueError(f"{name} of a config is a whole number from 1 on")
    tags = given.get("tags", [])
    if not isinstance(tags, list | tuple) or not all(isinstance(tag, str) for tag in tags):
        raise ValueError("tags of a config is a list of texts")
    if not isinstance(given.get("run_name", ""), str):
        raise ValueError("run_name of a config is text")
    if "run_id" in given and not _is_uuid(given["run_id"]):
        raise ValueError("run_id of a config is a UUID")
    if given.get("callbacks", []) != []:
        raise ValueError(
            "callbacks of a config are objects of a program, which JSON cannot carry; leave them out"
        )


def _is_uuid(value: object) -> bool:
    try:
        uuid.UUID(str(value))
    except ValueError:
        return False
    return isinstance(value, str)
