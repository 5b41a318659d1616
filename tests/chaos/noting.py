"""The graph that crons start: each run notes its cron and its own id in a file beside it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypedDict

from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, StateGraph

NOTES = Path(__file__).with_name("started")


class State(TypedDict):
    said: str


def note(state: State, config: RunnableConfig) -> State:
    """Note the run, in one write."""
    of, run = config["metadata"]["cron_id"], config["configurable"]["run_id"]
    file = os.open(NOTES, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, f"{of} {run}\n".encode())
    os.close(file)
    return state


builder = StateGraph(State)
builder.add_node("note", note)
builder.add_edge(START, "note")
graph = builder.compile()
