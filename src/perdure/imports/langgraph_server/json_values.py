"""Restores the types of values in JSON: messages by their form, other values by the types of a graph.

JSON has no types. A message is recognised by its own fields, which name its class. Any other value comes as
plain data: a date is text, a set or a tuple a list, a model a dict, bytes are base64.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from functools import cache
from typing import Any

from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    HumanMessageChunk,
    RemoveMessage,
    SystemMessage,
    SystemMessageChunk,
    ToolMessage,
    ToolMessageChunk,
)
from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError, PydanticUndefinedAnnotation

from perdure.errors import Unserialisable

_CLASSES: dict[str, type[BaseMessage]] = {
    "human": HumanMessage,
    "ai": AIMessage,
    "tool": ToolMessage,
    "system": SystemMessage,
    "function": FunctionMessage,
    "chat": ChatMessage,
    "remove": RemoveMessage,
    "AIMessageChunk": AIMessageChunk,
    "HumanMessageChunk": HumanMessageChunk,
    "SystemMessageChunk": SystemMessageChunk,
    "ToolMessageChunk": ToolMessageChunk,
}
_MESSAGE = frozenset(("content", "additional_kwargs", "response_metadata", "type"))
"""Fields of every message that a server sends. A client's message, ``{role, content}``, lacks them."""


def revive(value: Any) -> Any:
    """Return a value of JSON with messages in place of their JSON, at any depth."""
    if isinstance(value, list):
        return [revive(each) for each in value]
    if not isinstance(value, dict):
        return value
    if value.keys() >= _MESSAGE and isinstance(value["type"], str) and value["type"] in _CLASSES:
        try:
            return _CLASSES[value["type"]](**value)
        except (ValueError, TypeError, LookupError):
            return value
    return {key: revive(each) for key, each in value.items()}


def coerce(channel: str, value: Any, expected: Any) -> Any:
    """Return a channel's value, converted to the channel's type.

    Args:
        channel: The channel, for the error.
        value: The value, with its messages.
        expected: The channel's type; a type that cannot be checked leaves the value as it is.

    Raises:
        Unserialisable: The value is not one of that type.
    """
    build = _make_builder(expected) if _is_hashable(expected) else None
    if build is None or value is None:
        return value
    try:
        return build(value)
    except (ValidationError, ValueError) as error:
        raise Unserialisable(
            f"the value of channel {channel!r} does not fit the graph's type ({type(error).__name__}); pass "
            "the graph that made the thread with --graph, or none"
        ) from error


@cache
def _make_builder(expected: Any) -> Callable[[Any], Any] | None:
    if expected is bytes:
        return lambda value: base64.b64decode(value, validate=True) if isinstance(value, str) else value
    for config in (ConfigDict(arbitrary_types_allowed=True), None):
        try:
            adapter: TypeAdapter[Any] = TypeAdapter(expected, config=config)
            if adapter.pydantic_complete:
                return adapter.validate_python
            return None
        except (PydanticSchemaGenerationError, PydanticUndefinedAnnotation, PydanticUserError, NameError):
            continue
    return None


def _is_hashable(expected: Any) -> bool:
    try:
        hash(expected)
    except TypeError:
        return False
    return True
