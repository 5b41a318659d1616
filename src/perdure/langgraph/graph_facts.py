"""Reads a compiled graph: the channels of its state, its nodes with their functions, and its subgraphs.

LangGraph's own channels (triggers, the input, sends) are left out. Nothing is run.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, NotRequired, Required

from langchain_core.runnables import Runnable, RunnableLambda, RunnableSequence
from langchain_core.runnables.base import RunnableBindingBase
from langchain_core.runnables.config import run_in_executor
from langchain_core.tools import BaseTool
from langgraph._internal._runnable import RunnableCallable, RunnableSeq
from langgraph.channels import BinaryOperatorAggregate, DeltaChannel, LastValue
from langgraph.channels.base import BaseChannel
from langgraph.constants import START
from langgraph.pregel import Pregel

from perdure.langgraph.replaces import Replaces

_OWN = ("__", "branch:to:", "join:")
"""Prefixes of the names of LangGraph's own channels."""


class ChannelKind(Enum):
    """Treatment of the updates of a channel."""

    REPLACES = "replaces"
    REDUCES = "reduces"
    DELTA = "delta"
    OTHER = "other"


@dataclass(frozen=True)
class ChannelFacts:
    """A channel of a graph's state.

    ``annotation`` is the declared type with its metadata, ``schema`` the class that declares it, if any, and
    ``marked`` is true if a class declares the channel with ``Replaces``.
    """

    name: str
    kind: ChannelKind
    channel: BaseChannel[Any, Any, Any]
    annotation: Any
    reducer: Callable[..., Any] | None
    schema: type | None
    marked: bool

    @property
    def type(self) -> Any:
        """The declared type without ``Annotated``, ``Required`` and ``NotRequired``."""
        return strip_annotations(self.annotation)


@dataclass(frozen=True)
class NodeFacts:
    """A node: its runnable, the functions that run in it, those of its tools, and the graphs among its
    steps."""

    name: str
    bound: Runnable[Any, Any]
    functions: tuple[Callable[..., Any], ...]
    tools: tuple[Callable[..., Any], ...]
    graphs: tuple[Pregel[Any, Any, Any, Any], ...]


@dataclass(frozen=True)
class GraphFacts:
    """A compiled graph. ``path`` is empty for the outermost one, else the path of nodes to a subgraph."""

    path: tuple[str, ...]
    graph: Pregel[Any, Any, Any, Any]
    channels: tuple[ChannelFacts, ...]
    nodes: tuple[NodeFacts, ...]
    managed: frozenset[str]

    @property
    def has_schema(self) -> bool:
        """True for graphs of a ``StateGraph``, false for those of the functional API."""
        return getattr(self.graph, "builder", None) is not None

    @property
    def keys(self) -> frozenset[str]:
        """The keys that a node may return."""
        return frozenset(channel.name for channel in self.channels) | self.managed


def read(graph: Pregel[Any, Any, Any, Any], path: tuple[str, ...] = ()) -> GraphFacts:
    """Return the facts of one compiled graph, without its subgraphs."""
    builder = getattr(graph, "builder", None)
    schemas: Mapping[type, Mapping[str, Any]] = getattr(builder, "schemas", {})
    channels = tuple(
        _read_channel(name, channel, schemas)
        for name, channel in graph.channels.items()
        if isinstance(channel, BaseChannel) and (name == "__root__" or not name.startswith(_OWN))
    )
    nodes = tuple(_read_node(name, node.bound) for name, node in graph.nodes.items() if name != START)
    return GraphFacts(path, graph, channels, nodes, frozenset(getattr(builder, "managed", {})))


def read_all(graph: Pregel[Any, Any, Any, Any]) -> Iterator[GraphFacts]:
    """Yield the facts of a graph and of all its subgraphs, the outermost first, each graph once."""
    seen: set[int] = set()
    waiting: list[tuple[Pregel[Any, Any, Any, Any], tuple[str, ...]]] = [(graph, ())]
    while waiting:
        each, path = waiting.pop(0)
        if id(each) in seen:
            continue
        seen.add(id(each))
        facts = read(each, path)
        yield facts
        for node in facts.nodes:
            inner = [*node.graphs, *(s for s in each.nodes[node.name].subgraphs if isinstance(s, Pregel))]
            waiting += [(graph, (*path, node.name)) for graph in inner]


def strip_annotations(annotation: Any) -> Any:
    """Return a type without ``Annotated``, ``Required`` and ``NotRequired``."""
    while True:
        origin = typing.get_origin(annotation)
        if origin in (Required, NotRequired, typing.Annotated):
            annotation = typing.get_args(annotation)[0]
        else:
            return annotation


def metadata(annotation: Any) -> tuple[Any, ...]:
    """Return the metadata of ``Annotated`` in an annotation, innermost first."""
    found: tuple[Any, ...] = ()
    while (origin := typing.get_origin(annotation)) in (Required, NotRequired, typing.Annotated):
        if origin is typing.Annotated:
            found = (*annotation.__metadata__, *found)
            annotation = annotation.__origin__
        else:
            annotation = typing.get_args(annotation)[0]
    return found


def steps(bound: Any) -> Iterator[Any]:
    """Yield a runnable, and the steps of a sequence or binding, one by one."""
    while isinstance(bound, RunnableBindingBase):
        bound = bound.bound
    if isinstance(bound, RunnableSeq | RunnableSequence):
        for step in bound.steps:
            yield from steps(step)
    else:
        yield bound


def unwrap(function: Any) -> Callable[..., Any]:
    """Return the function that a user wrote, without partial objects, and without decorators that set
    ``__wrapped__``."""
    while True:
        if isinstance(function, functools.partial):
            function = function.func
        elif inspect.ismethod(function):
            function = function.__func__
        elif not inspect.isroutine(function) and not isinstance(function, type):
            if callable(function):
                function = type(function).__call__
        else:
            return typing.cast("Callable[..., Any]", inspect.unwrap(function))


def list_tool_functions(tool: Any) -> list[Callable[..., Any]]:
    """Return the functions of a tool, or the methods ``_run`` and ``_arun`` that its class overrides."""
    own = _find_functions(tool, ("func", "coroutine"))
    if own or not isinstance(tool, BaseTool):
        return own
    own = [
        getattr(type(tool), name)
        for name in ("_run", "_arun")
        if getattr(type(tool), name) is not getattr(BaseTool, name)
    ]
    return [unwrap(each) for each in own]


def _read_channel(
    name: str, channel: BaseChannel[Any, Any, Any], schemas: Mapping[type, Mapping[str, Any]]
) -> ChannelFacts:
    annotation, schema, marked = _find_declared(name, channel, schemas)
    kind, reducer = ChannelKind.OTHER, None
    if isinstance(channel, BinaryOperatorAggregate):
        kind, reducer = ChannelKind.REDUCES, channel.operator
    elif isinstance(channel, DeltaChannel):
        kind, reducer = ChannelKind.DELTA, channel.reducer
    elif isinstance(channel, LastValue):
        kind = ChannelKind.REPLACES
    return ChannelFacts(name, kind, channel, annotation, reducer, schema, marked)


def _find_declared(
    name: str, channel: BaseChannel[Any, Any, Any], schemas: Mapping[type, Mapping[str, Any]]
) -> tuple[Any, type | None, bool]:
    """Return the annotation of a channel, the class that declares it, and whether any class declares it with
    ``Replaces``."""
    found: list[tuple[Any, type]] = []
    for schema, declared in schemas.items():
        if name in declared and hasattr(schema, "__annotations__"):
            found.append((typing.get_type_hints(schema, include_extras=True)[name], schema))
    marked = any(item is Replaces for annotation, _ in found for item in metadata(annotation))
    for annotation, schema in found:
        # Several schemas may declare a field; the one that made the channel counts.
        if schemas[schema][name] is channel:
            return annotation, schema, marked
    for annotation, schema in found:
        if type(schemas[schema][name]) is type(channel):
            return annotation, schema, marked
    return getattr(channel, "typ", Any), found[0][1] if found else None, marked


def _read_node(name: str, bound: Runnable[Any, Any]) -> NodeFacts:
    functions: list[Callable[..., Any]] = []
    tools: list[Callable[..., Any]] = []
    graphs: list[Pregel[Any, Any, Any, Any]] = []
    for step in steps(bound):
        if isinstance(step, Pregel):
            graphs.append(step)
        elif by_name := getattr(step, "tools_by_name", None):
            tools += [function for tool in by_name.values() for function in list_tool_functions(tool)]
        elif isinstance(step, RunnableCallable | RunnableLambda):
            functions += _find_functions(step, ("func", "afunc"))
    return NodeFacts(name, bound, tuple(functions), tuple(tools), tuple(graphs))


def _find_functions(holder: Any, names: tuple[str, str]) -> list[Callable[..., Any]]:
    given = [getattr(holder, name, None) for name in names]
    own = [function for function in given if function is not None and not _is_executor(function)]
    return list(dict.fromkeys(unwrap(function) for function in own))


def _is_executor(function: Any) -> bool:
    """Return True for LangGraph's asynchronous form of a blocking function."""
    return isinstance(function, functools.partial) and function.func is run_in_executor
