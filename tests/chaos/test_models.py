"""Models that think for long: as many threads as like, on a pool of five connections.

A connection is held while something is read or stored, never while a model is asked. So hundreds of threads
think at a time: no model answers before all of them have been asked. A short run by default, 200 threads and
10 seconds with ``PERDURE_CHAOS=full``.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph

from perdure.runtime import Runtime
from tests.chaos.figures import publish
from tests.runtime.graphs import Storage, eventually, settings, working
from tests.servers import postgres

FULL = os.environ.get("PERDURE_CHAOS") == "full"
THREADS, THINKS_S = (200, 10.0) if FULL else (60, 3.0)
POOL = 5
NAME = "models"
"""Name of the connections that are counted, beside those that other tests of this process left open."""
LEASE_S = THINKS_S / 3
"""A run takes three times its lease: whoever works on it has to say so while the model thinks."""
MEET_S = 120.0
"""Where a connection is held by each that thinks, the rest never asks: the first give up, the test fails."""
GRACE_S = 0.5
"""A transaction that is idle for so long waits for something else than its own next statement."""


class Model:
    """A node that asks a model, which answers once all that it expects have asked, then takes its time."""

    def __init__(self) -> None:
        self.calls = 0
        self.met = asyncio.Barrier(1)

    def expect(self, threads: int) -> None:
        self.met = asyncio.Barrier(threads)

    async def __call__(self, state: MessagesState) -> dict[str, Any]:
        self.calls += 1
        async with asyncio.timeout(MEET_S):
            await self.met.wait()
        await asyncio.sleep(THINKS_S)
        return {"messages": [AIMessage(f"echo: {state['messages'][-1].text}")]}


async def watch(seen: Counter[str], over: asyncio.Event) -> None:
    """Note the most connections that the database had at a time, and transactions that idled."""
    psycopg = pytest.importorskip("psycopg")
    url = postgres.shared().url()
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        while not over.is_set():
            cursor = await connection.execute(
                "SELECT count(*), count(*) FILTER (WHERE state LIKE 'idle in transaction%%'"
                " AND clock_timestamp() - state_change > %s * interval '1 second')"
                " FROM pg_stat_activity WHERE application_name = %s",
                (GRACE_S, NAME),
            )
            connections, idling = await cursor.fetchone() or (0, 0)
            seen["connections"] = max(seen["connections"], connections)
            seen["idling"] += idling
            seen["looks"] += 1
            await asyncio.sleep(0.05)


async def talk(runtime: Runtime, names: list[str]) -> float:
    """Say something on each thread and wait for all answers; the seconds that it took."""
    start = time.monotonic()
    tickets = await asyncio.gather(*(runtime.accept(name, f"I am {name}") for name in names))
    runs = await asyncio.gather(*(runtime.wait(ticket, 300) for ticket in tickets))
    assert {run.state for run in runs} == {"done"}
    assert {run.attempts for run in runs} == {1}
    return time.monotonic() - start


@pytest.mark.timeout(600)
def test_many_threads_think_at_a_time_on_few_connections() -> None:
    model = Model()
    builder = StateGraph(MessagesState)
    builder.add_node("model", model)
    builder.add_edge(START, "model")
    graph = builder.compile()
    names = [f"t{n}" for n in range(THREADS)]
    seen: Counter[str] = Counter()

    async def main(storage: Storage) -> tuple[float, float]:
        wide = settings(concurrency=THREADS, lease=LEASE_S)
        over = asyncio.Event()
        watching = asyncio.create_task(watch(seen, over))
        database = storage.database()
        async with working(database, graph, settings=wide) as runtime:
            await eventually(lambda: seen["looks"])
            one = await talk(runtime, ["alone"])
            model.expect(THREADS)
            many = await talk(runtime, names)
            over.set()
            await watching
            for name in names:
                state = await database.checkpointer().aget_tuple({"configurable": {"thread_id": name}})
                assert state is not None
                said = [message.text for message in state.checkpoint["channel_values"]["messages"]]
                assert said == [f"I am {name}", f"echo: I am {name}"]
        return one, many

    with postgres.empty(pool=POOL, application_name=NAME) as url:
        storage = Storage("postgresql", url)
        try:
            one, many = asyncio.run(main(storage))
        finally:
            storage.close()
    figures = {"threads": THREADS, "thinks": THINKS_S, "one": round(one, 1), "many": round(many, 1)}
    publish("models", {**figures, "connections": seen["connections"], "idling": seen["idling"]})
    assert model.calls == 1 + THREADS
    # At most the pool's, and one that hears of messages.
    assert 1 < seen["connections"] <= POOL + 1
    assert seen["idling"] == 0
