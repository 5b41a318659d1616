"""Graphs as nodes and edges."""

from __future__ import annotations

import asyncio

import pytest
from langgraph.graph import END, START, MessagesState, StateGraph

from perdure.errors import BadSetting
from perdure.inspector import graph_picture
from perdure.inspector.graph_picture import draw


def nothing(state: MessagesState) -> None:
    return None


def test_nodes_of_subgraphs_are_named_by_both() -> None:
    inner = StateGraph(MessagesState).add_node("write", nothing).add_edge(START, "write").compile()
    built = StateGraph(MessagesState).add_node("plan", nothing).add_node("research", inner)
    built.add_edge(START, "plan")
    built.add_conditional_edges("plan", lambda _: "research", {"go on": "research", "stop": END})
    found = asyncio.run(draw(built.compile()))
    assert {node["id"] for node in found["nodes"]} >= {"__start__", "plan", "research:write", "__end__"}
    edges = {(edge["source"], edge["target"]): edge for edge in found["edges"]}
    assert not edges["__start__", "plan"]["conditional"]
    assert edges["plan", "research:write"]["conditional"]
    assert edges["plan", "__end__"]["label"] == "stop"


def test_a_graph_with_too_many_nodes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_picture, "_NODES_MAX", 2)
    built = StateGraph(MessagesState).add_node("plan", nothing).add_edge(START, "plan")
    with pytest.raises(BadSetting, match="has 3 nodes"):
        asyncio.run(draw(built.compile()))
