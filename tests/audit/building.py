"""Parts of the faulty graphs: their table, and small graphs to put a fault into."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from langgraph.graph import START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from typing_extensions import TypedDict

Graph = CompiledStateGraph[Any, Any, Any, Any]
FAULTY: dict[str, tuple[str, str, Callable[[], Graph]]] = {}
"""Check, place and factory, by the factory's name."""


def finds(check: str, place: str) -> Callable[[Callable[[], Graph]], Callable[[], Graph]]:
    def kept(factory: Callable[[], Graph]) -> Callable[[], Graph]:
        FAULTY[factory.__name__] = check, place, factory
        return factory

    return kept


def graph(schema: Any, **nodes: Any) -> Graph:
    """A graph of nodes in a row."""
    builder: Any = StateGraph(schema)
    before = START
    for name, node in (nodes or {"work": idle}).items():
        builder.add_node(name, node)
        builder.add_edge(before, name)
        before = name
    return builder.compile()


def state(annotation: Any) -> Any:
    return TypedDict("State", {"value": annotation})  # type: ignore[operator]


def idle(state: Any) -> None:
    return None


class Topic(TypedDict):
    topic: str
