"""Nodes that ignore their cancellation, as retries around everything do: the stop of their run holds."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.graph import START, StateGraph

from perdure.errors import Fenced
from perdure.runtime import Options, Runtime, StreamOptions, Ticket, effect
from tests.runtime.graphs import Heard, Storage, eventually, go, settings, working


class State(TypedDict):
    log: Annotated[list[str], operator.add]


class Stubborn:
    """A graph whose first node ignores its cancellation, and ends when ``may_end`` is set; the second one has
    a side effect. ``nested`` puts both into a subgraph."""

    def __init__(self, *, nested: bool = False) -> None:
        self.begun = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.may_end = asyncio.Event()
        self.ended: list[str] = []
        self.paid: list[str] = []
        self.refused: list[BaseException] = []
        self.in_node: Callable[[], Awaitable[Any]] | None = None
        builder = StateGraph(State).add_sequence([("first", self.first), ("pay", self.pay)])
        self.graph: Any = builder.add_edge(START, "first").compile()
        if nested:
            self.graph = StateGraph(State).add_node("inner", self.graph).add_edge(START, "inner").compile()

    async def first(self, state: State) -> dict[str, Any]:
        self.begun.set()
        while not self.may_end.is_set():
            try:
                await self.may_end.wait()
            except asyncio.CancelledError:
                self.cancelled.set()
        if self.in_node is not None:
            try:
                await self.in_node()
            except Exception as error:
                self.refused.append(error)
        self.ended.append("first")
        return {"log": ["first"]}

    async def pay(self, state: State) -> dict[str, Any]:
        self.paid.append("paid")
        return {"log": ["paid"]}


async def _begin(runtime: Runtime, stubborn: Stubborn, durability: Any = "sync") -> Ticket:
    options = Options(durability=durability, stream=StreamOptions(modes=("updates",)))
    ticket = await runtime.submit("ada", {"log": []}, options=options)
    await eventually(stubborn.begun.is_set)
    return ticket


async def _read_log(runtime: Runtime) -> list[str]:
    left = await runtime.graph("agent").aget_state({"configurable": {"thread_id": "ada"}})
    log: list[str] = left.values.get("log", [])
    return log


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize(("rollback", "state"), [(False, "interrupted"), (True, "rolled_back")])
def test_a_stopped_run_begins_no_further_step(
    near: Storage, rollback: bool, state: str, durability: str
) -> None:
    async def main() -> None:
        stubborn = Stubborn()
        async with working(near.database(), stubborn.graph) as runtime:
            ticket = await _begin(runtime, stubborn, durability)
            assert await runtime.cancel("ada", ticket.id, rollback=rollback)
            await eventually(stubborn.cancelled.is_set)
            stubborn.may_end.set()
            assert (await runtime.wait(ticket, 20)).state == state
            assert stubborn.ended == ["first"]
            assert stubborn.paid == []
            if rollback:
                assert await _read_log(runtime) == []

    go(main())


@pytest.mark.parametrize("rollback", [False, True])
def test_the_steps_of_a_subgraph_end_as_well(near: Storage, rollback: bool) -> None:
    async def main() -> None:
        stubborn = Stubborn(nested=True)
        async with working(near.database(), stubborn.graph) as runtime:
            ticket = await _begin(runtime, stubborn)
            assert await runtime.cancel("ada", ticket.id, rollback=rollback)
            await eventually(stubborn.cancelled.is_set)
            stubborn.may_end.set()
            assert (await runtime.wait(ticket, 20)).state == ("rolled_back" if rollback else "interrupted")
            assert stubborn.paid == []

    go(main())


def test_a_result_after_the_stop_does_not_count(near: Storage) -> None:
    """Its last step is under way when the run is stopped."""

    async def main() -> None:
        stubborn = Stubborn()
        graph = StateGraph(State).add_node("first", stubborn.first).add_edge(START, "first").compile()
        async with working(near.database(), graph) as runtime:
            ticket = await _begin(runtime, stubborn)
            assert await runtime.cancel("ada", ticket.id, rollback=True)
            await eventually(stubborn.cancelled.is_set)
            stubborn.may_end.set()
            assert (await runtime.wait(ticket, 20)).state == "rolled_back"
            assert await _read_log(runtime) == []

    go(main())


def test_a_result_after_the_deadline_does_not_count(near: Storage) -> None:
    async def main() -> None:
        stubborn = Stubborn()
        async with working(near.database(), stubborn.graph, settings=settings(deadline=0.3)) as runtime:
            ticket = await _begin(runtime, stubborn)
            await eventually(stubborn.cancelled.is_set)
            stubborn.may_end.set()
            run = await runtime.wait(ticket, 20)
            assert (run.state, run.note["kind"]) == ("failed", "Timeout")
            assert stubborn.paid == []

    go(main())


def test_a_stopped_node_begins_no_recorded_side_effect(near: Storage) -> None:
    async def main() -> None:
        stubborn, charged = Stubborn(), list[str]()

        async def charge() -> None:
            charged.append("charged")

        async def charge_once() -> None:
            await effect(charge)

        stubborn.in_node = charge_once
        async with working(near.database(), stubborn.graph) as runtime:
            ticket = await _begin(runtime, stubborn)
            assert await runtime.cancel("ada", ticket.id)
            await eventually(stubborn.cancelled.is_set)
            stubborn.may_end.set()
            assert (await runtime.wait(ticket, 20)).state == "interrupted"
            assert [type(error) for error in stubborn.refused] == [Fenced]
            assert charged == []

    go(main())


def test_a_run_that_is_handed_over_begins_no_further_step(near: Storage) -> None:
    first, second, heard = Stubborn(), Stubborn(), Heard()
    second.may_end.set()

    async def main() -> None:
        async with working(
            near.database(), first.graph, settings=settings(drain=0.1), observers=[heard]
        ) as leaving:
            ticket = await _begin(leaving, first)
            asyncio.get_running_loop().call_later(1, first.may_end.set)
        assert heard.count("run.handed_over") == 1
        assert (first.ended, first.paid) == (["first"], [])
        async with working(near.database(), second.graph) as other:
            run = await other.wait(ticket, 20)
            assert (run.state, run.attempts) == ("done", 1)
            assert await _read_log(other) == ["first", "paid"]
            assert second.paid == ["paid"]

    go(main())


@pytest.mark.slow
@pytest.mark.parametrize("rollback", [False, True])
def test_a_run_whose_node_never_ends_is_stopped_without_it(near: Storage, rollback: bool) -> None:
    async def main() -> None:
        stubborn, heard = Stubborn(), Heard()
        async with working(near.database(), stubborn.graph, observers=[heard]) as runtime:
            ticket = await _begin(runtime, stubborn, "async")
            assert await runtime.cancel("ada", ticket.id, rollback=rollback)
            run = await runtime.wait(ticket, 20)
            assert run.state == ("rolled_back" if rollback else "interrupted")
            assert heard.count("run.not_heeded") == 1
            log = await _read_log(runtime)
            stubborn.may_end.set()
            await eventually(lambda: stubborn.ended)
            await asyncio.sleep(0.2)
            assert stubborn.paid == []
            assert await _read_log(runtime) == log

    go(main())
