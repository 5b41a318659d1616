"""Checks that values of a state's types can be stored, and are read back as values of the same type."""

from __future__ import annotations

import collections
import types
import typing
from collections.abc import Iterator
from typing import Any

import typing_extensions
from langchain_core.runnables import Runnable
from langgraph.channels import EphemeralValue, UntrackedValue

from perdure.audit import checks
from perdure.audit.findings import AuditFinding
from perdure.audit.sample_values import NoSample, Samples, format_value
from perdure.audit.source import find_field_spot
from perdure.errors import PerdureError, TypeNotAllowed, Unserialisable
from perdure.langgraph.graph_facts import ChannelFacts, ChannelKind, GraphFacts
from perdure.langgraph.values.datatypes import OWN_TYPES, is_data, list_types_within
from perdure.langgraph.values.serde import Serde

_TRIES = 12
_PLAIN = (object, type(None), str, int, float, bool, bytes, bytearray, list, dict, set, frozenset, tuple)
_SUBCLASSES = (dict, list, set, collections.deque)


def storage(facts: GraphFacts, serde: Serde) -> Iterator[AuditFinding | str]:
    """Yield the findings about the types of a graph's channels, for a checkpointer's serializer."""
    for channel in facts.channels:
        if isinstance(channel.channel, UntrackedValue):
            continue  # never stored
        place = "/".join((*facts.path, channel.name))
        spot = find_field_spot(channel.schema, channel.name)
        for check, detail in _find_faults(channel, serde):
            yield AuditFinding(check, "channel", place, spot, detail)


def _find_faults(channel: ChannelFacts, serde: Serde) -> Iterator[tuple[checks.AuditCheck, str]]:
    is_found = False
    for cls in _find_classes(channel.type):
        fault = _check_class(cls, serde)
        if fault is not None:
            is_found = True
            yield fault
    if is_found or isinstance(channel.channel, EphemeralValue):
        return
    yield from _check_values(channel, serde)


def _check_class(cls: type, serde: Serde) -> tuple[checks.AuditCheck, str] | None:
    """Return the fault of a class that a field is declared with, if any."""
    name = f"{cls.__module__}.{cls.__qualname__}"
    if cls in _PLAIN or cls in OWN_TYPES or _is_abstract(cls) or any(c.type is cls for c in serde.codecs):
        return None
    if typing_extensions.is_typeddict(cls):
        return None
    if cls in _SUBCLASSES:
        return None
    plain = next((base for base in _SUBCLASSES if base in cls.__mro__), None)
    if plain is not None:
        return checks.CHANGED_BY_STORAGE, f"{name} is read back as {plain.__name__}"
    if not is_data(cls):
        what = "acts when it is called" if issubclass(cls, Runnable) else "is not a data type"
        return checks.UNSERIALISABLE, f"{name} {what}: no pydantic model, dataclass, enum or named tuple"
    try:
        serde.types.name(cls)
    except TypeNotAllowed as error:
        return checks.NOT_ALLOWED, str(error)
    except Unserialisable as error:
        return checks.UNSERIALISABLE, str(error)
    return None


def _check_values(channel: ChannelFacts, serde: Serde) -> Iterator[tuple[checks.AuditCheck, str]]:
    """Store values of the declared type and read them back. If no value of the type can be made, only its
    classes are checked."""
    for attempt in range(_TRIES):
        try:
            value = Samples(f"{channel.name} {attempt}", size=1 + attempt % 3).make(channel.type)
        except NoSample:
            return
        try:
            read_back = serde.unpack(serde.pack(value))
        except TypeNotAllowed as error:
            yield checks.NOT_ALLOWED, str(error)
            return
        except PerdureError as error:
            yield checks.UNSERIALISABLE, str(error)
            return
        if (detail := _find_reducer_fault(channel, value, read_back)) is not None:
            yield checks.CHANGED_BY_STORAGE, detail
            return


def _find_reducer_fault(channel: ChannelFacts, value: Any, read: Any) -> str | None:
    """Return the error if a reducer accepts a value, but not the same value after a round trip."""
    if channel.kind is not ChannelKind.REDUCES or type(value) is type(read) or channel.reducer is None:
        return None
    try:
        channel.reducer(value, value)
    except Exception:
        return None  # a fault that the checks of reducers find
    try:
        channel.reducer(read, value)
    except Exception as error:
        return (
            f"{format_value(value)} is read back as {format_value(read)}, for which the reducer raises "
            f"{type(error).__name__}: {error}"
        )
    return None


def _find_classes(annotation: Any) -> Iterator[type]:
    """Yield the classes of which a field's values can consist, each once."""
    seen: set[type] = set()
    for cls in (*_find_origins(annotation), *list_types_within(annotation)):
        if isinstance(cls, type) and cls not in seen:
            seen.add(cls)
            yield cls


def _find_origins(annotation: Any) -> Iterator[Any]:
    """Yield the generic classes in an annotation, such as ``defaultdict`` of ``defaultdict[str, int]``."""
    origin = typing.get_origin(annotation)
    if origin is None:
        return
    if isinstance(origin, type) and origin is not types.UnionType:
        yield origin
    for argument in typing.get_args(annotation):
        yield from _find_origins(argument)


def _is_abstract(cls: type) -> bool:
    """Return True for a class that says nothing about its values, such as a protocol or an abstract base."""
    return bool(getattr(cls, "_is_protocol", False)) or cls.__module__ in ("collections.abc", "typing")
