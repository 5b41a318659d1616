"""The agent of workers that are killed while sweeps run: it notes each message, and asks where it has to.

A worker loads this file from a folder of its own.
"""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

from langgraph.graph import START, StateGraph
from langgraph.types import interrupt

ASK = "ask "


class Log(TypedDict):
    log: Annotated[list[str], operator.add]


def think(state: Log) -> dict[str, Any]:
    return {"log": [f"s:{len(state['log'])}"]}


def ask(state: Log) -> dict[str, Any]:
    last = next(entry for entry in reversed(state["log"]) if entry.startswith("m:"))
    return {"log": [f"a:{interrupt(last)}"]} if last.startswith(f"m:{ASK}") else {}


graph = (
    StateGraph(Log)
    .add_node("think", think)
    .add_node("ask", ask)
    .add_edge(START, "think")
    .add_edge("think", "ask")
    .compile()
)
