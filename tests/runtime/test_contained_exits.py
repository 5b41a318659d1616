"""An exit that a node, a tool or a channel asks for ends the attempt of its own run, and no other."""

from __future__ import annotations

import asyncio
import operator
import subprocess
import sys
import textwrap
import warnings
from contextvars import copy_context
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.func import entrypoint, task
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.pregel import Pregel

from perdure.runtime import Channel
from perdure.runtime.contained_exits import ExitRequested, contain, create_contained_task
from tests.runtime.graphs import Heard, Storage, Talk, eventually, go, settings, working


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


def end_process(how: str) -> None:
    if how == "exit":
        sys.exit(2)
    raise KeyboardInterrupt


def sync_node(how: str) -> Any:
    def node(state: State) -> State:
        end_process(how)
        return {}

    return StateGraph(State).add_node("node", node).add_edge(START, "node").compile()


def async_node(how: str) -> Any:
    async def node(state: State) -> State:
        await asyncio.sleep(0)
        end_process(how)
        return {}

    async def other(state: State) -> State:
        await asyncio.sleep(0.1)
        return {"log": ["other"]}

    builder = StateGraph(State).add_node("node", node).add_node("other", other)
    return builder.add_edge(START, "node").add_edge(START, "other").compile()


def gathering(how: str) -> Any:
    async def end() -> None:
        end_process(how)

    async def node(state: State) -> State:
        await asyncio.gather(end(), asyncio.sleep(0.05))
        return {}

    return StateGraph(State).add_node("node", node).add_edge(START, "node").compile()


def tools(how: str) -> Any:
    @tool
    async def parse(text: str) -> str:
        """Parse."""
        end_process(how)
        return text

    def call(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage("", tool_calls=[{"name": "parse", "args": {"text": "x"}, "id": "1"}])]}

    builder = StateGraph(MessagesState).add_node("call", call).add_node("tools", ToolNode([parse]))
    return builder.add_edge(START, "call").add_edge("call", "tools").compile()


def functional(how: str) -> Any:
    @task
    async def end() -> None:
        end_process(how)

    @entrypoint()
    async def flow(state: Any) -> Any:
        await end()
        return state

    return flow


def subgraph(how: str) -> Any:
    return StateGraph(State).add_node("node", async_node(how)).add_edge(START, "node").compile()


@pytest.mark.parametrize("how", ["exit", "interrupt"])
@pytest.mark.parametrize("make", [sync_node, async_node, gathering, tools, functional, subgraph])
def test_an_exit_is_a_failed_attempt_of_its_own_run(make: Any, how: str, near: Storage) -> None:
    async def rest(state: State) -> State:
        await asyncio.sleep(0.5)
        return {"log": ["rested"]}

    resting = StateGraph(State).add_node("rest", rest).add_edge(START, "rest").compile()
    graphs: dict[str, Pregel[Any, Any, Any, Any]] = {"bad": make(how), "good": resting}

    async def main() -> None:
        async with working(near.database(), graphs, settings=settings(attempts=2)) as runtime:
            good = await runtime.submit("good", {"log": []}, graph="good")
            given: dict[str, Any] = {"messages": [], "log": []}
            bad = await runtime.wait(await runtime.submit("bad", given, graph="bad"), 30)
            assert (bad.state, bad.attempts, bad.note["kind"]) == ("failed", 2, "ExitRequested")
            assert "SystemExit: 2" in bad.note["error"] or "KeyboardInterrupt" in bad.note["error"]
            assert ((await runtime.wait(good, 30)).state, (await runtime.runs("good"))[0].attempts) == (
                "done",
                1,
            )

    go(main())


def test_an_exit_of_a_channel_is_a_failure_to_send(near: Storage, talk: Talk) -> None:
    sent: list[str] = []

    async def send(thread: str, reply: Any) -> str:
        sent.append(reply.id)
        if len(sent) == 1:
            sys.exit("no")
        return "1"

    async def main() -> None:
        channels = {"post": Channel(send)}
        async with working(near.database(), talk.graph, channels=channels) as runtime:
            await runtime.wait(await runtime.accept("ada", "hello", channel="post"), 30)
            await eventually(lambda: len(sent) == 2)
            assert sent[0] == sent[1]

    go(main())


def test_an_exit_while_replies_are_formatted_leaves_the_worker_at_work(near: Storage, talk: Talk) -> None:
    heard = Heard()

    def split(reply: Any) -> list[Any]:
        sys.exit("no")

    async def send(thread: str, reply: Any) -> str:
        return "1"

    async def main() -> None:
        channels = {"post": Channel(send, split=split)}
        async with working(near.database(), talk.graph, channels=channels, observers=[heard]) as runtime:
            await runtime.accept("ada", "hello", channel="post")
            await eventually(lambda: heard.count("worker.error") or heard.count("run.attempt_failed"))
            assert (await runtime.wait(await runtime.accept("bob", "hello"), 30)).state == "done"

    go(main())


def test_tasks_outside_of_a_worker_may_exit() -> None:
    async def main() -> None:
        async def end() -> None:
            sys.exit(3)

        async def contained() -> None:
            with pytest.raises(ExitRequested, match="SystemExit: 3"):
                await asyncio.gather(end())
            with pytest.raises(ExitRequested, match="SystemExit: 3"):
                await contain(end())

        await create_contained_task(contained(), copy_context())
        await asyncio.create_task(end())

    with pytest.raises(SystemExit, match="3"):
        asyncio.run(main())


def test_a_contained_task_that_is_cancelled_before_it_begins_leaves_no_warning() -> None:
    async def main() -> None:
        async def nested() -> None:
            inner = asyncio.create_task(asyncio.sleep(1))
            inner.cancel()
            await asyncio.wait([inner])
            assert inner.cancelled()

        await create_contained_task(nested(), copy_context())

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asyncio.run(main())


@pytest.mark.parametrize("handler", ["own", "python's"])
def test_a_signal_ends_the_process_wherever_it_arrives(handler: str) -> None:
    program = f"""
        import asyncio, os, signal, sys, threading, time
        from contextvars import copy_context
        from perdure.runtime.contained_exits import create_contained_task

        def stop(number, frame):
            sys.exit(7)

        signal.signal(signal.SIGINT, stop if {handler == "own"} else signal.default_int_handler)

        async def nested():
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
            until = time.monotonic() + 10
            while time.monotonic() < until:
                pass

        async def main():
            async def outer():
                await asyncio.gather(nested())
            try:
                await create_contained_task(outer(), copy_context())
            except RuntimeError:
                os._exit(9)

        loop = asyncio.new_event_loop()
        try:
            loop.run_until_complete(main())
        except KeyboardInterrupt:
            os._exit(8)
    """
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], timeout=60, check=False)
    assert ended.returncode == (7 if handler == "own" else 8)
