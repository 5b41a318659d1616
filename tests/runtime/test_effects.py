"""Side effects in nodes: noted once, repeated under the same key, refused to who lost the run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.pregel import Pregel

import perdure
from perdure.database import Database
from perdure.engine import journal
from perdure.errors import Fenced, NotAllowed, Unserialisable
from perdure.runtime import Agent, Runtime, Settings, distilled, effect, effect_key, effects, effects_sync
from perdure.storage.memory import MemoryDriver
from perdure.testing.conformance.backend import AT, Backend
from tests.backends import BACKENDS, fresh

QUICK = Settings(backoff=0.05, max_backoff=0.1, poll=0.2)


def graph(*nodes: Any) -> Pregel[Any, Any, Any, Any]:
    builder = StateGraph(MessagesState)
    last = START
    for node in nodes:
        builder.add_node(node)
        builder.add_edge(last, node.__name__)
        last = node.__name__
    return builder.compile()


@asynccontextmanager
async def working(database: Database, agent: Agent | Pregel[Any, Any, Any, Any]) -> AsyncIterator[Runtime]:
    async with asyncio.timeout(60), Runtime(database, agent, settings=QUICK, observers=()) as app:
        yield app


@pytest.mark.parametrize("on", list(BACKENDS))
def test_an_effect_happens_once_however_often_its_step_is_tried(on: str) -> None:
    calls: list[int] = []
    keys: list[str] = []

    async def charge(amount: int) -> dict[str, int]:
        calls.append(amount)
        return {"receipt": len(calls)}

    async def pay(state: MessagesState) -> dict[str, Any]:
        keys.append(effect_key("charge"))
        first = await effect(charge, 5)
        second = await effects(charge, number=1)(7)
        if len(keys) < 3:
            raise RuntimeError("the step fails after its effects")
        return {"messages": [AIMessage(f"{first['receipt']} {second['receipt']}")]}

    async def main() -> list[Any]:
        with fresh(on) as driver:
            database = Backend(driver).database()
            async with (
                asyncio.timeout(60),
                Runtime(database, graph(pay), settings=QUICK, observers=()) as app,
            ):
                run = await app.wait(await app.accept("t", "pay"))
                assert run.state == "done", run.note
                again = await app.wait(await app.accept("t", "pay"))
                assert again.state == "done"
            found = await database.checkpointer().aget_tuple({"configurable": {"thread_id": "t"}})
            assert found is not None
            return [m.text for m in found.checkpoint["channel_values"]["messages"]]

    texts = asyncio.run(main())
    assert calls == [5, 7, 5, 7], "another message is another effect"
    assert texts == ["pay", "1 2", "pay", "3 4"]
    assert len(set(keys[:3])) == 1, "the key of a step changed between its attempts"
    assert keys[3] != keys[0]


def test_effects_of_plain_functions_and_of_equal_steps_are_told_apart() -> None:
    calls: list[str] = []

    def work(what: str) -> str:
        calls.append(what)
        return what.upper()

    def one(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(effects_sync(work)("one"))]}

    def two(state: MessagesState) -> dict[str, Any]:
        effects_sync(work)("two")
        return {"messages": [AIMessage(effects_sync(work)("not called again in this step"))]}

    async def main() -> list[str]:
        async with perdure.connect("memory://") as db:
            async with working(db, graph(one, two)) as app:
                assert (await app.wait(await app.accept("t", "go"))).state == "done"
            found = await db.checkpointer().aget_tuple({"configurable": {"thread_id": "t"}})
            assert found is not None
            return [m.text for m in found.checkpoint["channel_values"]["messages"]]

    assert asyncio.run(main()) == ["go", "ONE", "TWO"]
    assert calls == ["one", "two"]


def test_who_lost_the_run_notes_nothing() -> None:
    backend = Backend(MemoryDriver())
    database = backend.database()
    epoch = backend.open_run("run")
    assert database.run(journal.note(AT, "run", "task:charge", 0, b"1", epoch)) == b"1"
    assert database.run(journal.note(AT, "run", "task:charge", 0, b"2", epoch)) == b"1", "the first counts"
    later = backend.open_run("run")
    with pytest.raises(Fenced, match="not held under epoch"):
        database.run(journal.note(AT, "run", "task:other", 0, b"1", epoch))
    assert database.run(journal.recall(AT, "run", "task:other", 0)) is None
    assert database.run(journal.note(AT, "run", "task:other", 0, b"3", later)) == b"3"


def test_outside_of_a_runtime_an_effect_is_just_called() -> None:
    async def now() -> int:
        return 7

    async def ask(state: MessagesState) -> dict[str, Any]:
        assert effect_key("now").endswith(":now:0")
        return {"messages": [AIMessage(str(await effect(now)))]}

    out = asyncio.run(graph(ask).ainvoke({"messages": [("user", "hi")]}))
    assert out["messages"][-1].text == "7"
    with pytest.raises(NotAllowed, match="inside a node"):
        effect_key("now")


def test_a_result_that_cannot_be_noted_is_an_error_of_the_step() -> None:
    async def odd() -> object:
        return object()

    async def ask(state: MessagesState) -> dict[str, Any]:
        with pytest.raises(Unserialisable, match="side effect's result"):
            await effect(odd)
        return {"messages": [AIMessage("refused")]}

    async def main() -> str:
        async with perdure.connect("memory://") as db, working(db, graph(ask)) as app:
            return (await app.wait(await app.accept("t", "go"))).state

    assert asyncio.run(main()) == "done"


def test_a_subagent_leaves_only_its_result() -> None:
    async def think(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(f"thought {len(state['messages'])}")]}

    async def conclude(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage("concluded")]}

    inner = graph(think, conclude)

    def result(out: Any) -> dict[str, Any]:
        return {"messages": out["messages"][-1:]}

    builder = StateGraph(MessagesState)
    builder.add_node("work", distilled(inner, lambda state: {"messages": state["messages"][-1:]}, result))
    builder.add_edge(START, "work")

    async def main() -> tuple[list[str], set[str]]:
        async with perdure.connect("memory://") as db:
            async with working(db, builder.compile()) as app:
                assert (await app.wait(await app.accept("t", "go"))).state == "done"
            saver = db.checkpointer()
            at = {"configurable": {"thread_id": "t"}}
            found = await saver.aget_tuple(at)
            assert found is not None
            spaces = {c.config["configurable"]["checkpoint_ns"] async for c in saver.alist(at)}
            return [m.text for m in found.checkpoint["channel_values"]["messages"]], spaces

    texts, spaces = asyncio.run(main())
    assert texts == ["go", "concluded"]
    assert spaces == {""}, "the subagent left checkpoints of its own"


def test_a_subgraph_without_checkpoints_is_refused_where_langgraph_would_fail() -> None:
    def think(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage("thought")]}

    inner = StateGraph(MessagesState).add_node(think).add_edge(START, "think").compile(checkpointer=False)
    outer = StateGraph(MessagesState).add_node("inner", inner).add_edge(START, "inner").compile()
    with pytest.raises(ValueError, match=r"\['inner'\] are compiled with checkpointer=False.*distilled"):
        Agent(outer)

    async def main() -> str:
        async with perdure.connect("memory://") as db, working(db, Agent(outer, durability="async")) as app:
            return (await app.wait(await app.accept("t", "go"))).state

    assert asyncio.run(main()) == "done"
