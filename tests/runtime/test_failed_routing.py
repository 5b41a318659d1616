"""A conditional edge that fails or is cut off after its node has a result: the node runs again, and what
follows it is not left out.

Covers perdure.langgraph.commit_plans.
"""

from __future__ import annotations

import asyncio
import operator
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.errors import NodeError
from langgraph.graph import START, StateGraph
from langgraph.pregel import Pregel

from perdure.runtime import Runtime
from perdure.runtime.options import Options, StreamOptions
from tests.runtime.graphs import Storage, eventually_stored, go, settings, working

PLACE: Any = {"configurable": {"thread_id": "ada"}}
Route = Callable[..., Awaitable[str]] | Callable[..., str]
Graph = Pregel[Any, Any, Any, Any]


class State(TypedDict):
    log: Annotated[list[str], operator.add]


def failing(times: int) -> Route:
    left = [times]

    async def route(_: State) -> str:
        if left[0]:
            left[0] -= 1
            raise ConnectionError("the router's model does not answer")
        return "next"

    return route


async def is_idle(runtime: Runtime, thread: str) -> bool:
    return (await runtime.threads.get(thread)).status == "idle"


async def straight(_: State) -> str:
    return "next"


def routed(before: Route, after: Route) -> Graph:
    """Return a graph of two nodes with a conditional edge ahead of each."""
    builder = StateGraph(State)
    builder.add_node("first", lambda state: {"log": ["first"]}).add_node(
        "second", lambda state: {"log": ["second"]}
    )
    builder.add_conditional_edges(START, before, {"next": "first"})
    builder.add_conditional_edges("first", after, {"next": "second"})
    return builder.compile()


def nested(before: Route, after: Route) -> Graph:
    inner: Any = routed(before, after)
    return StateGraph(State).add_node("inner", inner).add_edge(START, "inner").compile()


@pytest.mark.parametrize("build", [routed, nested])
@pytest.mark.parametrize(("before", "after"), [(1, 0), (0, 1), (2, 2)])
def test_a_run_whose_routing_fails_goes_on_at_its_next_attempt(
    storage: Storage, build: Callable[[Route, Route], Graph], before: int, after: int
) -> None:
    async def main() -> None:
        graph = build(failing(before), failing(after))
        async with working(storage.database(), graph, settings=settings(attempts=9)) as runtime:
            run = await runtime.wait(await runtime.submit("ada", {"log": ["in"]}), 30)
            assert run.state == "done"
            state = await runtime.graph("agent").aget_state(PLACE)
            # A node whose parent is stored has its input once, and its own result once.
            assert state.values["log"][-2:] == ["first", "second"]
            assert state.values["log"].count("second") == 1
            assert not state.next

    go(main())


def test_a_run_that_is_handed_over_at_any_moment_of_its_first_step_goes_on(near: Storage) -> None:
    def route(_: State) -> str:
        time.sleep(0.01)
        return "next"

    async def main() -> None:
        streaming = Options(stream=StreamOptions(modes=("values", "updates", "messages")))
        threads = [f"thread {moment}" for moment in range(12)]
        for moment, thread in enumerate(threads):
            leaving = working(near.database(), routed(route, straight), settings=settings(drain=0))
            async with leaving as runtime:
                await runtime.wait(await runtime.submit(thread, {"log": ["before"]}), 30)
                await runtime.submit(thread, {"log": ["in"]}, options=streaming)
                await asyncio.sleep(0.001 + moment * 0.0003)
        async with working(near.database(), routed(straight, straight)) as runtime:
            for thread in threads:
                place: Any = {"configurable": {"thread_id": thread}}
                await eventually_stored(partial(is_idle, runtime, thread))
                state = await runtime.graph("agent").aget_state(place)
                assert state.values["log"] == ["before", "first", "second", "in", "first", "second"], thread

    go(main())


def test_a_graph_without_a_runtime_goes_on_too(near: Storage) -> None:
    async def main() -> None:
        graph = routed(failing(1), failing(1)).copy({"checkpointer": near.database().checkpointer()})
        with pytest.raises(ConnectionError):
            await graph.ainvoke({"log": ["in"]}, PLACE)
        with pytest.raises(ConnectionError):
            await graph.ainvoke(None, PLACE)
        assert (await graph.aget_state(PLACE)).next == ("first",)
        assert (await graph.ainvoke(None, PLACE))["log"] == ["in", "first", "second"]

    go(main())


def test_a_node_whose_error_has_a_handler_keeps_its_result(near: Storage) -> None:
    def handle(state: State, error: NodeError) -> dict[str, Any]:
        if not handled:
            handled.append(str(error.error))
            raise RuntimeError("the handler fails once")
        return {"log": ["handled"]}

    handled = list[str]()

    async def main() -> None:
        handler: Any = handle
        builder = StateGraph(State).add_node("first", lambda state: {"log": ["first"]}, error_handler=handler)
        builder.add_node("second", lambda state: {"log": ["second"]})
        builder.add_edge(START, "first").add_conditional_edges("first", failing(9), {"next": "second"})
        graph = builder.compile().copy({"checkpointer": near.database().checkpointer()})
        with pytest.raises(RuntimeError, match="fails once"):
            await graph.ainvoke({"log": ["in"]}, PLACE)
        assert (await graph.ainvoke(None, PLACE))["log"] == ["in", "first", "handled"]

    go(main())
