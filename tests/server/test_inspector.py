"""The inspector of a server: under the rights of the request's user, and nothing beyond them.

Covers perdure.inspector.queue.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

import perdure
from perdure.database.base import handle_of
from perdure.engine.complete_reads import list_all_partitions
from perdure.inspector.actions import ACTIONS
from perdure.inspector.api import VIEWS
from perdure.model.records import Partition
from perdure.runtime import Runtime, Settings
from perdure.server.app import create_app
from perdure.server.auth.identity import Gate
from perdure.server.config import Http
from perdure.server.resources import ServerState
from tests.backends import EMPTY
from tests.server.ports import served
from tests.server.tenants import (
    ALICE,
    EACH_WAY,
    SECRET_OF_ALICE,
    WAYS,
    Names,
    Served,
    estate,
    graphs,
    held,
    strangers,
)


@asynccontextmanager
async def serving(gate: Gate) -> AsyncIterator[Served]:
    settings = Settings(poll=0.1, drain=0.1, shared_threads=True)
    async with (
        perdure.connect("memory://") as database,
        Runtime(database, graphs(), settings=settings, all_tenants=True) as runtime,
    ):
        app, host = create_app(None, Http(inspector=True)), ServerState.over(runtime, gate)
        async with served(app, host) as address:
            yield Served(address, host, app)


async def tenants_of(server: Served) -> list[Partition]:
    handle = handle_of(server.host.runtime.database)
    return list(await handle.arun(list_all_partitions(None)))


LISTS = frozenset(
    (
        *("about", "threads", "queue", "care", "log", "runs", "questions", "limits", "nodes"),
        *("overview", "growth"),
    )
)
"""Views that are of no thread."""
OF_ALL = frozenset(("overview", "growth"))
"""Views with numbers of all threads."""


def views(names: Names) -> Iterator[tuple[str, dict[str, str]]]:
    """Each view of each of Alice's threads, and each view of a list."""
    for view in VIEWS:
        if view == "scan":
            for what in ("sizes", "dead", "fsck", "retention"):
                yield view, {"what": what, "keep_last": "1"}
        elif view == "tenants":
            continue
        elif view == "user":
            yield view, {"user": "alice"}
        elif view in LISTS:
            yield view, {}
        else:
            for thread_id in (names.idle, names.asks, names.failed, names.busy):
                yield view, {"id": thread_id, "channel": "messages", "run": names.failed_run}
    for status in ("idle", "busy", "interrupted", "error"):
        yield "threads", {"status": status}
    yield "threads", {"id": names.idle[:8]}
    yield "threads", {"words": "e"}
    yield "threads", {"user": "alice"}
    yield "threads", {"graph": "chat"}
    yield "scan", {"what": "dead", "repeated": "1"}
    yield "runs", {"stands": "1"}
    yield "threads", {"metadata": json.dumps({"title": SECRET_OF_ALICE})}


def deeds(names: Names) -> Iterator[tuple[str, dict[str, Any]]]:
    message = {"messages": [{"role": "user", "content": "from another"}]}
    given: dict[str, dict[str, Any]] = {
        "tag": {"name": "theirs"},
        "untag": {"name": "hers"},
        "edit": {"values": message, "as_node": "turn", "graph": "chat"},
        "run": {"graph": "chat"},
        "answer": {"value": "yes", "graph": "ask"},
        "cancel": {"run_id": names.running},
        "retry": {"reply": 1},
        "discard": {"run_id": names.failed_run},
        "rerun": {"run_id": names.failed_run},
        "delete": {},
        "export": {},
    }
    assert set(given) == set(ACTIONS)
    for action, body in given.items():
        for thread_id in (names.idle, names.asks, names.failed, names.busy):
            yield action, {"id": thread_id, "confirm": thread_id, **body}


@pytest.mark.parametrize("way", EACH_WAY)
def test_other_users_see_and_change_nothing(way: str) -> None:
    async def scenario() -> None:
        apart = WAYS[way]
        async with serving(apart.gate()) as server, server.http(ALICE) as alice:
            names = await estate(alice)
            (await alice.put(f"/threads/{names.idle}/tags/hers", json={})).raise_for_status()
            before = await held(alice, names)
            for who, headers in {**apart.others, **strangers()}.items():
                async with server.http(headers) as other:
                    for view, asked in views(names):
                        answer = await other.get(f"/inspect/api/{view}", params=asked)
                        place = f"{who} {view} {asked}"
                        expected = 401 if who in strangers() else 404 if "channel" in asked else 200
                        if view in OF_ALL and answer.status_code == 403:
                            expected = 403  # The numbers are of threads that this user may not see, too.
                        assert answer.status_code == expected, f"{place}: {answer.text}"
                        if "id" not in asked and "metadata" not in asked:
                            leaked = [name for name in (*names.all(), SECRET_OF_ALICE) if name in answer.text]
                            assert leaked == [], place
                    # Naming a tenant gives no right to it, whether it exists or not.
                    for view in ("about", "threads", "queue", "log", "tenants"):
                        for tenant in {each.tenant for each in await tenants_of(server)} | {"none"}:
                            answer = await other.get(f"/inspect/api/{view}", params={"tenant": tenant})
                            assert SECRET_OF_ALICE not in answer.text
                            assert [name for name in names.all() if name in answer.text] == []
                            if tenant == "none":
                                assert answer.status_code == (401 if who in strangers() else 404)
                    for action, body in deeds(names):
                        answer = await other.post(f"/inspect/api/actions/{action}", json=body)
                        expected = 401 if who in strangers() else 404
                        assert answer.status_code == expected, f"{who} {action}: {answer.text}"
                    answer = await other.post("/inspect/api/actions/rerun-failed", json={})
                    assert answer.status_code == (401 if who in strangers() else 200), answer.text
                    assert who in strangers() or answer.json()["reruns"] == []
                    answer = await other.post("/inspect/api/actions/stop-runs", json={})
                    assert answer.status_code == (401 if who in strangers() else 200), answer.text
                    assert who in strangers() or answer.json()["stopped"] == []
                    body = {"user": "alice", "confirm": "alice"}
                    answer = await other.post("/inspect/api/actions/delete-user", json=body)
                    # Those of another tenant, where this user is nobody, may remove all that is there of her.
                    assert answer.status_code in ((401,) if who in strangers() else (200, 403)), answer.text
                    assert "threads" not in answer.json() or answer.json()["threads"] == 0
                    for thread_id in (names.idle, names.asks, names.failed, names.busy):
                        body = {"id": thread_id, "graphs": ["chat"]}
                        answer = await other.post("/inspect/api/replay", json=body)
                        assert answer.status_code == (401 if who in strangers() else 404), answer.text
            assert await held(alice, names) == before
            log = (await alice.get("/inspect/api/log")).json()["entries"]
            assert log == []

    asyncio.run(asyncio.wait_for(scenario(), 100))


def test_a_user_sees_and_changes_the_own_threads() -> None:
    async def scenario() -> None:
        async with serving(WAYS["filters"].gate()) as server, server.http(ALICE) as alice:
            names = await estate(alice)

            async def get(view: str, **asked: str) -> Any:
                answer = await alice.get(f"/inspect/api/{view}", params=asked)
                assert answer.status_code == 200, answer.text
                return answer.json()

            refused = await alice.get("/inspect/api/tenants")
            assert refused.status_code == 403
            # There is no such option for a server.
            assert "own tenant" in refused.text
            assert "--" not in refused.text

            async def act(action: str, thread_id: str, **given: Any) -> Any:
                answer = await alice.post(f"/inspect/api/actions/{action}", json={"id": thread_id, **given})
                assert answer.status_code == 200, answer.text
                return answer.json()

            listed = {each["thread_id"]: each["status"] for each in (await get("threads"))["threads"]}
            assert listed[names.idle] == "idle"
            assert listed[names.busy] == "busy"
            queue = await get("queue")
            assert [each["thread_id"] for each in queue["work"] if each["open_run"]] == [names.busy]
            assert queue["workers"] == [{"name": server.host.runtime.name, "runs": 1}]
            assert names.asks in [each["thread_id"] for each in queue["interrupted"]]
            assert [each["thread_id"] for each in queue["failed"]] == [names.failed]
            dead = (await get("scan", what="dead"))["rows"]
            assert [each["run_id"] for each in dead] == [names.failed_run]
            page = await get("timeline", id=names.idle)
            assert set(page["runs"]) >= {names.idle_run}
            assert len((await get("messages", id=names.idle))["messages"]) == 2

            asked = {"id": names.idle, "graphs": ["chat"]}
            replayed = await alice.post("/inspect/api/replay", json=asked)
            assert replayed.status_code == 200, replayed.text
            assert [step["differences"] for step in replayed.json()["steps"]] != []
            assert not any(found for step in replayed.json()["steps"] for found in step["differences"][0])

            answered = await act("answer", names.asks, value="yes")
            (await alice.get(f"/threads/{names.asks}/runs/{answered['run_id']}/join")).raise_for_status()
            assert (await get("thread", id=names.asks))["status"] == "idle"
            values = {"messages": [{"role": "user", "content": "again"}]}
            await act("edit", names.idle, values=values, as_node="__start__", graph="chat")
            ran = await act("run", names.idle, graph="chat")
            (await alice.get(f"/threads/{names.idle}/runs/{ran['run_id']}/join")).raise_for_status()
            state = (await alice.get(f"/threads/{names.idle}/state")).json()
            assert state["values"]["messages"][-1]["content"] == "echo again"
            await act("discard", names.failed, run_id=names.failed_run)
            await act("cancel", names.busy, run_id=names.running)
            await act("delete", names.failed, confirm=names.failed)
            log = (await get("log"))["entries"]
            done = ["delete", "cancel", "discard", "run", "edit", "answer", "replay"]
            assert [(each["who"], each["action"]) for each in log] == [("alice", name) for name in done]
            assert {each["outcome"] for each in log} == {"done"}
            assert SECRET_OF_ALICE not in json.dumps(log)

    asyncio.run(asyncio.wait_for(scenario(), 100))


def test_the_pages_are_served_only_on_request() -> None:
    async def scenario() -> None:
        for http in (Http(), Http(inspector=True)):
            app = create_app(None, http)
            transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
                page = await client.get("/inspect/")
                assert page.status_code == (200 if http.inspector else 404)
                if http.inspector:
                    assert "script-src 'self'" in page.headers["content-security-policy"]

    asyncio.run(scenario())


@pytest.mark.slow
def test_it_is_the_same_on_postgresql() -> None:
    async def scenario() -> None:
        with EMPTY["postgresql"]() as url:
            async with (
                perdure.connect(url, migrate=True) as database,
                Runtime(
                    database, graphs(), settings=Settings(poll=0.1, shared_threads=True), all_tenants=True
                ) as runtime,
            ):
                app = create_app(None, Http(inspector=True))
                host = ServerState.over(runtime, WAYS["filters"].gate())
                async with (
                    served(app, host) as address,
                    httpx.AsyncClient(base_url=address, headers=ALICE, trust_env=False) as alice,
                ):
                    names = await estate(alice)
                    for view, asked in views(names):
                        answer = await alice.get(f"/inspect/api/{view}", params=asked)
                        # She sees her own threads only, and the run is of one of them.
                        is_other = view == "run" and asked["id"] != names.failed
                        expected = 403 if view in OF_ALL else 404 if is_other else 200
                        if view == "file":
                            expected = 422  # no path is given
                        assert answer.status_code == expected, f"{view} {asked}: {answer.text}"

    asyncio.run(asyncio.wait_for(scenario(), 100))
