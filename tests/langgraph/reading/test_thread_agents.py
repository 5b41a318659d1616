"""To-dos and subagents of threads, read from what real agents stored."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, TypedDict

import pytest
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt

import perdure
from examples.researcher.agent import FIELDS, agent
from perdure.database.base import handle_of
from perdure.database.blocking import SyncDatabase
from perdure.errors import NotFound
from perdure.langgraph.reading.thread_agents import (
    TODOS,
    Subagent,
    Todo,
    load_subagents,
    load_todos,
)
from perdure.model.records import Partition
from perdure.runtime import Runtime

AT: Any = {"configurable": {"thread_id": "t"}}


@pytest.fixture
def database() -> Iterator[SyncDatabase]:
    with perdure.connect_sync("memory://") as opened:
        yield opened


def subagents(database: SyncDatabase, limit: int = 10) -> list[Subagent]:
    handle = handle_of(database)
    found: list[Subagent] = []
    after: str | None = ""
    while after is not None:
        page = handle.run(load_subagents(Partition("", "t"), handle.digest, after=after, limit=limit))
        assert len(page.subagents) <= limit
        found += page.subagents
        after = page.cursor
    return found


def todos(database: SyncDatabase, **more: Any) -> list[Todo]:
    handle = handle_of(database)
    return handle.run(load_todos(Partition("", "t"), handle.digest, **more))


@pytest.mark.parametrize("limit", [1, 3, 4, 10])
def test_a_deep_agent_is_shown_with_its_plan_and_its_subagents(database: SyncDatabase, limit: int) -> None:
    assert (todos(database), subagents(database)) == ([], [])
    app = agent().with_config(recursion_limit=1000)
    app.checkpointer, app.store = database.checkpointer(), database.store()
    app.invoke({"messages": [("user", "tea")]}, AT)
    asked = {each.name: each for each in subagents(database, limit)}
    assert sorted(asked) == sorted(["editor", *FIELDS])
    assert {name: each.state for name, each in asked.items()} == {
        "editor": "asked",
        **dict.fromkeys(FIELDS, "done"),
    }
    assert asked["history"].task == "history of tea"
    assert asked["history"].nodes == ()
    assert asked["editor"].nodes
    for each in asked.values():
        assert each.began_at is not None
        assert each.changed_at is not None
        assert each.began_at <= each.changed_at
        assert each.step is not None
        assert each.step > 0
    assert [each.status for each in todos(database)] == ["completed", "in_progress"]
    app.invoke(Command(resume={"decisions": [{"type": "approve"}]}), AT)
    assert {each.state for each in subagents(database)} == {"done"}
    assert [each.status for each in todos(database)] == ["completed", "completed"]
    with pytest.raises(NotFound, match="nope"):
        todos(database, checkpoint_id="nope")
    with pytest.raises(NotFound, match="tools:1"):
        todos(database, namespace="tools:1")


class Planned(TypedDict):
    todos: Any


def test_todos_of_another_form_are_left_out(database: SyncDatabase) -> None:
    plans: dict[str, Any] = {
        "a list": [{"content": "x" * 5000, "status": "pending"}, "text", {"status": "done"}, {"content": 7}],
        "text": "do it",
        "many": [{"content": str(number), "status": "pending"} for number in range(TODOS + 1)],
    }
    found: dict[str, list[Todo]] = {}
    for name, plan in plans.items():
        graph = StateGraph(Planned).add_node("n", lambda _: {}).add_edge(START, "n")
        graph.compile(database.checkpointer()).invoke({"todos": plan}, AT)
        found[name] = todos(database)
    assert found["a list"] == [Todo("x" * 1000, "pending"), Todo("7", "")]
    assert found["text"] == []
    assert len(found["many"]) == TODOS


def test_what_is_left_undone_is_told_from_what_runs() -> None:
    """A subagent runs as long as a worker has its run; one that was left is over when its caller is."""
    begun, goes_on = asyncio.Event(), asyncio.Event()
    is_broken = True

    async def waits(state: MessagesState) -> Any:
        begun.set()
        await goes_on.wait()
        if is_broken:
            raise ValueError("broken")
        return {"messages": [("ai", "waited")]}

    def asks(state: MessagesState) -> Any:
        return {"messages": [("ai", interrupt("well?"))]}

    def leaves(state: MessagesState) -> Any:
        return Command(graph=Command.PARENT, goto="asking")

    def sub(node: Any) -> Any:
        return StateGraph(MessagesState).add_node("node", node).add_edge(START, "node").compile()

    builder = StateGraph(MessagesState)
    builder.add_node("leaving", sub(leaves)).add_node("asking", sub(asks)).add_node("waiting", sub(waits))
    builder.add_edge(START, "waiting").add_edge("waiting", "leaving")

    async def main() -> None:
        nonlocal is_broken
        async with perdure.connect("memory://") as database:
            handle = handle_of(database)

            async def states() -> dict[str, str]:
                page = await handle.arun(load_subagents(Partition("", "t"), handle.digest))
                return {each.name: each.state for each in page.subagents}

            async with Runtime(database, builder.compile()) as runtime:
                ticket = await runtime.accept("t", "hello")
                await asyncio.wait_for(begun.wait(), 30)
                assert await states() == {"waiting": "running"}
                is_broken = False
                goes_on.set()
                await runtime.wait(ticket)
                assert await states() == {"asking": "asked", "leaving": "done", "waiting": "done"}
            graph: Any = builder.compile(checkpointer=database.checkpointer())
            is_broken = True
            with pytest.raises(ValueError, match="broken"):
                await graph.ainvoke({"messages": [("user", "hello")]}, {"configurable": {"thread_id": "t"}})
            assert "failed" in {
                each.state
                for each in (await handle.arun(load_subagents(Partition("", "t"), handle.digest))).subagents
            }

    asyncio.run(main())
