"""The queue in the console: what will run by itself, by time, and nothing of it that a viewer may not see."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph

import perdure
from perdure.database.base import handle_of
from perdure.errors import NotAllowed
from perdure.inspector import queue as queue_views
from perdure.inspector.access import LocalAccess, Sees
from perdure.inspector.api import view
from perdure.runtime import Runtime, Settings, ask, sleep
from tests.backends import BACKENDS, EMPTY
from tests.inspector.staging import HOSTILE
from tests.server.tenants import ALICE, WAYS
from tests.server.test_inspector import serving

DAY_US = 86_400_000_000


class Others(LocalAccess):
    """The rights to the threads and the crons of Ada."""

    async def authorize_listing(self) -> Sees | None:
        return lambda metadata: metadata.get("user_id") == "ada"

    async def authorize_crons(self) -> Sees | None:
        return await self.authorize_listing()


class WithoutCrons(LocalAccess):
    """The rights to all threads, and to no cron."""

    async def authorize_crons(self) -> Sees | None:
        raise NotAllowed("no")


async def answer(state: MessagesState) -> dict[str, Any]:
    if state["messages"][-1].text == "sleep":
        await sleep(3000)
    if state["messages"][-1].text == "ask":
        await ask("May I?", within=5000, default="no")
    return {"messages": [AIMessage("fine")]}


async def say(runtime: Runtime, thread: str, text: str) -> None:
    await runtime.threads.create(thread, {"title": f"About {text}", "user_id": thread})
    await runtime.wait(await runtime.accept(thread, text), 30)


async def add_cron(runtime: Runtime, user: str, graph: str, due_at: int | None) -> None:
    schedule = {"expression": "0 * * * *", "timezone": "Europe/Berlin", "end": None}
    await runtime.for_tenant("").crons.create(
        {"graph_id": graph, "schedule": schedule, "metadata": {"user_id": user}, "thread_id": None}, due_at
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_crons_messages_for_later_and_sleeps_come_by_time(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        graph = StateGraph(MessagesState).add_node("answer", answer).add_edge(START, "answer").compile()
        with EMPTY[backend]() as url:
            async with (
                perdure.connect(url, migrate=True) as database,
                Runtime(database, graph, settings=Settings(poll=0.1), observers=()) as runtime,
            ):
                for user, text in (("ada", "sleep"), ("bob", "ask"), ("carl", "hello")):
                    await say(runtime, user, text)
                later = {"messages": [("user", "later")]}
                for thread, seconds in (("carl", 100), ("carl", 2 * 86400), ("new", 4000)):
                    config = {"configurable": {"user_id": HOSTILE}}
                    await runtime.submit(thread, later, config=config, delay=seconds, coalesce=False)
                access = LocalAccess(handle_of(database), "")
                now = (await view(access, "queue", {}))["now"]
                await add_cron(runtime, "ada", "hourly", now + 3500_000_000)
                await add_cron(runtime, "bob", "weekly", now + 7 * DAY_US)
                await add_cron(runtime, "bob", "disabled", None)

                found = await view(access, "queue", {})
                about = ("kind", "thread_id", "user", "graph", "title", "what", "is_listed")
                shown = [tuple(each[name] for name in about) for each in found["upcoming"]]
                name = "agent"
                assert shown == [
                    ("message", "carl", "carl", name, "About hello", "", True),
                    ("sleep", "ada", "ada", name, "About sleep", "", True),
                    ("cron", None, "ada", "hourly", "", "0 * * * * Europe/Berlin", False),
                    ("message", "new", HOSTILE, name, "", "", False),
                    ("question", "bob", "bob", name, "About ask", "", True),
                    ("message", "carl", "carl", name, "About hello", "", True),
                    ("cron", None, "bob", "weekly", "", "0 * * * * Europe/Berlin", False),
                ]
                # What comes later is not listed as work, too.
                assert (found["work"], found["cut"], found["has_crons"]) == ([], [], True)

                found = await view(Others(handle_of(database), ""), "queue", {})
                assert [each["user"] for each in found["upcoming"]] == ["ada", "ada"]
                found = await view(WithoutCrons(handle_of(database), ""), "queue", {})
                assert ("cron" in {each["kind"] for each in found["upcoming"]}, found["has_crons"]) == (
                    False,
                    False,
                )
                found = await view(
                    LocalAccess(handle_of(database), "", all_tenants=True), "queue", {"tenant": "other"}
                )
                assert found["upcoming"] == []

                monkeypatch.setattr(queue_views, "_THREADS", 1)
                found = await view(access, "queue", {})
                assert [each["thread_id"] for each in found["upcoming"]] == ["carl"]
                assert "upcoming" in found["cut"]
                found = await view(Others(handle_of(database), ""), "queue", {})
                assert [each["user"] for each in found["upcoming"]] == ["ada"]

    asyncio.run(asyncio.wait_for(scenario(), 100))


def test_a_user_of_a_server_sees_the_own_crons() -> None:
    async def scenario() -> None:
        for way in ("filters", "keys"):
            apart = WAYS[way]
            async with serving(apart.gate()) as server, server.http(ALICE) as alice:
                made = await alice.post(
                    "/runs/crons",
                    json={"assistant_id": "chat", "schedule": "0 9 * * 1", "input": {"messages": []}},
                )
                assert made.is_success, made.text
                found = (await alice.get("/inspect/api/queue")).json()
                assert [(each["kind"], each["user"]) for each in found["upcoming"]] == [("cron", "alice")]
                for headers in apart.others.values():
                    async with server.http(headers) as other:
                        found = (await other.get("/inspect/api/queue")).json()
                        assert (found["upcoming"], found["has_crons"]) == ([], True)

    asyncio.run(asyncio.wait_for(scenario(), 100))
