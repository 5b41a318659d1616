"""Description of a compiled graph: its nodes and edges, and the JSON schemas of its input, output and
state.

A missing schema is null, never an error: a state may contain types that JSON schema cannot describe.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from langgraph.channels.base import BaseChannel
from langgraph.pregel import Pregel
from langgraph.pregel.protocol import PregelProtocol
from pydantic import create_model
from pydantic.errors import PydanticUserError

from perdure.server.auth.identity import Refusal

Graph = Pregel[Any, Any, Any, Any]
Schema = dict[str, Any]

_SCHEMAS = ("input_schema", "output_schema", "state_schema", "config_schema", "context_schema")
_NO_SCHEMA = (PydanticUserError, NameError, NotImplementedError, TypeError, ValueError)
"""Errors raised for types without a schema: types unknown to pydantic, names that exist only for a type
checker, and anything that is neither a model, a data class nor a TypedDict."""


async def draw(graph: Graph, xray: int | bool) -> dict[str, list[dict[str, Any]]]:
    """Return a graph's nodes and edges, with those of its subgraphs down to the depth ``xray``, or at all
    depths if that is True."""
    try:
        return (await graph.aget_graph(xray=xray)).to_json()
    except NotImplementedError as error:
        raise Refusal(
            422, "This graph cannot be drawn: one of its nodes does not declare its destinations"
        ) from error


def schemas(graph_id: str, graph: PregelProtocol[Any, Any, Any, Any]) -> dict[str, Any]:
    """Return the JSON schemas of a graph's input, output, state, config and context."""
    described: dict[str, Any] = {"graph_id": graph_id, **dict.fromkeys(_SCHEMAS)}
    # A graph that runs on another server has none of these.
    if isinstance(graph, Pregel):
        local_graph: Graph = graph
        described["input_schema"] = _make_schema(local_graph.get_input_jsonschema)
        described["output_schema"] = _make_schema(local_graph.get_output_jsonschema)
        described["state_schema"] = _make_schema(lambda: _make_state_schema(local_graph))
        described["context_schema"] = _make_schema(local_graph.get_context_jsonschema)
        described["config_schema"] = _make_config_schema(local_graph, described["context_schema"])
    return described


async def subgraphs(graph: Graph, namespace: str | None, *, recurse: bool) -> dict[str, Any]:
    """Return the schemas of subgraphs by their namespace, without the ids of tasks.

    Args:
        graph: the graph.
        namespace: the only namespace to return, None for all; a namespace of several parts needs
            ``recurse``.
        recurse: include subgraphs of subgraphs.
    """
    found = graph.aget_subgraphs(namespace=namespace, recurse=recurse)
    return {name: schemas(below.get_name(), below) async for name, below in found}


def _make_schema(make: Callable[[], Schema | None]) -> Schema | None:
    try:
        return make()
    except _NO_SCHEMA:
        return None


def _make_state_schema(graph: Graph) -> Schema:
    fields: dict[str, Any] = {}
    for name in graph.stream_channels_list:
        channel = graph.channels[name]
        kind: Any = Any
        # A channel without a schema is described as any value, so that the others keep theirs.
        if isinstance(channel, BaseChannel) and _has_schema(channel.UpdateType):
            kind = channel.UpdateType
        fields[name] = (kind, None)
    schema: Schema = create_model(graph.get_name("State"), **fields).model_json_schema()
    return schema


def _has_schema(kind: Any) -> bool:
    return _make_schema(lambda: create_model("Channel", value=(kind, None)).model_json_schema()) is not None


def _make_config_schema(graph: Graph, context: Schema | None) -> Schema | None:
    """Return the schema of a config: its ``configurable`` has the schema of the context."""
    if context is None:
        return None
    inner = dict(context)
    schema: Schema = {"title": graph.get_name("Config"), "type": "object"}
    if "$defs" in inner:
        schema["$defs"] = inner.pop("$defs")
    return {**schema, "properties": {"configurable": inner}}
