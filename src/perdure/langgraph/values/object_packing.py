"""Chooses the form in which an object that MessagePack does not know is stored, to be built again from it."""

from __future__ import annotations

import dataclasses
import decimal
import ipaddress
import pathlib
import sys
from collections import deque
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from enum import Enum
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

from langgraph.store.base import Item
from langgraph.types import Send
from pydantic import BaseModel

from perdure.langgraph.values.object_building import (
    KEYWORD,
    METHOD,
    ONE,
    POSITIONAL,
    PYDANTIC_1,
    PYDANTIC_2,
    model_fields,
)


class WireForm(NamedTuple):
    """An extension code for the way to build an object, the argument that it is built from, and further words
    that are stored with the class's name."""

    code: int
    argument: Any
    more: tuple[str, ...] = ()


def find_wire_form(obj: Any) -> WireForm | None:
    """Return the form of an object; ``None`` if it has none, e.g. a data class whose constructor does not
    take all of its fields."""
    return _find_model_form(obj) or _find_known_form(obj) or _find_data_form(obj)


def is_array(obj: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(obj, numpy.ndarray)


def is_whole_in_parts(array: Any) -> bool:
    """Return True if an array is built again from its parts: it holds no Python objects, has no named fields,
    and its class is numpy's own, as a subclass may hold more, such as a mask."""
    numpy, dtype = sys.modules["numpy"], array.dtype
    return type(array) is numpy.ndarray and not dtype.hasobject and bool(numpy.dtype(dtype.str) == dtype)


def split_array(array: Any) -> tuple[str, tuple[int, ...], str, bytes]:
    """Return the parts that ``object_building.unpack_array`` takes."""
    flags = array.flags
    if flags.f_contiguous and not flags.c_contiguous:
        order = "F"
    else:
        order = "C"
    return array.dtype.str, array.shape, order, array.tobytes(order="A")


def _find_model_form(obj: Any) -> WireForm | None:
    """Return the form of a model, or of another object that offers its fields by a method."""
    if (fields := model_fields(obj)) is not None:
        is_new = isinstance(obj, BaseModel)
        if is_new:
            return WireForm(PYDANTIC_2, fields, _VALIDATE)
        return WireForm(PYDANTIC_1, fields)
    if callable(dump := getattr(obj, "model_dump", None)):
        return WireForm(PYDANTIC_2, dump(), _VALIDATE)
    if callable(secret := getattr(obj, "get_secret_value", None)):
        return WireForm(ONE, secret())
    if callable(old_dump := getattr(obj, "dict", None)):
        return WireForm(PYDANTIC_1, old_dump())
    if callable(as_dict := getattr(obj, "_asdict", None)):
        return WireForm(KEYWORD, as_dict())
    return None


def _find_known_form(obj: Any) -> WireForm | None:
    """Return the form of an object of a type of the standard library."""
    if type(obj) is datetime:
        return WireForm(METHOD, obj.isoformat(), ("fromisoformat",))
    if isinstance(obj, deque) and obj.maxlen is not None:
        return WireForm(POSITIONAL, (tuple(obj), obj.maxlen))
    for kinds, code, argument in _BY_TYPE:
        if isinstance(obj, kinds):
            return WireForm(code, argument(obj))
    return None


def _find_data_form(obj: Any) -> WireForm | None:
    """Return the form of a member of an enum, a data class, or one of LangGraph's own objects."""
    if isinstance(obj, Enum):
        return WireForm(ONE, obj.value)
    if isinstance(obj, Send):
        extra = (obj.timeout,) if getattr(obj, "timeout", None) is not None else ()
        return WireForm(POSITIONAL, (obj.node, obj.arg, *extra))
    if dataclasses.is_dataclass(obj) and not isinstance(obj, type):
        fields = dataclasses.fields(obj)
        held = {f.name: getattr(obj, f.name) for f in fields if f.init}
        if len(held) == len(fields):
            return WireForm(KEYWORD, held)
        return None
    if isinstance(obj, Item):
        return WireForm(KEYWORD, {k: getattr(obj, k) for k in obj.__slots__})
    return None


_VALIDATE = ("model_validate_json",)

_BY_TYPE: tuple[tuple[Any, int, Callable[[Any], Any]], ...] = (
    (pathlib.PurePath, POSITIONAL, lambda o: o.parts),
    (UUID, ONE, lambda o: o.hex),
    (decimal.Decimal, ONE, str),
    ((set, frozenset, deque), ONE, tuple),
    (
        (
            ipaddress.IPv4Address, ipaddress.IPv4Interface, ipaddress.IPv4Network,
            ipaddress.IPv6Address, ipaddress.IPv6Interface, ipaddress.IPv6Network,
        ),
        ONE,
        str,
    ),
    (
        time,
        KEYWORD,
        lambda o: {
            "hour": o.hour, "minute": o.minute, "second": o.second,
            "microsecond": o.microsecond, "tzinfo": o.tzinfo, "fold": o.fold,
        },
    ),
    (date, POSITIONAL, lambda o: (o.year, o.month, o.day)),
    (timedelta, POSITIONAL, lambda o: (o.days, o.seconds, o.microseconds)),
    (timezone, POSITIONAL, lambda o: o.__getinitargs__()),
    (ZoneInfo, ONE, lambda o: o.key),
)  # fmt: skip
