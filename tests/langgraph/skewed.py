"""A process of a service whose clock is wrong: it answers turns that it is told to, on a shared file."""

from __future__ import annotations

import os
import time
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any

from langgraph.checkpoint.base import id as ids
from langgraph.graph import END, START, StateGraph

import perdure
from tests.langgraph.graphs import Plain
from tests.langgraph.session import config


def work(url: str, seconds: int, turns: Connection, environ: dict[str, str]) -> None:
    """Answer turn numbers from the connection until there is none; checkpoint ids are ``seconds`` off.
    ``environ`` has the database's keys: a fork server knows the environment of its own start only."""
    os.environ.update(environ)
    ids.__dict__["time"] = SimpleNamespace(time_ns=lambda: time.time_ns() + seconds * 10**9)

    def answer(state: Any) -> Any:
        return {"said": [f"answer to {state['said'][-1]}"]}

    with perdure.connect_sync(url) as db:
        graph = StateGraph(Plain).add_node("answer", answer).add_edge(START, "answer").add_edge("answer", END)
        chat = graph.compile(checkpointer=db.checkpointer())
        while (turn := turns.recv()) is not None:
            out = chat.invoke(
                {"said": [f"turn {turn}"]}, config(), durability="exit" if turn % 3 else "async"
            )
            turns.send(len(out["said"]))
