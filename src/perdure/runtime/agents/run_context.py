"""Context of a run: an instance of the graph's context schema, made of the given context.

As on LangGraph's server: a graph with a context schema always gets an instance, with the schema's defaults
for missing keys; keys that the schema lacks are dropped, and the values can be read in
``config["configurable"]`` too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.pregel import Pregel
from pydantic import AliasChoices, AliasPath, BaseModel
from pydantic.fields import FieldInfo
from typing_extensions import is_typeddict

from perdure.model.arguments import read_mapping
from perdure.runtime.agents.run_user import CLAIMED, USER
from perdure.runtime.options import OF_CHECKPOINTS

OF_LANGGRAPH = OF_CHECKPOINTS | {"thread_id"}
"""Configurable names that LangGraph reserves."""


def is_reserved(name: str) -> bool:
    """Return True if clients may not set a configurable name: LangGraph's own, which begin with two
    underscores or name a checkpoint, and those of the verified user."""
    return name in OF_LANGGRAPH or name.startswith(("langgraph_auth_", "__"))


def context_of(graph: Pregel[Any, Any, Any, Any], given: Any, configurable: Mapping[str, Any]) -> Any:
    """Return the argument for ``ainvoke(context=…)``: ``given`` without the keys that the graph's schema
    lacks. If ``given`` is None, it is an empty mapping, from which LangGraph makes an instance with defaults.

    An authenticated user's own statements about itself, under any alias of the schema's fields, are replaced
    with the verified values, which are among the run's ``configurable`` values.
    """
    if given is None:
        given = {}
    if not isinstance(given, Mapping):
        return given
    if USER in configurable:
        given = _drop_claims(graph.context_schema, given, configurable)
    names = _list_keys(graph.context_schema)
    if names is None:
        return given
    return {name: value for name, value in given.items() if name in names}


def mirror(context: Any, configurable: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configurable values, merged over those of the context."""
    own = {name: value for name, value in read_mapping(context).items() if not is_reserved(name)}
    return {**own, **configurable}


def with_configurable(config: RunnableConfig, values: Mapping[str, Any]) -> RunnableConfig:
    """Return a config with further configurable values."""
    return {**config, "configurable": {**config.get("configurable", {}), **values}}


def _list_keys(schema: Any) -> frozenset[str] | None:
    """Return the keys of a schema, or ``None`` if it is not a schema or has none: then any key is allowed."""
    names: set[str] = set()
    if isinstance(schema, type) and issubclass(schema, BaseModel):
        for name, field in schema.model_fields.items():
            names |= {name, *(each for each in _list_aliases(field) if isinstance(each, str))}
    elif is_typeddict(schema):
        names |= set(schema.__annotations__)
    elif isinstance(schema, type) and dataclasses.is_dataclass(schema):
        names |= {field.name for field in dataclasses.fields(schema) if field.init}
    return frozenset(names) or None


def _list_aliases(field: FieldInfo) -> list[str | AliasPath]:
    alias = field.validation_alias
    if isinstance(alias, AliasChoices):
        return alias.choices
    if alias is None:
        return []
    return [alias]


def _drop_claims(schema: Any, given: Mapping[str, Any], configurable: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a context in which no field that stands for a verified name has a value of the client's."""
    if not (isinstance(schema, type) and issubclass(schema, BaseModel)):
        # Only Pydantic reads aliases; under the names themselves a context has verified values already.
        return given
    out = dict(given)
    for name, field in schema.model_fields.items():
        aliases = _list_aliases(field)
        keys = [name, *(each if isinstance(each, str) else str(each.path[0]) for each in aliases)]
        claim = next((key.lower() for key in keys if key.lower() in CLAIMED), None)
        if claim is None or not any(key in out for key in keys):
            continue
        out = {key: value for key, value in out.items() if key not in keys}
        if claim in configurable:
            # The key that Pydantic reads first.
            key = next((each for each in aliases if isinstance(each, str)), name)
            out[key] = configurable[claim]
    return out
