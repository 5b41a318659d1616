"""A thread belongs to the graph that ran on it first, unless graphs share threads."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph

import perdure
from perdure.errors import OtherGraph
from perdure.runtime import Runtime, Settings
from tests.server.hosting import run, serving


def named(name: str) -> Any:
    def node(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(f"{name} sees {len(state['messages'])}")]}

    return StateGraph(MessagesState).add_node(name, node).add_edge(START, name).compile()


def both() -> dict[str, Any]:
    return {"first": named("first"), "second": named("second")}


async def texts(db: perdure.Database) -> list[str]:
    found = await db.checkpointer().aget_tuple({"configurable": {"thread_id": "t"}})
    assert found is not None
    return [message.text for message in found.checkpoint["channel_values"]["messages"]]


def settings(**given: Any) -> Settings:
    return Settings(backoff=0.02, max_backoff=0.05, poll=0.2, **given)


def test_another_graph_is_refused_and_the_thread_goes_on_with_its_own() -> None:
    async def main() -> None:
        async with perdure.connect("memory://") as db:
            async with asyncio.timeout(60), Runtime(db, both(), settings=settings(), observers=()) as app:
                assert (await app.wait(await app.accept("t", "a", graph="first"))).state == "done"
                refused = await app.wait(await app.accept("t", "b", graph="second"))
                assert (refused.state, refused.attempts) == ("failed", 1)
                assert refused.note["kind"] == "OtherGraph"
                assert "belongs to the graph 'first'" in refused.note["error"]
                with pytest.raises(OtherGraph, match="shared_threads=True"):
                    await app.graph("second").aget_state({"configurable": {"thread_id": "t"}})
                assert (await app.wait(await app.accept("t", "c", graph="first"))).state == "done"
            assert await texts(db) == ["a", "first sees 1", "c", "first sees 3"]

    asyncio.run(main())


def test_an_edit_of_the_state_leaves_the_thread_with_its_graph() -> None:
    async def main() -> None:
        async with (
            asyncio.timeout(60),
            perdure.connect("memory://") as db,
            Runtime(db, both(), settings=settings(), observers=()) as app,
        ):
            at: Any = {"configurable": {"thread_id": "t"}}
            await app.graph("first").aupdate_state(at, {"messages": [("user", "edited")]})
            refused = await app.wait(await app.accept("t", "b", graph="second"))
            assert refused.note["kind"] == "OtherGraph"

    asyncio.run(main())


def test_graphs_share_a_thread_when_that_is_asked_for() -> None:
    async def main() -> None:
        async with perdure.connect("memory://") as db:
            shared = settings(shared_threads=True)
            async with asyncio.timeout(60), Runtime(db, both(), settings=shared, observers=()) as app:
                for graph in ("first", "second", "first"):
                    assert (await app.wait(await app.accept("t", "go", graph=graph))).state == "done"
            assert await texts(db) == ["go", "first sees 1", "go", "second sees 3", "go", "first sees 5"]

    asyncio.run(main())


def test_a_thread_that_an_application_made_without_a_runtime_can_be_adopted_by_any_graph() -> None:
    async def main() -> None:
        async with perdure.connect("memory://") as db:
            plain = named("plain").copy({"checkpointer": db.checkpointer()})
            await plain.ainvoke({"messages": [("user", "a")]}, {"configurable": {"thread_id": "t"}})
            async with asyncio.timeout(60), Runtime(db, both(), settings=settings(), observers=()) as app:
                assert (await app.wait(await app.accept("t", "b", graph="second"))).state == "done"
                assert (await app.wait(await app.accept("t", "c", graph="first"))).state == "failed"
            assert await texts(db) == ["a", "plain sees 1", "b", "second sees 3"]

    asyncio.run(main())


@run
async def test_a_server_refuses_another_graph_s_run_before_it_is_stored() -> None:
    said: Any = {"messages": [{"role": "user", "content": "hi"}]}
    async with serving("memory://", of=both(), shared_threads=False) as served:
        client = await served.client()
        thread = (await client.threads.create())["thread_id"]
        await client.runs.wait(thread, "first", input=said)
        http = await served.http()
        body = {"assistant_id": "second", "input": said}
        answer = await http.post(f"/threads/{thread}/runs/wait", json=body)
        assert answer.status_code == 409
        assert "belongs to the graph 'first'" in answer.json()["detail"]
        assert len(await client.runs.list(thread)) == 1
        row: Any = await client.threads.get(thread)
        assert row["metadata"]["graph_id"] == "first"
        made = await client.assistants.create("first", config={"configurable": {"tone": "dry"}})
        values: Any = await client.runs.wait(thread, made["assistant_id"], input=said)
        assert values["messages"][-1]["content"] == "first sees 3"
