"""Context of a run: an instance of the graph's context schema, made of the given context.

As on LangGraph's server: a graph with a context schema always gets an instance, with the schema's defaults
for missing keys; keys that the schema lacks are dropped, and the values can be read in
``config["configurable"]`` too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from langgraph.pregel import Pregel
from pydantic import AliasChoices, BaseModel
from typing_extensions import is_typeddict

OF_LANGGRAPH = frozenset({"thread_id", "checkpoint_id", "checkpoint_ns", "checkpoint_map"})
"""Configurable names that LangGraph reserves."""


def is_reserved(name: str) -> bool:
    """Return True if clients may not set a configurable name: LangGraph's own, which begin with two
    underscores or name a checkpoint, and those of the verified user."""
    return name in OF_LANGGRAPH or name.startswith(("langgraph_auth_", "__"))


def context_of(graph: Pregel[Any, Any, Any, Any], given: Any) -> Any:
    """Return the argument for ``ainvoke(context=…)``: ``given`` without the keys that the graph's schema
    lacks, or an empty mapping without a context, from which LangGraph makes an instance with the defaults."""
    if given is None:
        given = {}
    names = None if not isinstance(given, Mapping) else _names(graph.context_schema)
    return given if names is None else {name: value for name, value in given.items() if name in names}


def mirrored(context: Any, configurable: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configurable values, merged over those of the context."""
    held = context if isinstance(context, Mapping) else {}
    return {**{name: value for name, value in held.items() if not is_reserved(name)}, **configurable}


def _names(schema: Any) -> frozenset[str] | None:
    """Return the keys of a schema, or ``None`` if it is no schema or has none: then any key is allowed."""
    names: set[str] = set()
    if isinstance(schema, type) and issubclass(schema, BaseModel):
        for name, field in schema.model_fields.items():
            alias = field.validation_alias
            several = alias.choices if isinstance(alias, AliasChoices) else [alias]
            names |= {name, *(each for each in several if isinstance(each, str))}
    elif is_typeddict(schema):
        names |= set(schema.__annotations__)
    elif isinstance(schema, type) and dataclasses.is_dataclass(schema):
        names |= {field.name for field in dataclasses.fields(schema) if field.init}
    return frozenset(names) or None
