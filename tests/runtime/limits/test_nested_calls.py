"""Limited calls within others, calls that are abandoned, and runs that are cancelled: nobody waits for
itself, and every place comes back."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.graph import START, StateGraph
from typing_extensions import TypedDict

import perdure
from perdure.database.base import handle_of
from perdure.limits import SharedLimit
from perdure.runtime import Runtime, Settings
from perdure.runtime.limits.limiter import Limiter, limiter_of
from tests.runtime.graphs import eventually


class State(TypedDict, total=False):
    said: str


def graph_of(node: Callable[..., Any]) -> Any:
    return StateGraph(State).add_node("work", node).add_edge(START, "work").compile()


def settings(**limits: SharedLimit) -> Settings:
    return Settings(limits=limits, poll=0.05, backoff=0.05, attempts=3)


def uses_of(limiter: Limiter) -> list[tuple[int, int]]:
    """How many calls are under way and how many wait, for each key."""
    return [(share.in_use, share.waiting_count) for share in limiter._shares.values()]


async def run_of(graph: Any, made: Settings, threads: int = 1) -> list[Any]:
    """Run a graph on new threads at once, and return the runs; afterwards nothing may be in use."""
    async with perdure.connect("memory://") as db:
        async with Runtime(db, graph, settings=made) as runtime:
            tickets = [await runtime.submit(f"t{n}", {"said": str(n)}) for n in range(threads)]
            runs = [await runtime.wait(ticket, timeout=30) for ticket in tickets]
            limiter = limiter_of(handle_of(db))
            await eventually(lambda: not any(map(sum, uses_of(limiter))))
        return runs


@pytest.mark.parametrize("blocks", [False, True])
def test_a_tool_within_a_tool_shares_the_place_of_the_outer_one(blocks: bool) -> None:
    @tool
    def inner(text: str) -> str:
        """Inner."""
        return f"<{text}>"

    @tool
    def outer(text: str) -> str:
        """Outer."""
        return str(inner.invoke({"text": text}))

    async def awaits(state: State) -> State:
        return {"said": await outer.ainvoke({"text": state["said"]})}

    def blocking(state: State) -> State:
        return {"said": outer.invoke({"text": state["said"]})}

    limit = SharedLimit(of="tool", concurrency=1, wait=5)
    runs = asyncio.run(run_of(graph_of(blocking if blocks else awaits), settings(tools=limit), 4))
    assert [(run.state, run.attempts) for run in runs] == [("done", 1)] * 4


def test_calls_beside_each_other_do_not_share_a_place() -> None:
    under_way, most = 0, 0

    @tool
    async def work(text: str) -> str:
        """Work."""
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.02)
        under_way -= 1
        return text

    async def node(state: State) -> State:
        found = await asyncio.gather(*(work.ainvoke({"text": str(n)}) for n in range(6)))
        return {"said": "".join(found)}

    limit = SharedLimit(of="tool", concurrency=2)
    (run,) = asyncio.run(run_of(graph_of(node), settings(tools=limit)))
    assert run.state == "done"
    assert most == 2


def test_a_tool_that_calls_an_agent_in_a_subgraph_shares_its_place_with_the_tools_of_that() -> None:
    @tool
    async def inner(text: str) -> str:
        """Inner."""
        return f"<{text}>"

    async def within(state: State) -> State:
        return {"said": await inner.ainvoke({"text": state["said"]})}

    subgraph = graph_of(within)

    @tool
    async def outer(text: str) -> str:
        """Outer."""
        return str((await subgraph.ainvoke({"said": text}))["said"])

    async def node(state: State) -> State:
        return {"said": await outer.ainvoke({"text": state["said"]})}

    limit = SharedLimit(of="tool", concurrency=1, wait=5)
    runs = asyncio.run(run_of(graph_of(node), settings(tools=limit), 3))
    assert [(run.state, run.attempts) for run in runs] == [("done", 1)] * 3


def test_two_limits_that_wait_for_each_other_come_apart() -> None:
    both = asyncio.Event()
    holding = 0

    async def meet() -> None:
        nonlocal holding
        holding += 1
        if holding >= 2:
            both.set()
        await both.wait()

    @tool
    async def left(text: str) -> str:
        """Left."""
        if text == "0":
            await meet()
            await right.ainvoke({"text": "inner"})
        return text

    @tool
    async def right(text: str) -> str:
        """Right."""
        if text == "1":
            await meet()
            await left.ainvoke({"text": "inner"})
        return text

    async def node(state: State) -> State:
        called = left if state["said"] == "0" else right
        return {"said": await called.ainvoke({"text": state["said"]})}

    limits = {
        name: SharedLimit(of="tool", names=(name,), concurrency=1, wait=0.3) for name in ("left", "right")
    }
    runs = asyncio.run(run_of(graph_of(node), settings(**limits), 2))
    assert [run.state for run in runs] == ["done"] * 2


def model() -> GenericFakeChatModel:
    return GenericFakeChatModel(messages=iter([AIMessage("one two three four")] * 50))


@pytest.mark.parametrize("blocks", [False, True])
def test_a_stream_that_is_abandoned_gives_its_place_back(blocks: bool) -> None:
    one = model()

    async def awaits(state: State) -> State:
        for _ in range(3):
            stream = one.astream("?")
            async for _ in stream:
                break
            await stream.aclose()  # type: ignore[attr-defined]
        return {"said": (await one.ainvoke("?")).text}

    def blocking(state: State) -> State:
        for _ in range(3):
            stream = one.stream("?")
            next(iter(stream))
            stream.close()  # type: ignore[attr-defined]
        return {"said": one.invoke("?").text}

    limit = SharedLimit(concurrency=1, wait=5)
    (run,) = asyncio.run(run_of(graph_of(blocking if blocks else awaits), settings(calls=limit)))
    assert (run.state, run.attempts) == ("done", 1)


def test_a_stream_that_nobody_closes_gives_its_place_back_with_its_run() -> None:
    one, streams = model(), []

    async def node(state: State) -> State:
        stream = one.astream("?")
        streams.append(stream)
        await anext(stream)
        return {"said": "left"}

    limit = SharedLimit(concurrency=1, wait=5)
    runs = asyncio.run(run_of(graph_of(node), settings(calls=limit), 3))
    assert [(run.state, run.attempts) for run in runs] == [("done", 1)] * 3


def test_a_run_that_is_cancelled_gives_back_what_it_holds_and_waits_no_more() -> None:
    async def main() -> None:
        one, gate = model(), asyncio.Event()

        @tool
        async def work(text: str) -> str:
            """Work."""
            await gate.wait()
            return text

        async def node(state: State) -> State:
            return {"said": await work.ainvoke({"text": (await one.ainvoke("?")).text})}

        limit = SharedLimit(of="tool", concurrency=1)
        async with (
            perdure.connect("memory://") as db,
            Runtime(db, graph_of(node), settings=settings(tools=limit)) as runtime,
        ):
            limiter = limiter_of(handle_of(db))
            tickets = [await runtime.submit(f"t{n}", {"said": ""}) for n in range(3)]
            await eventually(lambda: uses_of(limiter) == [(1, 2)])
            for ticket in tickets[:2]:
                assert await runtime.stop(ticket.thread_id, ticket.id)
                assert (await runtime.wait(ticket, timeout=10)).state == "interrupted"
            gate.set()
            assert (await runtime.wait(tickets[2], timeout=10)).state == "done"
            await eventually(lambda: uses_of(limiter) == [(0, 0)])

    asyncio.run(main())
