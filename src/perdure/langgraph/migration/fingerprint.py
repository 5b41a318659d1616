"""Fingerprint of a compiled graph: everything that a stored thread depends on, in plain data.

It consists of every channel with its type and its reducer, the fields of the program's own types, the names
of the nodes, and the declared interrupts. Only subgraphs that are checkpointed are included. The code of
nodes, and the edges between them, may change without a new version.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any

from langgraph.pregel import Pregel
from pydantic import BaseModel

from perdure.langgraph.graph_facts import ChannelFacts, ChannelKind, read, strip_annotations, unwrap
from perdure.langgraph.values.datatypes import OWN_TYPES, list_types_within
from perdure.schema.schema_file import Fingerprint

_FOREIGN = (
    "langchain",
    "langchain_core",
    "langgraph",
    "pydantic",
    "typing",
    "collections",
    "datetime",
    "uuid",
    "decimal",
)
_PATH = "/"


def fingerprint(graph: Pregel[Any, Any, Any, Any]) -> Fingerprint:
    """Return the fingerprint of a compiled graph."""
    out: Fingerprint = {"channels": {}, "types": {}, "nodes": [], "interrupts": []}
    _add_graph(out, graph, "", set())
    return {
        name: sorted(held) if isinstance(held, list) else dict(sorted(held.items()))
        for name, held in out.items()
    }


def _add_graph(out: Fingerprint, graph: Pregel[Any, Any, Any, Any], path: str, seen: set[int]) -> None:
    if id(graph) in seen:
        return
    seen.add(id(graph))
    facts = read(graph)
    for channel in facts.channels:
        out["channels"][path + channel.name] = _describe_channel(channel)
        for cls in list_types_within(strip_annotations(channel.annotation)):
            _add_type(out["types"], cls)
    for node in facts.nodes:
        out["nodes"].append(path + node.name)
        for inner in node.graphs:
            if inner.checkpointer is not False:
                _add_graph(out, inner, f"{path}{node.name}{_PATH}", seen)
    for when in ("before", "after"):
        names: Any = getattr(graph, f"interrupt_{when}_nodes")
        out["interrupts"] += [
            f"{when} {path}{name}" for name in ([names] if isinstance(names, str) else names)
        ]


def _describe_channel(facts: ChannelFacts) -> str:
    kind = write_type_text(facts.annotation)
    if facts.reducer is not None:
        if facts.kind is ChannelKind.DELTA:
            how = "delta of "
        else:
            how = "reduced by "
        return f"{kind}, {how}{_describe_function(facts.reducer)}"
    is_plain = facts.kind is ChannelKind.REPLACES
    return f"{kind}, {'replaces' if is_plain else type(facts.channel).__name__}"


def _describe_function(reducer: Callable[..., Any]) -> str:
    found = unwrap(reducer)
    name = getattr(found, "__qualname__", type(found).__qualname__)
    return f"{getattr(found, '__module__', '')}.{name}"


def _add_type(out: dict[str, Any], cls: type) -> None:
    """Add the fields of a type of the program."""
    if cls in OWN_TYPES or cls.__module__.partition(".")[0] in _FOREIGN:
        return
    name = f"{cls.__module__}.{cls.__qualname__}"
    if issubclass(cls, Enum):
        out[name] = {member: repr(each.value) for member, each in cls.__members__.items()}
        return
    try:
        hints: Mapping[str, Any] = typing.get_type_hints(cls)
    except (NameError, TypeError):
        return
    required = _list_required_fields(cls)
    if hints:
        out[name] = {
            field: write_type_text(hint) + ("" if field in required else " (optional)")
            for field, hint in hints.items()
            if not field.startswith("_")
            and field != "model_config"
            and typing.get_origin(hint) is not typing.ClassVar
        }


def _list_required_fields(cls: type) -> set[str]:
    """Return the fields without which a value of a type cannot be built."""
    if issubclass(cls, BaseModel):
        return {name for name, each in cls.model_fields.items() if each.is_required()}
    if dataclasses.is_dataclass(cls):
        missing = dataclasses.MISSING
        return {
            each.name
            for each in dataclasses.fields(cls)
            if each.default is missing and each.default_factory is missing
        }
    return set(getattr(cls, "__required_keys__", getattr(cls, "_fields", ())))


def write_type_text(annotation: Any) -> str:
    """Return a type as text, equal for equal types however they are written."""
    annotation = strip_annotations(annotation)
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return " | ".join(sorted(map(write_type_text, arguments)))
    if origin is typing.Literal:
        return f"Literal[{', '.join(sorted(map(repr, arguments)))}]"
    if origin is not None:
        inner = ", ".join(_write_argument_text(each) for each in arguments)
        if inner:
            return f"{write_type_text(origin)}[{inner}]"
        return write_type_text(origin)
    if annotation is None or annotation is type(None):
        return "None"
    if isinstance(annotation, type):
        if annotation.__module__ == "builtins":
            return annotation.__qualname__
        return f"{annotation.__module__}.{annotation.__qualname__}"
    return str(annotation)


def _write_argument_text(each: Any) -> str:
    if each is Ellipsis:
        return "..."
    if isinstance(each, list):
        held: Sequence[Any] = each
        return f"[{', '.join(map(write_type_text, held))}]"
    return write_type_text(each)
