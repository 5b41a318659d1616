"""A run that waits for another one shares its slot with it, so that those that wait never take all slots from
those that they wait for.

Covers perdure.runtime.worker.dispatch.
"""

from __future__ import annotations

import asyncio
import operator
from typing import Annotated

import pytest
from langgraph.graph import START, StateGraph
from typing_extensions import TypedDict

from perdure.model.runs.messages import Run
from perdure.runtime import Options, Runtime, StreamOptions
from tests.runtime.graphs import Storage, go, settings, working

pytestmark = pytest.mark.usefixtures("each_loop")


class Numbers(TypedDict, total=False):
    depth: int
    delay: float
    leaves: Annotated[list[int], operator.add]


class Nested:
    """A graph whose runs begin two others each, down to the leaves, and wait for them. It counts the runs
    that execute and wait for no other."""

    def __init__(self, *, follows: bool = False) -> None:
        self.runtime: Runtime | None = None
        self.active = self.most = 0
        self._follows = follows
        self.graph = StateGraph(Numbers).add_node("split", self._split).add_edge(START, "split").compile()

    async def _split(self, state: Numbers) -> Numbers:
        self.active += 1
        self.most = max(self.most, self.active)
        try:
            await asyncio.sleep(0.01)
            if state["depth"] == 0:
                return {"leaves": [1]}
            self.active -= 1
            try:
                await asyncio.gather(*(self._call(state, n) for n in range(2)))
            finally:
                self.active += 1
            return {"leaves": [2]}
        finally:
            self.active -= 1

    async def _call(self, state: Numbers, n: int) -> None:
        assert self.runtime is not None
        given = {"depth": state["depth"] - 1, "delay": state["delay"]}
        options = Options(stream=StreamOptions(modes=("values",)))
        thread = f"{state['depth']}-{n}-{id(state)}"
        ticket = await self.runtime.submit(thread, given, delay=state["delay"], options=options)
        if self._follows:
            ended = [item async for item in self.runtime.follow(thread, ticket.id)][-1]
            assert getattr(getattr(ended, "run", None), "state", None) == "done"
        else:
            assert (await self.runtime.wait(ticket)).state == "done"


@pytest.mark.parametrize("follows", [False, True])
@pytest.mark.parametrize("delay", [0.0, 0.05])
@pytest.mark.parametrize("most", [{"concurrency": 2}, {"concurrency": 8, "per_tenant": 2}])
def test_runs_that_wait_for_others_let_them_run(
    memory: Storage, most: dict[str, int], delay: float, follows: bool
) -> None:
    nested = Nested(follows=follows)

    async def main() -> None:
        async with working(memory.database(), nested.graph, settings=settings(**most)) as runtime:
            nested.runtime = runtime
            begun = [await runtime.submit(f"first{n}", {"depth": 2, "delay": delay}) for n in range(6)]
            ended: list[Run] = [await runtime.wait(ticket, 20) for ticket in begun]
            assert {run.state for run in ended} == {"done"}

    go(main())
    assert nested.most <= 2 + 1, "those that go on and those that begin share the slots"


def test_what_nobody_waits_for_has_a_slot_of_its_own(memory: Storage) -> None:
    async def main() -> None:
        begun: list[str] = []
        gate = asyncio.Event()

        async def call(state: Numbers) -> Numbers:
            begun.append("parent" if state["depth"] else "child")
            if state["depth"]:
                await runtime.submit(f"child{len(begun)}", {"depth": 0})
            await gate.wait()
            return {}

        graph = StateGraph(Numbers).add_node("call", call).add_edge(START, "call").compile()
        async with working(memory.database(), graph, settings=settings(concurrency=1)) as runtime:
            parent = await runtime.submit("parent", {"depth": 1})
            await asyncio.sleep(0.3)
            assert begun == ["parent"]
            gate.set()
            await runtime.wait(parent, 10)

    go(main())
