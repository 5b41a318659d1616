"""What a compiled graph looks like from outside: its nodes and edges, and the JSON schemas of what it takes.

What has no schema is null, never an error: a state may hold what JSON cannot describe.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from langgraph.channels.base import BaseChannel
from langgraph.pregel import Pregel
from langgraph.pregel.protocol import PregelProtocol
from pydantic import create_model
from pydantic.errors import PydanticUserError

from perdure.server.auth.identity import Refusal

Graph = Pregel[Any, Any, Any, Any]
Schema = dict[str, Any]

_LACKS_ONE = (PydanticUserError, NameError, NotImplementedError, TypeError, ValueError)
"""What is raised of types that have no schema: those of which pydantic knows nothing, names that were only
there for a type checker, and what is neither a model, a data class nor a TypedDict."""


async def drawn(graph: Graph, xray: int | bool) -> dict[str, list[dict[str, Any]]]:
    """Nodes and edges. ``xray`` shows what is in subgraphs, at most that many levels of them."""
    try:
        return (await graph.aget_graph(xray=xray)).to_json()
    except NotImplementedError as error:
        raise Refusal(
            422, "This graph cannot be drawn: one of its nodes does not say where it leads"
        ) from error


def schemas(graph_id: str, graph: PregelProtocol[Any, Any, Any, Any]) -> dict[str, Any]:
    """The JSON schemas of a graph's input, output, state, config and context."""
    said: dict[str, Any] = {
        "graph_id": graph_id,
        "input_schema": None,
        "output_schema": None,
        "state_schema": None,
        "config_schema": None,
        "context_schema": None,
    }
    # A graph that runs on another server has none of these.
    if isinstance(graph, Pregel):
        whole: Graph = graph
        said["input_schema"] = _schema(whole.get_input_jsonschema)
        said["output_schema"] = _schema(whole.get_output_jsonschema)
        said["state_schema"] = _schema(lambda: _state(whole))
        said["context_schema"] = _schema(whole.get_context_jsonschema)
        said["config_schema"] = _config(whole, said["context_schema"])
    return said


async def subgraphs(graph: Graph, namespace: str | None, *, recurse: bool) -> dict[str, Any]:
    """The schemas of subgraphs by the namespace they run in, without the ids of tasks. A namespace of several
    parts names what only ``recurse`` comes to."""
    found = graph.aget_subgraphs(namespace=namespace, recurse=recurse)
    return {name: schemas(below.get_name(), below) async for name, below in found}


def _schema(made: Callable[[], Schema | None]) -> Schema | None:
    try:
        return made()
    except _LACKS_ONE:
        return None


def _state(graph: Graph) -> Schema:
    fields: dict[str, Any] = {}
    for name in graph.stream_channels_list:
        channel = graph.channels[name]
        kind = channel.UpdateType if isinstance(channel, BaseChannel) else Any
        # One channel without a schema hides no other.
        known = _schema(partial(_of_channel, kind))
        fields[name] = (kind if known is not None else Any, None)
    schema: Schema = create_model(graph.get_name("State"), **fields).model_json_schema()
    return schema


def _of_channel(kind: Any) -> Schema:
    schema: Schema = create_model("Channel", value=(kind, None)).model_json_schema()
    return schema


def _config(graph: Graph, context: Schema | None) -> Schema | None:
    """What may stand in a config's ``configurable``: where a graph has no schema for it, anything."""
    if context is None:
        return None
    definitions = context.get("$defs")
    inner = {key: held for key, held in context.items() if key != "$defs"}
    whole: Schema = {
        "title": graph.get_name("Config"),
        "type": "object",
        "properties": {"configurable": inner},
    }
    return whole if definitions is None else {**whole, "$defs": definitions}
