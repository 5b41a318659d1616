"""Checks that each declared field states whether it replaces or accumulates, and that its reducer is used."""

from __future__ import annotations

import collections
import collections.abc
import functools
import inspect
import types
import typing
from collections.abc import Iterator
from typing import Any

import typing_extensions

from perdure.audit import checks, reducers
from perdure.audit.findings import AuditFinding, Spot
from perdure.audit.sample_values import write_type
from perdure.audit.source import find_field_source, is_library
from perdure.langgraph.graph_facts import ChannelFacts, ChannelKind, GraphFacts, metadata, strip_annotations

_COLLECTIONS = (
    list,
    dict,
    set,
    collections.deque,
    collections.abc.Sequence,
    collections.abc.MutableSequence,
    collections.abc.Mapping,
    collections.abc.MutableMapping,
    collections.abc.Set,
    collections.abc.MutableSet,
)
_IMMUTABLE = (str, bytes, tuple, frozenset)


def check_declarations(facts: GraphFacts) -> Iterator[AuditFinding | str]:
    """Yield the findings about a graph's channels, and the reason for each channel that cannot be
    examined."""
    for channel in facts.channels:
        place = "/".join((*facts.path, channel.name))
        schema, spot = find_field_source(channel.schema, channel.name)
        if channel.marked or not is_library(schema):
            yield from _check_declaration(channel, place, spot)
        try:
            for failure in reducers.failures(channel):
                yield AuditFinding(failure.check, "channel", place, spot, failure.detail, failure.example)
        except reducers.Unexamined as reason:
            yield f"{spot}: channel {place}: {reason}"


def _check_declaration(channel: ChannelFacts, place: str, spot: Spot) -> Iterator[AuditFinding]:
    ignored = [
        item
        for item in metadata(channel.annotation)[:-1]
        if inspect.isroutine(item) or isinstance(item, functools.partial)
    ]
    if channel.kind is ChannelKind.REPLACES and ignored:
        name = getattr(ignored[0], "__name__", "the reducer")
        detail = f"{name} stands before another item of Annotated"
        yield AuditFinding(checks.IGNORED_REDUCER, "channel", place, spot, detail)
    elif channel.kind is ChannelKind.REPLACES and not channel.marked and is_collection(channel.type):
        detail = f"{write_type(channel.type)} has no reducer and does not declare that it replaces"
        yield AuditFinding(checks.BARE_COLLECTION, "channel", place, spot, detail)
    elif channel.marked and channel.kind in (ChannelKind.REDUCES, ChannelKind.DELTA):
        detail = "it declares Replaces and has a reducer"
        yield AuditFinding(checks.CONTRADICTED_MARK, "channel", place, spot, detail)


def is_collection(annotation: Any) -> bool:
    """Return True for a list, dict or set, also one that may be ``None``; tuples and strings do not count."""
    annotation = strip_annotations(annotation)
    origin = typing.get_origin(annotation) or annotation
    if origin in (typing.Union, types.UnionType):
        return any(is_collection(option) for option in typing.get_args(annotation))
    if not isinstance(origin, type) or issubclass(origin, _IMMUTABLE):
        return False
    is_dict_type = typing_extensions.is_typeddict(origin)
    return origin in _COLLECTIONS or (issubclass(origin, _COLLECTIONS[:4]) and not is_dict_type)
