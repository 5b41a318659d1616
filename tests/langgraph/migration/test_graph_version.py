"""The name of a graph's version: the same wherever the same code is loaded, and another after a deploy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from langchain_core.tools import tool
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

from perdure.langgraph.migration.graph_version import name_function, name_graph

GRAPH = """
from langgraph.graph import START, MessagesState, StateGraph

def answer(state: MessagesState):
    if state["messages"][-1].text in {"one", "two", "three", "four"}:
        return {"messages": [("ai", "yes")]}
    return {"messages": [("ai", "no")]}

graph = StateGraph(MessagesState).add_node("answer", answer).add_edge(START, "answer").compile()
"""
SHOW = """
import sys
from perdure.langgraph.migration.graph_version import name_graph
sys.path.insert(0, sys.argv[1])
from agent import graph
print(name_graph(graph))
"""


def name_of(folder: Path, source: str) -> str:
    folder.mkdir()
    (folder / "agent.py").write_text(source)
    shown = subprocess.run([sys.executable, "-c", SHOW, str(folder)], capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    return shown.stdout.strip()


def test_it_is_of_the_code_and_not_of_its_place(tmp_path: Path) -> None:
    """Processes hash text with seeds of their own, so the order of a set differs."""
    name = name_of(tmp_path / "here", GRAPH)
    assert len(name) == 12
    assert name_of(tmp_path / "there", f"# a comment\n\n\n{GRAPH}") == name
    assert name_of(tmp_path / "again", GRAPH) == name
    assert name_of(tmp_path / "changed", GRAPH.replace('"no"', '"maybe"')) != name


def answer(state: MessagesState) -> dict[str, Any]:
    return {"messages": [("ai", "fine")]}


def better(state: MessagesState) -> dict[str, Any]:
    return {"messages": [("ai", "very fine")]}


def onward(state: MessagesState) -> str:
    return "second"


def back(state: MessagesState) -> str:
    return "first" if len(state["messages"]) < 3 else "second"


@tool
def weather(place: str) -> str:
    """Tell the weather."""
    return f"fine in {place}"


@tool("weather")
def other_weather(place: str) -> str:
    """Tell the weather."""
    return f"rain in {place}"


def graph(
    node: Any = answer, path: Any = onward, *, tools: Any = (weather,), edges: Any = (("first", "tools"),)
) -> Any:
    builder = StateGraph(MessagesState).add_node("first", node).add_node("second", answer)
    builder.add_node("tools", ToolNode(list(tools))).add_edge(START, "first")
    for before, after in edges:
        builder.add_edge(before, after)
    builder.add_conditional_edges("tools", path, ["first", "second"])
    return builder.compile()


@pytest.mark.parametrize(
    "changed",
    [
        {"node": better},
        {"path": back},
        {"tools": (other_weather,)},
        {"edges": (("first", "tools"), ("second", END))},
        {"edges": (("first", "tools"), (["first", "second"], "tools"))},
        {"node": graph(better)},
    ],
    ids=["a node", "a choice", "a tool", "an edge", "a joint edge", "a subgraph"],
)
def test_it_changes_with(changed: dict[str, Any]) -> None:
    before = {"node": graph(answer)} if "node" in changed and changed["node"] is not better else {}
    assert name_graph(graph(**before)) == name_graph(graph(**before))
    assert name_graph(graph(**changed)) != name_graph(graph(**before))


def test_a_functional_graph_and_a_factory_have_one() -> None:
    @task
    def part(text: str) -> str:
        return text

    @entrypoint()
    def flow(text: str) -> str:
        return part(text).result()

    assert name_graph(flow) == name_graph(flow) != name_graph(graph())
    assert name_function(graph) == name_function(graph) != name_function(answer)
