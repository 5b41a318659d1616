"""JSON form of a graph's values, for subscribers of a run and for HTTP.

Messages and other models become their fields, as the clients of LangGraph's server expect; a value without a
form of its own becomes text. Methods of the application's own types make these forms. If one raises an error,
the type takes the value's place, as no run may fail because it is followed.
"""

from __future__ import annotations

import json
import re
import sys
from base64 import b64encode
from collections.abc import Mapping, Set
from dataclasses import fields, is_dataclass
from datetime import timedelta
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Any

import orjson
from pydantic import BaseModel, TypeAdapter

from perdure.model.runs.messages import read_message, replace_surrogates

if TYPE_CHECKING:
    from langgraph.types import Interrupt

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
"""Memory address in a default ``repr``."""
_DEEPEST = 200
"""Maximum nesting depth of a value that is encoded without orjson, which refuses more than 254 levels. What
lies deeper is replaced by text, so that a list with the value in it can still be shown."""
_OPTIONS = orjson.OPT_NON_STR_KEYS | orjson.OPT_PASSTHROUGH_DATACLASS


def to_json(value: Any) -> str:
    """Return a value as JSON text on one line. Half of a character, as models leave when they cut an emoji,
    is replaced: strict parsers would refuse the whole text."""
    try:
        return orjson.dumps(value, default=_plain, option=_OPTIONS).decode()
    except TypeError:
        # A lone surrogate, a number beyond 64 bits or a key of another type: rare, and slower to encode.
        return json.dumps(_encode_deep(value), separators=(",", ":"))


def describe_interrupt(asked: Interrupt) -> dict[str, Any]:
    """Return an interrupt as clients expect it, with the JSON schema of its answer if it has one."""
    shown = {"value": asked.value, "id": asked.id}
    schema = getattr(asked, "response_schema", None)
    if isinstance(schema, type):
        try:
            schema = TypeAdapter(schema).json_schema()
        except Exception:  # a schema of the application's own may have no JSON schema
            schema = None
    if schema is None:
        return shown
    return {**shown, "response_schema": schema}


def to_plain(value: Any) -> Any:
    """Return a value as plain JSON data."""
    return json.loads(to_json(value))


_INTERNALS = (
    ("langgraph.store.base", "BaseStore"),
    ("langgraph.checkpoint.base", "BaseCheckpointSaver"),
    ("langgraph.runtime", "Runtime"),
    ("langgraph.prebuilt.tool_node", "ToolRuntime"),
)
"""Types of what holds internals of the worker, and the verified user."""


def _is_of(value: object, *types: tuple[str, str]) -> bool:
    """Return True if a value is of one of the types with these modules and names. Modules that are not loaded
    are left alone: they take up to a second, and nothing can be of their types."""
    loaded = (getattr(sys.modules.get(module), name, None) for module, name in types)
    return isinstance(value, tuple(found for found in loaded if found is not None))


def _plain(value: Any) -> Any:
    """Return the form of a value that JSON has none for. It may contain further such values."""
    try:
        return _make_plain(value)
    except Exception as error:
        return _describe_unreadable(value, error)


def _describe_unreadable(value: Any, error: Exception) -> str:
    return f"({type(value).__name__}, which cannot be read: {type(error).__name__})"


def _make_plain(value: Any) -> Any:
    match value:
        case BaseModel():
            return value.model_dump()
        case _ if _is_of(value, ("langgraph.types", "Interrupt")):
            return describe_interrupt(value)
        case Enum():
            return value.value
        case _ if _is_of(value, *_INTERNALS):
            return None
        case bytes() | bytearray():
            return b64encode(value).decode()
        case Decimal():
            # A number, as from LangGraph's server; integers stay exact.
            is_whole = value.is_finite() and abs(value) < 1 << 63 and value == int(value)
            if is_whole:
                return int(value)
            return float(value)
        case timedelta():
            return value.total_seconds()
        case BaseException():
            return {"error": type(value).__name__, "message": read_message(value)}
        case Mapping():
            return dict(value)
        case Set():
            return list(value)
        case tuple() if (fields_of := getattr(value, "_asdict", None)) is not None:
            return fields_of()
        case _ if is_dataclass(value) and not isinstance(value, type):
            return {field.name: getattr(value, field.name) for field in fields(value)}
        case _:
            if isinstance(value, int | float):
                return str(value)
            return _ADDRESS.sub("", repr(value))


def _encode_deep(value: Any, depth: int = 0) -> Any:
    try:
        return _encode_parts(value, depth)
    except Exception as error:
        return _describe_unreadable(value, error)


def _encode_parts(value: Any, depth: int) -> Any:
    match value:
        case None | bool():
            return value
        case int():
            int.__repr__(value)  # Python refuses to write more than 4,300 digits, by default
            return value
        case str():
            return replace_surrogates(value)
        case float():
            if value == value and abs(value) != float("inf"):
                return value
            return None
        case _ if depth == _DEEPEST:
            return f"(nested deeper than {_DEEPEST} levels)"
        case Mapping():
            return {_write_key(key): _encode_deep(item, depth + 1) for key, item in value.items()}
        case list() | tuple() if not hasattr(value, "_asdict"):
            return [_encode_deep(item, depth + 1) for item in value]
        case _:
            plain_value = _plain(value)
            if plain_value is value:
                return replace_surrogates(repr(plain_value))
            return _encode_deep(plain_value, depth + 1)


def _write_key(key: Any) -> str:
    try:
        return replace_surrogates(key if isinstance(key, str) else str(key))
    except Exception as error:
        return _describe_unreadable(key, error)
