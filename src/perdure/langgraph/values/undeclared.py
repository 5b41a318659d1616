"""Reports keys that a run of a graph drops: those of inputs and updates that no schema declares.

LangGraph filters them where an update becomes writes, before any checkpointer sees them. So a copy of the
graph is made whose writers look at each update first: the cost is one look-up a key. Keys that pass between a
graph and a subgraph are filtered on purpose, as each has its own state, and are not reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from langgraph._internal._fields import get_cached_annotated_keys, get_update_as_tuples
from langgraph.constants import START
from langgraph.pregel import Pregel
from langgraph.pregel._read import PregelNode
from langgraph.pregel._write import ChannelWrite, ChannelWriteTupleEntry
from langgraph.types import Command

from perdure.errors import UndeclaredKey

INPUT: Final = "input"
"""Reported in place of a node's name for keys that a caller passed."""

OnUndeclared = Callable[[str, str], None]
"""Arguments: the path of nodes to the one that returned the key, or ``INPUT``, and the key. An exception that
it raises ends the run."""

_MAPPER = "_get_updates"
_MOST = 1000


def watch_undeclared(
    graph: Pregel[Any, Any, Any, Any], on_undeclared: OnUndeclared
) -> Pregel[Any, Any, Any, Any]:
    """Return a copy of a graph that reports keys that are dropped, also in subgraphs that are its nodes.

    A graph that a function of a node calls is not seen, and neither are keys of ``Command(graph=PARENT)``.
    """
    return _watch(graph, on_undeclared, ())


def refuse(node: str, key: str) -> None:
    """Raise ``UndeclaredKey`` for a key."""
    if node == INPUT:
        source = "the input has"
    else:
        source = f"the node {node!r} returned"
    raise UndeclaredKey(
        f"{source} the key {key!r}, which the graph's state does not declare, so that it would be dropped; "
        "declare it, or leave it out"
    )


class ReportedOnce:
    """Calls a function for each node and key once; from the 1,000th on, keys are not reported any more, since
    a caller can make up any number of them."""

    def __init__(self, on_undeclared: OnUndeclared) -> None:
        self._on_undeclared = on_undeclared
        self._seen: set[tuple[str, str]] = set()

    def __call__(self, node: str, key: str) -> None:
        if (node, key) not in self._seen and len(self._seen) < _MOST:
            self._seen.add((node, key))
            self._on_undeclared(node, key)


def _watch(
    graph: Pregel[Any, Any, Any, Any], on_undeclared: OnUndeclared, path: tuple[str, ...]
) -> Pregel[Any, Any, Any, Any]:
    builder = getattr(graph, "builder", None)
    if builder is None:
        return graph  # a functional graph has no keys
    inputs = frozenset(builder.schemas[builder.input_schema])
    declared = frozenset((*builder.channels, *builder.managed))
    nodes: dict[str, PregelNode] = {}
    for name, node in graph.nodes.items():
        if isinstance(node.bound, Pregel):
            inner = _watch(node.bound, on_undeclared, (*path, name))
            nodes[name] = node.copy({"bound": inner, "subgraphs": [inner] if node.subgraphs else []})
        elif name == START:
            if path:
                nodes[name] = node
            else:
                nodes[name] = _watch_node(node, INPUT, on_undeclared, inputs)
        else:
            nodes[name] = _watch_node(node, "/".join((*path, name)), on_undeclared, declared)
    return graph.copy(update={"nodes": nodes})


def _watch_node(
    node: PregelNode, place: str, on_undeclared: OnUndeclared, keys: frozenset[str]
) -> PregelNode:
    writers = [
        ChannelWrite(
            [_watch_entry(each, place, on_undeclared, keys) for each in writer.writes], tags=writer.tags
        )
        if isinstance(writer, ChannelWrite)
        else writer
        for writer in node.writers
    ]
    return node.copy({"writers": writers})


def _watch_entry(entry: Any, place: str, on_undeclared: OnUndeclared, keys: frozenset[str]) -> Any:
    if not isinstance(entry, ChannelWriteTupleEntry) or entry.mapper.__name__ != _MAPPER:
        return entry
    mapper = entry.mapper

    def check_keys(value: Any) -> Any:
        for key in _list_keys(value):
            if key not in keys:
                on_undeclared(place, str(key))
        return mapper(value)

    return entry._replace(mapper=check_keys)


def _list_keys(value: Any) -> Iterator[Any]:
    """Yield the keys of an update in any form that LangGraph takes."""
    if isinstance(value, dict):
        yield from value
    elif isinstance(value, Command):
        if value.graph != Command.PARENT:
            yield from (key for key, _ in value._update_as_tuples())  # pyright: ignore[reportPrivateUsage]
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _list_keys(each)
    elif value is not None and (declared := get_cached_annotated_keys(type(value))):
        yield from (key for key, _ in get_update_as_tuples(value, declared))
