"""Builds objects of the classes that were found for stored names, with their validators."""

from __future__ import annotations

import typing
from enum import Enum
from typing import Any
from weakref import WeakKeyDictionary

from pydantic import BaseModel

from perdure.errors import Corrupt
from perdure.langgraph.datatypes import OWN_TYPES, is_old_model

ONE, POSITIONAL, KEYWORD, METHOD, PYDANTIC_1, PYDANTIC_2 = range(6)
"""LangGraph's extension codes (langgraph.checkpoint.serde.jsonplus) for the ways to build an object."""


def model_fields(obj: Any) -> dict[str, Any] | None:
    """Return the fields of a pydantic model without validation; ``None`` for anything else, and for
    LangChain's own models, which have forms of their own."""
    cls = type(obj)
    if isinstance(obj, BaseModel):
        if cls in OWN_TYPES:
            return None
        held = obj.__dict__.copy()
        return {**{n: held[n] for n in cls.model_fields if n in held}, **(obj.__pydantic_extra__ or {})}
    return obj.__dict__.copy() if is_old_model(cls) else None


def hashable(value: Any) -> Any:
    return tuple(map(hashable, value)) if type(value) is list else value


def build(code: int, cls: Any, argument: Any) -> Any:
    """Build an object of ``cls`` from its stored ``argument``; raise ``Corrupt`` for an unknown code."""
    if isinstance(cls, type) and (Enum in cls.__mro__ or BaseModel in cls.__mro__ or is_old_model(cls)):
        return _build_data(code, cls, argument)
    if code == ONE:
        # A tuple is stored as a list, which no set can hold.
        return cls(map(hashable, argument)) if cls in (set, frozenset) else cls(argument)
    if code == POSITIONAL:
        return cls(*argument)
    if code in (KEYWORD, PYDANTIC_1, PYDANTIC_2):
        return cls(**argument)
    raise Corrupt(f"a stored value has the unknown extension code {code}")


def _build_data(code: int, cls: Any, argument: Any) -> Any:
    """Build a member of an enum, or a model. What was stored without validation, such as a field set later,
    is returned without it."""
    if Enum in cls.__mro__:
        if code != ONE:
            raise Corrupt("a stored member of an enum has the code of something else")
        # A tuple is stored as a list, which names no member.
        return cls(hashable(argument))
    if code not in (PYDANTIC_1, PYDANTIC_2) or type(argument) is not dict:
        raise Corrupt("a stored model has the code or the form of something else")
    if BaseModel not in cls.__mro__:
        try:
            return cls(**argument)
        except Exception:
            return cls.construct(**argument)
    try:
        if _has_aliases(cls):
            return cls.model_validate(argument, by_alias=False, by_name=True)
        return cls(**argument)
    except Exception:
        return cls.model_construct(**argument)


def _has_aliases(cls: type[BaseModel]) -> bool:
    if cls in OWN_TYPES:
        return False
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
        Corrupt: numpy is not installed.
    """
    try:
        import numpy
    except ImportError as error:
        raise Corrupt("a stored value is a numpy array; install numpy to read it") from error
    return numpy.frombuffer(data, dtype=numpy.dtype(dtype)).reshape(tuple(shape), order=order)
