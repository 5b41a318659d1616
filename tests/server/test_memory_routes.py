"""What is known of a user over HTTP: for that user alone, and the lanes for nobody.

Covers perdure.server.memories, perdure.server.routes.memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from langchain_core.messages import AIMessage
from starlette.requests import HTTPConnection

import perdure
from perdure.memory import Memory, memory_tools
from perdure.runtime import Agent, Runtime
from perdure.runtime.agent_memory.memory_turns import lane_of
from perdure.server.app import create_app
from perdure.server.auth.identity import OpenGate, User
from perdure.server.config import Http
from perdure.server.resources import ServerState
from tests.backends import BACKENDS, EMPTY
from tests.conversation.models import Scripted
from tests.runtime.agent_memory.test_run_memory import graph, policy, settled


class ByHeader(OpenGate):
    """A gate that takes the name in a header for verified, with one tenant for all users."""

    async def authenticate(self, request: HTTPConnection) -> User:
        return User(request.headers["x-user"], "")


@asynccontextmanager
async def serving(agent: Agent, url: str = "memory://") -> AsyncIterator[tuple[Runtime, httpx.AsyncClient]]:
    async with perdure.connect(url, migrate=True) as db, Runtime(db, agent, all_tenants=True) as runtime:
        host = ServerState.over(runtime, ByHeader())
        app = create_app(None, Http())
        app.state.perdure = host
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as http:
            yield runtime, http
        await host.close()


def run(agent: Agent, body: Any) -> None:
    async def main() -> None:
        async with asyncio.timeout(60), serving(agent) as (runtime, http):
            await body(runtime, http)

    asyncio.run(main())


def agent() -> Agent:
    return Agent(graph(Scripted(answers=[AIMessage("Noted.")])), memory=policy())


ADA, BOB = {"x-user": "ada"}, {"x-user": "bob"}


def test_a_user_lists_and_forgets_what_is_known_of_that_user_alone() -> None:
    async def body(runtime: Runtime, http: httpx.AsyncClient) -> None:
        said = {"assistant_id": "agent", "input": {"messages": [{"role": "user", "content": "I sing"}]}}
        await http.post("/threads", json={"thread_id": "t"}, headers=ADA)
        assert (await http.post("/threads/t/runs/wait", json=said, headers=ADA)).status_code == 200
        await settled(runtime, "ada", 1)
        await Memory(runtime.store(), "bob").aremember("Dances.")
        (fact,) = (await http.get("/memory", headers=ADA)).json()["facts"]
        assert (fact["text"], fact["thread"]) == ("I sing", "t")
        assert (await http.delete(f"/memory/{fact['id']}", headers=BOB)).status_code == 404
        assert (await http.delete(f"/memory/{fact['id']}", headers=ADA)).status_code == 204
        assert (await http.delete(f"/memory/{fact['id']}", headers=ADA)).status_code == 404
        assert (await http.get("/memory", headers=ADA)).json() == {"facts": [], "summaries": []}
        assert (await http.delete("/memory", headers=BOB)).json() == {"removed": 1}
        assert (await http.delete("/memory", headers=ADA)).json() == {"removed": 0}
        assert not await runtime.messages(lane_of("ada"))

    run(agent(), body)


def test_the_store_s_routes_show_nobody_the_memory_of_another_user() -> None:
    async def body(runtime: Runtime, http: httpx.AsyncClient) -> None:
        await Memory(runtime.store(), "bob").aremember("Dances.")
        await Memory(runtime.store(), "ada").aremember("Sings.")
        theirs, hers = ["memories", "bob", "facts"], ["memories", "ada", "facts"]
        searches = [[], ["memories"], ["memories", "bob"], theirs]
        for asked in searches:
            answer = await http.post("/store/items/search", json={"namespace_prefix": asked}, headers=ADA)
            assert (answer.status_code, "Dances" in answer.text) == (403, False), asked
            listed = await http.post("/store/namespaces", json={"prefix": asked or None}, headers=ADA)
            assert (listed.status_code, "bob" in listed.text) == (403, False), asked
        for asked in (["*", "bob"], ["memories", "*"], ["*"]):
            listed = await http.post("/store/namespaces", json={"prefix": asked}, headers=ADA)
            assert (listed.status_code, "bob" in listed.text) == (403, False), asked
        item = {"namespace": theirs, "key": "k", "value": {"text": "false"}}
        assert (await http.put("/store/items", json=item, headers=ADA)).status_code == 403
        asked_for = {"namespace": ".".join(theirs), "key": "k"}
        assert (await http.get("/store/items", params=asked_for, headers=ADA)).status_code == 403
        gone = await http.request(
            "DELETE", "/store/items", json={"namespace": theirs, "key": "k"}, headers=ADA
        )
        assert gone.status_code == 403
        # Her own, and what is not a memory, she may read.
        found = await http.post("/store/items/search", json={"namespace_prefix": hers}, headers=ADA)
        assert (found.status_code, "Sings" in found.text) == (200, True)
        assert (
            await http.put("/store/items", json={**item, "namespace": ["notes"]}, headers=ADA)
        ).status_code == 204
        notes = await http.post("/store/items/search", json={"namespace_prefix": ["notes"]}, headers=ADA)
        assert len(notes.json()["items"]) == 1

    run(agent(), body)


@pytest.mark.parametrize("root", [("memories",), ("known", "people")])
def test_what_tools_remember_is_kept_from_others_without_a_policy(root: tuple[str, ...]) -> None:
    memory_tools(root=root)

    async def body(runtime: Runtime, http: httpx.AsyncClient) -> None:
        await Memory(runtime.store(), "bob", root=root).aremember("Dances.")
        for asked in ([], [*root], [*root, "bob"], [*root, "bob", "facts"]):
            answer = await http.post("/store/items/search", json={"namespace_prefix": asked}, headers=ADA)
            assert (answer.status_code, "Dances" in answer.text) == (403, False), asked
        own = {"namespace_prefix": [*root, "bob"]}
        assert "Dances" in (await http.post("/store/items/search", json=own, headers=BOB)).text

    run(Agent(graph(Scripted())), body)


def test_a_user_whose_id_no_memory_can_have_has_none() -> None:
    async def body(runtime: Runtime, http: httpx.AsyncClient) -> None:
        await Memory(runtime.store(), "bob").aremember("Dances.")
        long = {"x-user": "x" * 201}
        for method in ("GET", "DELETE"):
            assert (await http.request(method, "/memory", headers=long)).status_code == 404
        asked = {"namespace_prefix": ["memories", "bob"]}
        assert (await http.post("/store/items/search", json=asked, headers=long)).status_code == 403
        notes = {"namespace_prefix": ["notes"]}
        assert (await http.post("/store/items/search", json=notes, headers=long)).status_code == 200

    run(agent(), body)


def test_an_id_that_stands_for_every_label_opens_nothing() -> None:
    """A user may choose the name ``*``, with which a listing matches every label."""

    async def body(runtime: Runtime, http: httpx.AsyncClient) -> None:
        await Memory(runtime.store(), "bob").aremember("Dances.")
        star = {"x-user": "*"}
        for asked in (["memories", "*"], ["memories", "*", "facts"], ["*", "*"]):
            listed = await http.post("/store/namespaces", json={"prefix": asked}, headers=star)
            assert (listed.status_code, "bob" in listed.text) == (403, False), asked
        assert (await http.get("/memory", headers=star)).json()["facts"] == []

    run(agent(), body)


def test_a_user_named_like_a_root_within_another_sees_nobody_elses_memory() -> None:
    inner = ("memories", "work")
    within = Agent(graph(Scripted(answers=[AIMessage("Noted.")])), memory=policy(root=inner))

    async def body(runtime: Runtime, http: httpx.AsyncClient) -> None:
        await Memory(runtime.store(), "bob", root=inner).aremember("Dances.")
        await Memory(runtime.store(), "work", root=inner).aremember("Sings.")
        work, bob = {"x-user": "work"}, {"x-user": "bob"}
        for asked in (["memories"], [*inner], [*inner, "bob"], [*inner, "bob", "facts"]):
            answer = await http.post("/store/items/search", json={"namespace_prefix": asked}, headers=work)
            assert (answer.status_code, "Dances" in answer.text) == (403, False), asked
        for user, text in ((work, "Sings"), (bob, "Dances")):
            own = {"namespace_prefix": [*inner, user["x-user"]]}
            assert text in (await http.post("/store/items/search", json=own, headers=user)).text

    run(within, body)


def test_a_server_without_a_memory_answers_not_found() -> None:
    async def body(runtime: Runtime, http: httpx.AsyncClient) -> None:
        for method in ("GET", "DELETE"):
            assert (await http.request(method, "/memory", headers=ADA)).status_code == 404
        assert (await http.delete("/memory/x", headers=ADA)).status_code == 404

    run(Agent(graph(Scripted())), body)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/threads", {"thread_id": lane_of("ada")}),
        ("GET", f"/threads/{lane_of('ada')}", None),
        ("GET", f"/threads/{lane_of('ada')}/state", None),
        ("GET", f"/threads/{lane_of('ada')}/history", None),
        ("DELETE", f"/threads/{lane_of('ada')}", None),
        ("POST", f"/threads/{lane_of('ada')}/runs", {"assistant_id": "agent", "if_not_exists": "create"}),
        (
            "POST",
            f"/threads/{lane_of('ada')}/runs/wait",
            {"assistant_id": "agent", "if_not_exists": "create"},
        ),
        ("POST", f"/threads/{lane_of('ada')}/copy", None),
        ("POST", "/threads/search", {"ids": [lane_of("ada")]}),
        ("POST", "/threads/count", {"ids": ["ada", lane_of("ada")]}),
        ("POST", "/threads/prune", {"thread_ids": [lane_of("ada")]}),
        ("POST", "/runs/cancel", {"thread_id": lane_of("ada"), "run_ids": ["x"]}),
        ("POST", "/runs", {"assistant_id": "agent", "thread_id": lane_of("ada")}),
        ("POST", "/runs/batch", [{"assistant_id": "agent", "thread_id": lane_of("ada")}]),
        ("POST", f"/threads/{lane_of('ada')}/runs/crons", {"assistant_id": "agent", "schedule": "@daily"}),
        ("POST", "/runs/crons", {"assistant_id": "agent", "schedule": "@daily", "thread_id": lane_of("ada")}),
    ],
)
def test_a_lane_cannot_be_addressed(method: str, path: str, body: Any) -> None:
    async def tried(runtime: Runtime, http: httpx.AsyncClient) -> None:
        answer = await http.request(method, path, json=body, headers=BOB)
        assert answer.status_code == 422, answer.text
        assert "perdure.memory:" in answer.text

    run(agent(), tried)


def test_a_run_of_the_lanes_graph_cannot_be_asked_for() -> None:
    async def body(runtime: Runtime, http: httpx.AsyncClient) -> None:
        await http.post("/threads", json={"thread_id": "t"}, headers=BOB)
        asked = {"assistant_id": "perdure.memory", "input": {"user": "ada", "turns": []}}
        assert (await http.post("/threads/t/runs/wait", json=asked, headers=BOB)).status_code in (404, 422)
        found = (await http.post("/assistants/search", json={}, headers=BOB)).json()
        assert [each["graph_id"] for each in found] == ["agent"]

    run(agent(), body)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_lane_is_in_no_listing(backend: str) -> None:
    async def main(url: str) -> None:
        async with asyncio.timeout(60), serving(agent(), url) as (runtime, http):
            for number in range(3):
                await http.post("/threads", json={"thread_id": f"t{number}"}, headers=ADA)
                said = {
                    "assistant_id": "agent",
                    "input": {"messages": [{"role": "user", "content": "I sing"}]},
                }
                await http.post(f"/threads/t{number}/runs/wait", json=said, headers=ADA)
            await settled(runtime, "ada", 3)
            searches: list[dict[str, Any]] = [
                {},
                {"sort_by": "thread_id"},
                {"status": "idle"},
                {"offset": 1},
            ]
            for asked in searches:
                found = (await http.post("/threads/search", json=asked, headers=BOB)).json()
                names = {each["thread_id"] for each in found}
                assert len(names) == 3 - asked.get("offset", 0)
                assert names <= {"t0", "t1", "t2"}
            assert (await http.post("/threads/count", json={}, headers=BOB)).json() == 3

    with EMPTY[backend]() as url:
        asyncio.run(main(url))
