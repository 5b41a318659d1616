"""Tenants in the inspector: named and shown to those who may see all of them, unknown to the others.

Covers perdure.inspector.overview.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

import perdure
from perdure.database.base import handle_of
from perdure.inspector.access import PERMISSIONS, LocalAccess, LocalReplays
from perdure.inspector.actions import ACTIONS
from perdure.inspector.api import VIEWS
from perdure.inspector.web import create_app
from perdure.replay import record_calls
from perdure.runtime import Agent, Runtime
from tests.backends import BACKENDS, EMPTY
from tests.inspector import staging
from tests.inspector.test_replaying import chat

BASE = "http://127.0.0.1:8770"
TENANTS = ("", "acme", "acme/north", "zeta", "ö")
LAST = "\U0010ffff"
SECRET = "canary-of-zeta"


@pytest.fixture(params=BACKENDS)
def database(request: pytest.FixtureRequest) -> Iterator[perdure.SyncDatabase]:
    with (
        EMPTY[request.param]() as url,
        perdure.connect_sync(url, migrate=True) as opened,
    ):
        yield opened


async def answer(access: LocalAccess, path: str, **how: Any) -> httpx.Response:
    transport = httpx.ASGITransport(app=create_app(access), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url=f"{BASE}/inspect/api/") as client:
        return await (client.post(path, json=how["json"]) if "json" in how else client.get(path, params=how))


async def shown(access: LocalAccess, path: str, **how: Any) -> Any:
    response = await answer(access, path, **how)
    assert response.status_code == 200, response.text
    return response.json()


def test_tenants_are_named_in_order_on_each_backend(database: perdure.SyncDatabase) -> None:
    async def scenario() -> None:
        async with Runtime(database, staging.graph().compile(), works=False, all_tenants=True) as runtime:
            for tenant in TENANTS:
                # The last two come after what is left out in the search for the next tenant.
                for name in ("t", "u", LAST * 5, LAST * 6):
                    await runtime.for_tenant(tenant).threads.create(name, {})
        access = LocalAccess(handle_of(database), "", all_tenants=True)
        assert await shown(access, "tenants") == {"tenants": list(TENANTS), "is_whole": True}
        for beginning, found in (("ac", TENANTS[1:3]), ("acme", TENANTS[1:3]), ("ö", ("ö",)), ("b", ())):
            assert (await shown(access, "tenants", beginning=beginning))["tenants"] == list(found)

    asyncio.run(asyncio.wait_for(scenario(), 100))


def test_of_many_tenants_the_first_ones_are_named() -> None:
    async def scenario() -> None:
        with perdure.connect_sync("memory://") as database:
            async with Runtime(database, staging.graph().compile(), works=False, all_tenants=True) as runtime:
                for number in range(130):
                    await runtime.for_tenant(f"tenant-{number:03}").threads.create("t", {})
            access = LocalAccess(handle_of(database), "", all_tenants=True)
            found = await shown(access, "tenants")
            assert found == {"tenants": [f"tenant-{number:03}" for number in range(100)], "is_whole": False}
            assert len((await shown(access, "tenants", beginning="tenant-12"))["tenants"]) == 10

    asyncio.run(asyncio.wait_for(scenario(), 100))


@asynccontextmanager
async def two_tenants() -> AsyncIterator[tuple[perdure.Database, Runtime, LocalReplays]]:
    """A database in which the tenants "" and "zeta" have a thread of the same name."""
    async with perdure.connect("memory://") as database:
        for tenant, text in (("", "tides"), ("zeta", SECRET)):
            saver = database.checkpointer(tenant=tenant)
            graph = record_calls(chat("Be kind.").compile(checkpointer=saver))
            await graph.ainvoke({"messages": [("user", text)]}, {"configurable": {"thread_id": "t"}})
        agent = Agent(chat("Be kind.").compile())
        async with Runtime(database, {"chat": agent}, all_tenants=True) as runtime:
            yield database, runtime, LocalReplays(database, {"chat": agent})


def test_views_actions_and_replays_are_those_of_the_chosen_tenant() -> None:
    async def scenario() -> None:
        async with two_tenants() as (database, runtime, replays):
            access = LocalAccess(
                handle_of(database),
                "",
                all_tenants=True,
                runtime=runtime,
                replays=replays,
                allowed=frozenset(PERMISSIONS),
            )
            assert (await shown(access, "about", tenant="zeta"))["tenant"] == "zeta"
            for tenant, said in (("", "tides"), ("zeta", SECRET)):
                channels = (await shown(access, "checkpoint", id="t", tenant=tenant))["channels"]
                assert (said in str(channels), (SECRET in str(channels))) == (True, said == SECRET)
            replayed = await shown(access, "replay", json={"id": "t", "graphs": ["chat"], "tenant": "zeta"})
            assert not any(found for step in replayed["steps"] for found in step["differences"][0])
            values = {"messages": [{"role": "user", "content": "by hand"}]}
            edit = {"id": "t", "tenant": "zeta", "values": values, "as_node": "answer"}
            await shown(access, "actions/edit", json=edit)
            ran = await shown(access, "actions/run", json={"id": "t", "tenant": "zeta"})
            assert (await runtime.for_tenant("zeta").find("t", ran["run_id"])) is not None
            other = await answer(access, "replay?tenant=zeta", json={"id": "t", "tenant": ""})
            assert (other.status_code, "another tenant" in other.text) == (422, True)
            await shown(access, "actions/delete?tenant=zeta", json={"id": "t", "confirm": "t"})
            assert (await shown(access, "threads", tenant="zeta"))["threads"] == []
            assert [each["thread_id"] for each in (await shown(access, "threads"))["threads"]] == ["t"]
            assert (await shown(access, "log"))["entries"] == []
            done = [each["action"] for each in (await shown(access, "log", tenant="zeta"))["entries"]]
            assert done == ["delete", "run", "edit", "replay"]
            assert (await answer(access, "replay", json={"id": "t", "tenant": 1})).status_code == 422

    asyncio.run(asyncio.wait_for(scenario(), 100))


def test_another_tenant_is_as_unknown_as_none_to_those_who_see_one() -> None:
    async def scenario() -> None:
        async with two_tenants() as (database, runtime, replays):
            access = LocalAccess(
                handle_of(database), "", runtime=runtime, replays=replays, allowed=frozenset(PERMISSIONS)
            )
            before = await database.export("t")
            refused = await answer(access, "tenants")
            assert (refused.status_code, "--all-tenants" in refused.text) == (403, True)
            for tenant in ("zeta", "none"):
                for view in VIEWS:
                    asked = {"id": "t", "channel": "messages", "what": "sizes", "tenant": tenant}
                    response = await answer(access, view, **asked)
                    assert response.status_code == 404, f"{view}: {response.text}"
                    assert SECRET not in response.text
                actions = (
                    f"actions/{name}" for name in (*ACTIONS, "rerun-failed", "stop-runs", "delete-user")
                )
                for path in ("replay", *actions):
                    given = {"id": "t", "graphs": ["chat"], "confirm": "t", "tenant": tenant}
                    response = await answer(access, path, json=given)
                    assert response.status_code == 404, f"{path}: {response.text}"
            for view in VIEWS:
                if view != "tenants":
                    response = await answer(
                        access, view, id="t", channel="messages", what="sizes", run="none", user="ada"
                    )
                    # An application ran the graph, so there is no run; and no path of a file is given.
                    expected = {"run": 404, "file": 422}.get(view, 200)
                    assert response.status_code == expected, f"{view}: {response.text}"
                    assert SECRET not in response.text, view
            assert await database.export("t") == before

    asyncio.run(asyncio.wait_for(scenario(), 100))
