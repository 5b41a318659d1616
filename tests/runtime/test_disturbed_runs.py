"""Runs whose nodes and conditional edges fail, and whose workers are stopped, at random moments end as if
nothing had happened.

Covers perdure.runtime.worker.attempt.
"""

from __future__ import annotations

import asyncio
import os
from random import Random
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from perdure.model.runs.messages import DONE, FAILED, WAITING
from perdure.runtime import Agent, Runtime
from perdure.runtime.options import Options, StreamOptions
from tests.runtime.disturbed_graphs import Durability, Troubles, build
from tests.runtime.graphs import Storage, go, settings, working

PLACE: Any = {"configurable": {"thread_id": "ada"}}
INPUTS = ("one", "two")
FULL = os.environ.get("PERDURE_CHAOS") == "full"


async def undisturbed(seed: int) -> list[str]:
    """Return what the graph of a seed logs when nothing befalls it."""
    graph = build(seed, Troubles(Random(seed))).copy({"checkpointer": InMemorySaver()})
    for text in INPUTS:
        given: Any = {"log": [text]}
        while "__interrupt__" in (out := await graph.ainvoke(given, PLACE)):
            given = Command(resume="yes")
    log: list[str] = out["log"]
    return log


async def disturbed(seed: int, storage: Storage, durability: Durability) -> list[str]:
    """Return what it logs when its calls fail and its workers are stopped."""
    luck = Random(seed)
    troubles = Troubles(luck, share=0.15)
    agent = Agent(build(seed, troubles), durability=durability)
    streaming = Options(stream=StreamOptions(modes=("values", "updates", "messages")))
    options = luck.choice([None, streaming])

    def runtime() -> Any:
        terms = settings(attempts=100, drain=0, backoff=0.001, max_backoff=0.002)
        return working(storage.database(), agent, settings=terms)

    for text in INPUTS:
        async with runtime() as worker:
            ticket = await worker.submit("ada", {"log": [text]}, options=options)
            await asyncio.sleep(luck.random() * 0.02)
        while True:
            for _ in range(luck.randint(0, 2)):
                async with runtime():
                    await asyncio.sleep(luck.random() * 0.03)
            async with runtime() as worker:
                run = await worker.wait(ticket, 30)
                assert run.state != FAILED, run.note
                if run.state == DONE:
                    break
                assert run.state == WAITING
                ticket = await worker.submit("ada", None, command={"resume": "yes"}, options=options)
                await asyncio.sleep(luck.random() * 0.02)
    async with runtime() as worker:
        return await logged(worker)


async def logged(runtime: Runtime) -> list[str]:
    state = await runtime.graph("agent").aget_state(PLACE)
    assert not state.next
    log: list[str] = state.values["log"]
    return log


@pytest.mark.parametrize("durability", ["sync", "async"])
@pytest.mark.parametrize("seed", range(300 if FULL else 3))
def test_a_run_in_trouble_ends_as_one_without(near: Storage, seed: int, durability: Durability) -> None:
    async def main() -> None:
        assert await disturbed(seed, near, durability) == await undisturbed(seed)

    go(main())
