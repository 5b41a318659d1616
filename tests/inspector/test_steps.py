"""The inspector's views of steps, tokens, what was said, and the graph."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt

import perdure
from perdure.database.base import handle_of
from perdure.errors import BadSetting, NotFound
from perdure.inspector import api
from perdure.inspector.access import LocalAccess, LocalReplays
from perdure.model.model_calls import Price, Prices
from perdure.runtime import Runtime, sleep, wait_for
from perdure.runtime.agents.agent import Agent
from perdure.runtime.threads.rows import ThreadRow
from tests.inspector import staging
from tests.inspector.staging import HOSTILE, HOSTILE_ID

PRICES = Prices({"m": Price(1.0, 2.0)}, "EUR")
VIEWS = ("steps", "usage", "conversation", "picture")


class OwnersAccess(LocalAccess):
    """Access of users who may read their own threads."""

    async def find_thread(self, thread_id: str) -> ThreadRow:
        row = await super().find_thread(thread_id)
        if row.metadata.get("owner") != self.who:
            raise NotFound(f"there is no thread {thread_id!r}")
        return row


def counting() -> StateGraph[Any, Any, Any, Any]:
    def answer(state: MessagesState) -> Any:
        usage: Any = {"input_tokens": 1_000_000, "output_tokens": 500_000, "total_tokens": 1_500_000}
        return {"messages": [AIMessage("yes", usage_metadata=usage, response_metadata={"model_name": "m"})]}

    return StateGraph(MessagesState).add_node(answer).add_edge(START, "answer")


@asynccontextmanager
async def opened() -> AsyncIterator[tuple[perdure.Database, LocalAccess]]:
    async with perdure.connect("memory://") as database:
        graph = counting().compile(checkpointer=database.checkpointer())
        replays = LocalReplays(database, {"agent": Agent(graph)})
        yield database, LocalAccess(handle_of(database), "", replays=replays, prices=PRICES)


def test_a_thread_that_sleeps_asks_nobody() -> None:
    async def naps(state: MessagesState) -> dict[str, Any]:
        await sleep(3600)
        return {}

    async def hopes(state: MessagesState) -> dict[str, Any]:
        await wait_for("post", within=60, default=None)
        return {}

    async def asks(state: MessagesState) -> dict[str, Any]:
        return {"messages": [interrupt("well?")]}

    def of(*nodes: Any) -> Any:
        builder = StateGraph(MessagesState)
        for node in nodes:
            builder.add_node(node.__name__, node).add_edge(START, node.__name__)
        return builder.compile()

    async def main() -> None:
        async with (
            perdure.connect("memory://") as database,
            Runtime(database, {"naps": of(naps), "all": of(naps, hopes, asks)}) as runtime,
        ):
            for graph in ("naps", "all"):
                await runtime.wait(await runtime.submit(graph, {"messages": []}, graph=graph))
            access = LocalAccess(handle_of(database), "")
            shown = await api.view(access, "thread", {"id": "naps"})
            (wait,) = shown["waits"]
            assert (shown["asks"], wait["kind"], wait["text"]) == (False, "sleep", "It sleeps.")
            assert wait["until"] - wait["since"] == 3_600_000_000
            shown = await api.view(access, "thread", {"id": "all"})
            assert shown["asks"]
            assert {(each["kind"], each["signal"]) for each in shown["waits"]} == {
                ("sleep", None),
                ("signal", "post"),
            }
            listed = await api.view(access, "queue", {})
            assert [each["thread_id"] for each in listed["interrupted"]] == ["all"]
            assert sorted(each["thread_id"] for each in listed["waiting"]) == ["all", "naps"]

    asyncio.run(main())


def test_every_figure_of_a_thread_is_in_a_view() -> None:
    async def main() -> None:
        async with opened() as (database, access):
            app = counting().compile(checkpointer=database.checkpointer())
            for text in ("one", "two"):
                await app.ainvoke({"messages": [HumanMessage(text)]}, staging.at("t"))
            steps = await api.view(access, "steps", {"id": "t"})
            assert (steps["way"], steps["cursor"]) == ([["answer"], ["answer"]], None)
            assert [each["source"] for each in steps["steps"]] == ["loop", "loop", "input"] * 2
            usage = await api.view(access, "usage", {"id": "t"})
            assert (usage["usage"]["calls"], usage["usage"]["cost"], usage["cursor"]) == (2, 4.0, None)
            said = await api.view(access, "conversation", {"id": "t"})
            assert [each["text"] for each in said["messages"]] == ["one", "yes", "two", "yes"]
            assert all(each["at"] for each in said["messages"])
            assert (await api.view(access, "thread", {"id": "t"}))["title"] == "one"
            picture = await api.view(access, "picture", {"id": "t"})
            assert [node["id"] for node in picture["graph"]["nodes"]][:2] == ["__start__", "answer"]

    asyncio.run(main())


def test_a_page_of_steps_is_found_by_the_number_of_a_step() -> None:
    async def main() -> None:
        async with opened() as (database, access):
            app = counting().compile(checkpointer=database.checkpointer())
            for _ in range(30):
                await app.ainvoke({"messages": [HumanMessage("hi")]}, staging.at("t"))
            page = await api.view(access, "steps", {"id": "t", "step": "10"})
            numbers = [step["step"] for step in page["steps"]]
            assert (numbers[0], numbers[8], numbers[-1], page["newest"]) == (18, 10, -1, 88)
            assert (await api.view(access, "steps", {"id": "t"}))["newest"] == 88
            made = next(step for step in page["steps"] if step["step"] == 10)
            shown = await api.view(access, "checkpoint", {"id": "t", "checkpoint": made["checkpoint_id"]})
            assert shown["nodes"] == made["nodes"] == ["answer"]
            assert (shown["began_at"], shown["ended_at"]) == (made["began_at"], made["ended_at"])
            for wrong, error in (("9999", NotFound), ("soon", BadSetting), ("1" * 30, BadSetting)):
                with pytest.raises(error):
                    await api.view(access, "steps", {"id": "t", "step": wrong})
            diff = await api.view(access, "diff", {"id": "t", "before": "9", "after": "10"})
            assert diff["after"] == made["checkpoint_id"]

    asyncio.run(main())


def test_a_title_of_the_metadata_comes_first() -> None:
    async def main() -> None:
        async with (
            perdure.connect("memory://") as database,
            Runtime(database, counting().compile(), works=False) as runtime,
        ):
            await runtime.threads.create("t", {"title": "Tides"})
            access = LocalAccess(handle_of(database), "", runtime=runtime)
            assert (await api.view(access, "thread", {"id": "t"}))["title"] == "Tides"
            assert (await api.view(access, "conversation", {"id": "t"}))["title"] == "Tides"
            assert (await api.view(access, "steps", {"id": "t"}))["steps"] == []
            assert (await api.view(access, "picture", {"id": "t"}))["graph"] is not None

    asyncio.run(main())


def test_without_a_graph_a_picture_has_the_reason() -> None:
    async def main() -> None:
        async with opened() as (database, _):
            app = counting().compile(checkpointer=database.checkpointer())
            await app.ainvoke({"messages": [HumanMessage("one")]}, staging.at("t"))
            found = await api.view(LocalAccess(handle_of(database), ""), "picture", {"id": "t"})
            assert found["graph"] is None
            assert "--graph module:graph" in found["reason"]

    asyncio.run(main())


@pytest.mark.parametrize("view", VIEWS)
def test_a_thread_that_may_not_be_seen_is_not_there(view: str) -> None:
    async def main() -> None:
        async with (
            perdure.connect("memory://") as database,
            Runtime(database, counting().compile(), works=False) as runtime,
        ):
            await runtime.threads.create("t", {"owner": "me"})
            access = OwnersAccess(handle_of(database), "", runtime=runtime)
            access.who = "me"
            await api.view(access, view, {"id": "t"})
            access.who = "another"
            with pytest.raises(NotFound, match="there is no thread 't'"):
                await api.view(access, view, {"id": "t"})
            for thread in ("none", "t"):
                with pytest.raises(NotFound):
                    await api.view(LocalAccess(handle_of(database), "other"), view, {"id": thread})

    asyncio.run(main())


@pytest.mark.parametrize(
    ("view", "asked"),
    [
        ("steps", {"before": "x"}),
        ("steps", {"before": "9" * 40}),
        ("usage", {"cursor": "["}),
        ("usage", {"cursor": '["", "", "", "0"]'}),
        ("usage", {"cursor": '["", "", "", true]'}),
        ("usage", {"cursor": "[" * 5000}),
        ("conversation", {"cursor": "x"}),
    ],
)
def test_a_place_that_no_page_gave_is_refused(view: str, asked: dict[str, str]) -> None:
    async def main() -> None:
        async with opened() as (database, access):
            app = counting().compile(checkpointer=database.checkpointer())
            await app.ainvoke({"messages": [HumanMessage("one")]}, staging.at("t"))
            with pytest.raises(BadSetting):
                await api.view(access, view, {"id": "t", **asked})
            with pytest.raises(NotFound, match="no checkpoint in namespace"):
                await api.view(access, "steps", {"id": "t", "namespace": "none"})

    asyncio.run(main())


def test_views_of_hostile_threads_are_data(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'threads.db'}"
    with perdure.connect_sync(url, migrate=True) as database:
        staging.fill(database)

        async def main() -> None:
            access = LocalAccess(handle_of(database), "")
            for thread in ("plain", "waiting", "answered", HOSTILE_ID):
                for view in VIEWS:
                    assert await api.view(access, view, {"id": thread})
            said = await api.view(access, "conversation", {"id": HOSTILE_ID})
            assert said["messages"][0]["text"] == HOSTILE
            (asked, *_) = (await api.view(access, "steps", {"id": "waiting"}))["steps"]
            assert [(task["node"], task["state"]) for task in asked["tasks"]] == [("send", "asked")]

        asyncio.run(main())
