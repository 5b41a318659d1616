"""A worker process whose host's clock jumps when it is told to."""

from __future__ import annotations

import asyncio
import os
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.pregel import Pregel

import perdure
from perdure.runtime import Runtime, Settings
from perdure.runtime.clock import DatabaseClock
from tests.chaos.child_processes import skew

STEP_S = 0.3
SETTINGS = Settings(lease=6.0, poll=0.1, backoff=0.1, max_backoff=0.5, drain=10.0)


def graph(journal: Path | None = None) -> Pregel[Any, Any, Any, Any]:
    """Two steps that take their time. Each notes in ``journal`` that it was run, and for which message."""

    async def step(name: str, state: MessagesState) -> None:
        asked = [message.text for message in state["messages"] if message.type == "human"]
        if journal is not None:
            with journal.open("a") as notes:
                notes.write(f"{name} {asked[-1]}\n")
        await asyncio.sleep(STEP_S)

    async def first(state: MessagesState) -> dict[str, Any]:
        await step("first", state)
        return {}

    async def second(state: MessagesState) -> dict[str, Any]:
        await step("second", state)
        return {"messages": [AIMessage(f"answer to {state['messages'][-1].text}")]}

    builder = StateGraph(MessagesState).add_node("first", first).add_node("second", second)
    return builder.add_edge(START, "first").add_edge("first", "second").compile()


def work(url: str, journal: Path, orders: Connection, environ: dict[str, str], ahead: float = 0.0) -> None:
    """Work until an order is ``None``; any other is by how many seconds the host's clock jumps. ``environ``
    has the database's keys: a fork server knows the environment of its own start only. The host's clock is
    ``ahead`` from the beginning, in seconds."""
    os.environ.update(environ)
    if ahead:
        skew(ahead)
    # The database is asked for the time as often as in hours of work.
    DatabaseClock.__init__.__kwdefaults__["refresh_s"] = 0.2  # type: ignore[index]

    async def main() -> None:
        async with (
            perdure.connect(url) as database,
            Runtime(database, graph(journal), settings=SETTINGS),
        ):
            orders.send("ready")
            while (jump := await asyncio.to_thread(orders.recv)) is not None:
                skew(jump)
                orders.send("jumped")

    asyncio.run(main())
