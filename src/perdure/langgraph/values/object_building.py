"""Builds objects of the classes that were found for stored names, with their validators. If a class does not
take what is stored, says how it differs."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable
from enum import Enum
from typing import Any
from weakref import WeakKeyDictionary

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from perdure.errors import Corrupt, Unreadable
from perdure.langgraph.values.datatypes import OWN_TYPES, is_old_model

ONE, POSITIONAL, KEYWORD, METHOD, PYDANTIC_1, PYDANTIC_2 = range(6)
"""LangGraph's extension codes (langgraph.checkpoint.serde.jsonplus) for the ways to build an object."""

_OWN_MODELS = frozenset(cls for cls in OWN_TYPES if issubclass(cls, BaseModel))

_MESSAGES: dict[type[BaseModel], frozenset[str]] = {
    cls: frozenset(cls.model_fields) for cls in (AIMessage, HumanMessage, SystemMessage, ToolMessage)
}
"""The most frequent types in conversations, and the names of their fields."""

_TOOL_CALL = ["name", "args", "id", "type"]
_TEXT = (str, type(None))

_SHOWN = 80
"""Maximum number of characters of a value in an error."""


def _find_setter(name: str) -> Callable[[Any, Any], None]:
    """Return the setter of a model's attribute by its descriptor, past the model's own ``__setattr__``: half
    the cost of ``object.__setattr__``."""
    descriptor: Callable[[Any, Any], None] = vars(BaseModel)[name].__set__
    return descriptor


set_fields, set_extra, set_given, set_private = map(
    _find_setter, ("__dict__", "__pydantic_extra__", "__pydantic_fields_set__", "__pydantic_private__")
)
"""Setters of all that a model made without its constructor needs."""


def model_fields(obj: Any) -> dict[str, Any] | None:
    """Return the fields of a pydantic model without validation, and without those that are excluded from its
    dumps; ``None`` for anything else, and for LangChain's own models, which have forms of their own."""
    cls = type(obj)
    if isinstance(obj, BaseModel):
        return None if cls in OWN_TYPES else kept_fields(obj)
    return kept_fields(obj) if is_old_model(cls) else None


def kept_fields(model: Any) -> dict[str, Any]:
    """Return the fields of a model that a dump of it has, as they are."""
    attributes: dict[str, Any] = model.__dict__.copy()
    if isinstance(model, BaseModel):
        fields = type(model).model_fields.items()
        declared = {
            n: attributes[n] for n, f in fields if n in attributes and not _excludes(f, attributes[n])
        }
        return {**declared, **(model.__pydantic_extra__ or {})}
    for name, field in type(model).__fields__.items():
        # Pydantic's first version turns ``True`` into an ellipsis.
        if field.field_info.exclude in (True, ...):
            attributes.pop(name, None)
    return attributes


def _excludes(field: FieldInfo, value: Any) -> bool:
    if field.exclude:
        return True
    excludes_value: Callable[[Any], bool] | None = getattr(field, "exclude_if", None)
    return excludes_value is not None and excludes_value(value)


def make_hashable(value: Any) -> Any:
    if type(value) is list:
        return tuple(map(make_hashable, value))
    return value


def build(code: int, cls: Any, argument: Any) -> Any:
    """Build an object of a class from its stored data.

    Args:
        code: LangGraph's extension code.
        cls: The class.
        argument: The stored argument.

    Raises:
        Unreadable: The class does not take what is stored: it has changed since.
        Corrupt: The code is unknown, or a value of the standard library is damaged.
    """
    if code not in (ONE, POSITIONAL, KEYWORD, PYDANTIC_1, PYDANTIC_2):
        raise Corrupt(f"a stored value has the unknown extension code {code}")
    try:
        if code == PYDANTIC_2 and cls in _MESSAGES and _is_taken_as_is(cls, argument):
            return _set_up_message(cls, argument)
        return _build(code, cls, argument)
    except Exception as error:
        if not isinstance(cls, type) or cls in OWN_TYPES:
            raise
        raise Unreadable(_describe_difference(code, cls, argument, error)) from error


def _is_taken_as_is(cls: type[BaseModel], fields: dict[str, Any]) -> bool:
    """Return True if the constructor of a message would leave all these fields as they are: it changes only
    content in blocks, and calls of tools that lack something or that the provider's form holds."""
    if not (
        fields.keys() == _MESSAGES[cls]
        and type(fields["content"]) is str
        and type(fields["id"]) in _TEXT
        and type(fields["name"]) in _TEXT
        and type(fields["additional_kwargs"]) is type(fields["response_metadata"]) is dict
    ):
        return False
    if cls is not AIMessage:
        return cls is not ToolMessage or type(fields["tool_call_id"]) is str
    return (
        "tool_calls" not in fields["additional_kwargs"]
        and not fields["invalid_tool_calls"]
        and type(calls := fields["tool_calls"]) is list
        and all(type(call) is dict and list(call) == _TOOL_CALL for call in calls)
    )


def _set_up_message(cls: type[BaseModel], fields: dict[str, Any]) -> BaseModel:
    """Make a message of fields that its constructor would leave as they are, in an eighth of its time. The
    message owns the dict."""
    message = cls.__new__(cls)
    set_fields(message, fields)
    set_given(message, set(fields))
    set_extra(message, {})
    set_private(message, None)
    return message


def _build(code: int, cls: Any, argument: Any) -> Any:
    if isinstance(cls, type) and (Enum in cls.__mro__ or BaseModel in cls.__mro__ or is_old_model(cls)):
        return _build_data(code, cls, argument)
    if code == ONE and dataclasses.is_dataclass(cls):
        raise TypeError("no data class was stored")
    if code == ONE:
        # A tuple is stored as a list, which no set can hold.
        if cls in (set, frozenset):
            return cls(map(make_hashable, argument))
        return cls(argument)
    if code == POSITIONAL:
        return cls(*argument)
    return cls(**argument)


def _build_data(code: int, cls: Any, argument: Any) -> Any:
    """Build a member of an enum, or a model. Data that was stored without validation, such as a field set
    later, and does not pass it, is built without validation."""
    if Enum in cls.__mro__:
        if code != ONE:
            raise TypeError("no enum was stored")
        # A tuple is stored as a list, which names no member.
        return cls(make_hashable(argument))
    if code not in (PYDANTIC_1, PYDANTIC_2) or type(argument) is not dict:
        raise TypeError("no model was stored")
    if BaseModel not in cls.__mro__:
        try:
            return cls(**argument)
        except Exception:
            return cls.construct(**argument)
    return _build_model(cls, argument)


def _build_model(cls: type[BaseModel], fields: dict[str, Any]) -> BaseModel:
    try:
        if cls not in _OWN_MODELS and _has_aliases(cls):
            return cls.model_validate(fields, by_alias=False, by_name=True)
        return cls(**fields)
    except Exception:
        return cls.model_construct(**fields)


def _describe_difference(code: int, cls: type, argument: Any, error: Exception) -> str:
    """Return how a class differs from the stored data."""
    name = f"{cls.__module__}.{cls.__qualname__}"
    remedy = "take it back into the class, or declare with perdure.schema what has become of it"
    if issubclass(cls, Enum) and code == ONE:
        return f"{name} has no member with the value {repr(argument)[:_SHOWN]} any more: {remedy}"
    if code == KEYWORD and isinstance(argument, dict):
        taken = inspect.signature(cls).parameters
        takes_all = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in taken.values())
        if takes_all:
            gone = []
        else:
            gone = [each for each in argument if each not in taken]
        needed = [
            each.name
            for each in taken.values()
            if each.default is inspect.Parameter.empty
            and each.name not in argument
            and each.kind not in (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        ]
        if gone:
            return f"{name} has no field {', '.join(map(repr, gone))} any more, which is stored: {remedy}"
        if needed:
            return (
                f"{name} needs the field {', '.join(map(repr, needed))}, which is not stored: give it a "
                "default, or declare with perdure.schema what it has"
            )
    # The text of an exception of the class's own code may quote the value.
    return (
        f"{name} does not take what is stored of it ({type(error).__name__}), as it has changed since: "
        "change it back, or declare with perdure.schema what has become of it"
    )


def _has_aliases(cls: type[BaseModel]) -> bool:
    known = _aliased.get(cls)
    if known is None:
        known = any(field.alias or field.validation_alias for field in cls.model_fields.values())
        _aliased[cls] = known
    return known


_aliased: WeakKeyDictionary[type[BaseModel], bool] = WeakKeyDictionary()


def unpack_array(dtype: str, shape: list[int], order: typing.Literal["C", "F"], data: bytes) -> Any:
    """Build a numpy array from its stored parts.

    Args:
        dtype: The name of its type.
        shape: Its shape.
        order: The order of its elements in memory.
        data: Their bytes.

    Raises:
        Unreadable: numpy is not installed.
    """
    try:
        import numpy
    except ImportError as error:
        raise Unreadable("a stored value is a numpy array; install numpy to read it") from error
    return numpy.frombuffer(data, dtype=numpy.dtype(dtype)).reshape(tuple(shape), order=order)
