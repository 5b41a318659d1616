"""Nodes that ask for the messages that steer their run: each is kept with the result of one node, once."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, cast

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.pregel import Pregel
from langgraph.types import RetryPolicy, interrupt

from perdure.errors import NotAllowed
from perdure.model.ops import Commit, Put
from perdure.model.program import Effect
from perdure.model.records import CHECKPOINT, RUN, WRITE
from perdure.runtime import Agent, Options, take_messages, take_messages_sync
from perdure.runtime.options import Durability
from tests.runtime.graphs import (
    Storage,
    eventually,
    eventually_stored,
    go,
    settings,
    spoken,
    values,
    vanish,
    working,
)


class Asked(MessagesState):
    log: Annotated[list[str], operator.add]


@dataclass(eq=False)
class Asking:
    """An agent of two nodes, the first of which takes what came as often as ``times`` says, once its gate is
    open."""

    times: int = 1
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    failing: int = 0
    asks: bool = False
    tries: int = 0
    under_way: int = 0
    came: list[list[str]] = field(default_factory=list[list[str]])

    async def _first(self, state: Asked) -> dict[str, Any]:
        self.under_way += 1
        await self.gate.wait()
        self.tries += 1
        messages: list[Any] = []
        for _ in range(self.times):
            came = (await take_messages()).get("messages", [])
            self.came.append([message["content"] for message in came])
            messages += came
        if self.tries <= self.failing:
            raise ConnectionError("boom")
        if self.asks:
            interrupt("really?")
        return {"messages": messages, "log": ["first"]}

    async def _second(self, state: Asked) -> dict[str, Any]:
        return {"messages": [AIMessage("done")], "log": ["second"]}

    def graph(self, retry: RetryPolicy | None = None) -> Pregel[Any, Any, Any, Any]:
        builder = StateGraph(Asked)
        builder.add_node("first", self._first, retry_policy=retry)
        builder.add_node("second", self._second)
        builder.add_edge(START, "first")
        builder.add_edge("first", "second")
        return builder.compile()

    def agent(self, retry: RetryPolicy | None = None) -> Agent:
        return Agent(self.graph(retry), steer_before=())


def test_a_node_takes_what_came(storage: Storage) -> None:
    async def main() -> None:
        asking = Asking(times=2)
        database = storage.database()
        async with working(database, asking.agent()) as runtime:
            first = await runtime.accept("ada", "one")
            await eventually(lambda: asking.under_way)
            tickets = [await runtime.accept("ada", text, strategy="steer") for text in ("two", "three")]
            asking.gate.set()
            runs = [await runtime.wait(ticket, 30) for ticket in (first, *tickets)]
            assert [(run.first, run.last, run.state) for run in runs] == [(1, 3, "done")] * 3
        assert asking.came == [["two", "three"], []], "the second call gets what came since the first"
        assert await spoken(database, asking.graph(), "ada") == ["one", "two", "three", "done"]
        assert database.fsck("ada") == []

    go(main())


def test_a_repeated_node_gets_them_again(near: Storage) -> None:
    async def main() -> None:
        asking = Asking(failing=2)
        database = near.database()
        retry = RetryPolicy(max_attempts=2, initial_interval=0.001, jitter=False)
        async with working(database, asking.agent(retry)) as runtime:
            await runtime.accept("ada", "one")
            await eventually(lambda: asking.under_way)
            second = await runtime.accept("ada", "two", strategy="steer")
            asking.gate.set()
            run = await runtime.wait(second, 30)
            assert (run.first, run.last, run.state, run.attempts) == (1, 2, "done", 2)
        assert asking.came == [["two"]] * 3, "at the second try, and at the next attempt"
        assert await spoken(database, asking.graph(), "ada") == ["one", "two", "done"]

    go(main())


def test_what_a_node_took_before_its_interrupt_still_waits(near: Storage) -> None:
    async def main() -> None:
        asking = Asking(asks=True)
        database = near.database()
        async with working(database, asking.agent()) as runtime:
            first = await runtime.accept("ada", "one")
            await eventually(lambda: asking.under_way)
            second = await runtime.accept("ada", "two", strategy="steer")
            asking.gate.set()
            assert (await runtime.wait(first, 30)).last == 1
            assert (await runtime.wait(second, 30)).first == 2
        texts = await spoken(database, asking.graph(), "ada")
        assert texts.count("two") == 1

    go(main())


def test_what_a_node_took_before_an_error_that_is_handled_still_waits(near: Storage) -> None:
    async def main() -> None:
        asking = Asking(failing=1)

        async def handle(state: Asked) -> dict[str, Any]:
            return {"log": ["handled"]}

        builder = StateGraph(Asked)
        builder.add_node("first", asking._first, error_handler=handle)
        builder.add_edge(START, "first")
        graph = builder.compile()
        database = near.database()
        async with working(database, Agent(graph, steer_before=())) as runtime:
            first = await runtime.accept("ada", "one", options=Options(attempts=1))
            await eventually(lambda: asking.under_way)
            second = await runtime.accept("ada", "two", strategy="steer")
            asking.gate.set()
            run = await runtime.wait(first, 30)
            assert (run.state, run.last) == ("done", 1)
            assert (await runtime.wait(second, 30)).first == 2
        assert asking.came[0] == ["two"]
        assert await spoken(database, graph, "ada") == ["one", "two"]
        assert (await values(database, graph, "ada"))["log"] == ["handled", "first"]

    go(main())


def test_what_a_node_holds_may_be_taken_back(near: Storage) -> None:
    async def main() -> None:
        asking, holding = Asking(), asyncio.Event()
        took: list[int] = []

        async def first(state: Asked) -> dict[str, Any]:
            came = await take_messages()
            took.append(len(came.get("messages", [])))
            await holding.wait()
            return {"messages": came.get("messages", []), "log": ["first"]}

        builder = StateGraph(Asked)
        builder.add_node("wait", asking._first)
        builder.add_node("first", first)
        builder.add_edge(START, "wait")
        builder.add_edge("wait", "first")
        asking.times = 0
        database = near.database()
        async with working(database, Agent(builder.compile(), steer_before=())) as runtime:
            ticket = await runtime.accept("ada", "one", options=Options(attempts=1))
            await eventually(lambda: asking.under_way)
            second = await runtime.accept("ada", "two", strategy="steer")
            asking.gate.set()
            await eventually(lambda: took)
            assert await runtime.cancel("ada", second.id)
            holding.set()
            run = await runtime.wait(ticket, 30)
            assert (run.last, run.state, run.attempts) == (1, "done", 1), "the repetition does not count"
            assert (await runtime.wait(second, 30)).state == "interrupted"
        assert took == [1, 0]
        assert await spoken(database, builder.compile(), "ada") == ["one"]
        assert database.fsck("ada") == []

    go(main())


def test_of_parallel_nodes_one_gets_them(near: Storage) -> None:
    async def main() -> None:
        gate, both = asyncio.Event(), asyncio.Barrier(2)
        under_way: list[str] = []

        async def node(state: Asked) -> dict[str, Any]:
            under_way.append("node")
            await gate.wait()
            came = (await take_messages()).get("messages", [])
            await both.wait()
            return {"messages": came, "log": [str(len(came))]}

        builder = StateGraph(Asked)
        for name in ("left", "right"):
            builder.add_node(name, node)
            builder.add_edge(START, name)
        database = near.database()
        async with working(database, Agent(builder.compile(), steer_before=())) as runtime:
            await runtime.accept("ada", "one")
            await eventually(lambda: len(under_way) == 2)
            second = await runtime.accept("ada", "two", strategy="steer")
            gate.set()
            assert (await runtime.wait(second, 30)).first == 1
        state = await values(database, builder.compile(), "ada")
        assert sorted(state["log"]) == ["0", "1"]
        assert [message.text for message in state["messages"]] == ["one", "two"]

    go(main())


def test_no_commit_of_a_step_is_shared_while_a_node_holds_messages(memory: Storage) -> None:
    """Each task's writes are stored as it ends, and the checkpoint alone: what is bound to the run in the
    meantime changes no commit that was planned before."""

    async def main() -> None:
        gate, took, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()
        under_way: list[str] = []

        async def holder(state: Asked) -> dict[str, Any]:
            under_way.append("holder")
            await gate.wait()
            came = (await take_messages()).get("messages", [])
            took.set()
            await ended.wait()
            return {"messages": came, "log": ["holder"]}

        async def other(state: Asked) -> dict[str, Any]:
            under_way.append("other")
            await took.wait()
            ended.set()
            return {"log": ["other"]}

        builder = StateGraph(Asked)
        for name, node in {"holder": holder, "other": other}.items():
            builder.add_node(name, node)
            builder.add_edge(START, name)
        database, line = memory.open()
        commits: list[tuple[int, int, int]] = []

        async def count(effect: Effect[Any]) -> None:
            puts = [op.kind for op in effect.ops if isinstance(op, Put)] if isinstance(effect, Commit) else []
            if WRITE in puts or CHECKPOINT in puts:
                commits.append((puts.count(CHECKPOINT), min(1, puts.count(WRITE)), puts.count(RUN)))

        async with working(database, Agent(builder.compile(), steer_before=())) as runtime:
            await runtime.accept("ada", "one")
            await eventually(lambda: len(under_way) == 2)
            second = await runtime.accept("ada", "two", strategy="steer")
            line.before = count
            gate.set()
            assert (await runtime.wait(second, 30)).first == 1
        assert commits == [(0, 1, 0), (0, 1, 1), (1, 0, 0)]
        state = await values(database, builder.compile(), "ada")
        assert sorted(state["log"]) == ["holder", "other"]
        assert [message.text for message in state["messages"]] == ["one", "two"]
        assert database.fsck("ada") == []

    go(main())


@pytest.mark.parametrize("durability", ["async", "exit"])
def test_a_node_may_not_ask_where_steps_do_not_wait(memory: Storage, durability: Durability) -> None:
    async def main() -> None:
        asking = Asking()
        asking.gate.set()
        async with working(memory.database(), asking.agent()) as runtime:
            options = Options(durability=durability, attempts=1)
            run = await runtime.wait(await runtime.accept("ada", "one", options=options), 30)
            assert run.state == "failed"
            assert "durability='sync'" in run.note["error"]

    go(main())


def test_a_subgraph_may_not_ask(memory: Storage) -> None:
    async def main() -> None:
        asking = Asking()
        asking.gate.set()
        builder = StateGraph(Asked)
        builder.add_node("inner", asking.graph())
        builder.add_edge(START, "inner")
        async with working(memory.database(), builder.compile()) as runtime:
            run = await runtime.wait(await runtime.accept("ada", "one", options=Options(attempts=1)), 30)
            assert "pass on what came" in run.note["error"]

    go(main())


def test_outside_of_a_run_nothing_comes() -> None:
    seen: list[Mapping[str, Any]] = []

    def node(state: MessagesState) -> dict[str, Any]:
        seen.append(take_messages_sync())
        return {}

    builder = StateGraph(MessagesState)
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    builder.compile().invoke({"messages": [HumanMessage("one")]})
    assert seen == [{}]
    with pytest.raises(NotAllowed, match="inside a node"):
        take_messages_sync()


def test_a_plain_function_takes_what_came(near: Storage) -> None:
    async def main() -> None:
        gate = asyncio.Event()
        waits: list[int] = []

        async def wait(state: MessagesState) -> dict[str, Any]:
            waits.append(1)
            await gate.wait()
            return {}

        def take(state: MessagesState) -> dict[str, Any]:
            return cast(dict[str, Any], take_messages_sync())

        builder = StateGraph(MessagesState)
        builder.add_node("wait", wait)
        builder.add_node("take", take)
        builder.add_edge(START, "wait")
        builder.add_edge("wait", "take")
        database = near.database()
        async with working(database, Agent(builder.compile(), steer_before=())) as runtime:
            await runtime.accept("ada", "one")
            await eventually(lambda: waits)
            second = await runtime.accept("ada", "two", strategy="steer")
            gate.set()
            assert (await runtime.wait(second, 30)).first == 1
        assert await spoken(database, builder.compile(), "ada") == ["one", "two"]

    go(main())


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("asks", [False, True])
def test_a_kill_at_any_commit_after_it_was_accepted(memory: Storage, when: str, asks: bool) -> None:
    async def one(number: int) -> int:
        storage_thread = f"ada {number}"
        asking = Asking()
        agent = asking.agent() if asks else Agent(asking.graph())
        database, line = memory.open()
        settled = settings(lease=0.05)
        async with working(database, agent, settings=settled) as runtime:
            ticket = await runtime.accept(storage_thread, "one")
            await eventually(lambda: asking.under_way)
            before = line.commits
            await runtime.accept(storage_thread, "two", strategy="steer")
            line.die_at(number, when)
            asking.gate.set()
            await eventually_stored(lambda: _is_over(memory, storage_thread, ticket, line))
            reached = line.commits - before
            if line.is_dead:
                vanish(runtime, line)
        async with working(memory.database(), agent, settings=settled) as runtime:
            await runtime.wait(ticket, 30)
            await eventually_stored(lambda: _all_done(runtime, storage_thread))
        heard = [
            text for text in await spoken(memory.database(), asking.graph(), storage_thread) if text != "done"
        ]
        assert heard == ["one", "two"], f"killed {when} commit {number}"
        assert memory.database().fsck(storage_thread) == []
        return reached if not line.is_dead else number + 1

    async def _is_over(storage: Storage, thread: str, ticket: Any, line: Any) -> bool:
        if line.is_dead:
            return True
        async with working(storage.database(), Asking().graph(), works=False) as front:
            return await _all_done(front, thread)

    async def _all_done(runtime: Any, thread: str) -> bool:
        return all(standing.is_over for standing in await runtime.messages(thread))

    async def main() -> None:
        number = 1
        while number <= await one(number):
            number += 1
        assert number > 3

    go(main())
