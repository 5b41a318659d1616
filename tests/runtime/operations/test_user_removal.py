"""Crons and assistants of a user, as a server stores them: what is removed with the user, and what stays.

Covers perdure.runtime.agents.default_assistants.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from langgraph_sdk import Auth

from perdure.database.base import handle_of
from perdure.runtime.agents.default_assistants import make_default_id
from perdure.runtime.operations.user_removal import find_assistants, find_crons
from perdure.server.auth.handlers import Handlers
from perdure.server.config import Http
from tests.backends import EMPTY
from tests.server.hosting import Served, known, owners, run, serving

SAID: Any = {"messages": [{"role": "user", "content": "0"}]}
ADA: Any = {"configurable": {"user_id": "ada"}}


@pytest.fixture
def url() -> Iterator[str]:
    with EMPTY["sqlite"]() as url:
        yield url


async def crons_of(server: Served, user: str) -> set[str]:
    found = await find_crons(handle_of(server.host.runtime.database), "", user)
    return {cron.id for cron in found}


async def assistants_of(server: Served, user: str) -> set[str]:
    return set(await find_assistants(handle_of(server.host.runtime.database), "", user))


@run
async def test_a_cron_is_that_of_the_user_of_its_runs_and_of_its_metadata(url: str) -> None:
    async with serving(url) as server:
        client = await server.client()

        async def make(assistant: str = "slow", **more: Any) -> str:
            made: Any = await client.crons.create(assistant, schedule="0 9 * * *", input=SAID, **more)
            return str(made["cron_id"])

        preset = await client.assistants.create("slow", ADA)
        adas = {
            await make(config=ADA),
            await make(metadata={"user_id": "ada"}),
            await make(metadata={"owner": "ada"}, config={"configurable": {"user_id": 7}}),
            await make(config={"metadata": {"user_id": "ada"}}),
            await make(preset["assistant_id"]),
        }
        sevens = {await make(preset["assistant_id"], config={"configurable": {"user_id": 7}})}
        await make()
        await make(metadata={"user_id": "bob", "user": "ada"})
        assert await crons_of(server, "ada") == adas
        assert len(await crons_of(server, "7")) == 2
        assert sevens < await crons_of(server, "7")
    async with serving(url, gate=owners()) as server:
        made: Any = await (await server.client("bob")).crons.create(
            "slow", schedule="0 9 * * *", input=SAID, config=ADA, metadata={"user_id": "ada"}
        )
        assert await crons_of(server, "ada") == adas
        assert made["cron_id"] in await crons_of(server, "bob")


@run
async def test_an_assistant_is_its_owners_and_without_one_it_is_for_all(url: str) -> None:
    async with serving(url) as server:
        client = await server.client()

        async def make(config: Any = None, **metadata: Any) -> str:
            return str((await client.assistants.create("slow", config, metadata=metadata))["assistant_id"])

        adas = {await make(owner="ada"), await make(ADA), await make(user_id="ada", team="x")}
        bobs = {await make(ADA, owner="bob"), await make(user_id="bob")}
        for_all = {await make(), await make({"configurable": {"tone": "dry"}}, team="x")}
        # The default assistant of a graph is for all, whatever was changed of it.
        await client.assistants.update("aware", graph_id="slow", config=ADA, metadata={"owner": "ada"})
        assert await assistants_of(server, "ada") == adas
        assert await assistants_of(server, "bob") == bobs
        listed = {each["assistant_id"] for each in await client.assistants.search(limit=100)}
        assert adas | bobs | for_all | {make_default_id("aware")} <= listed


def keepers(action: str = "delete") -> Handlers:
    """Users who may delete, or do another action with, anything but assistants."""
    auth = known()

    async def refuse(ctx: Auth.types.AuthContext, value: Any) -> bool:
        return False

    getattr(auth.on.assistants, action)(refuse)
    return Handlers(auth)


@run
async def test_a_user_is_removed_with_assistants_and_crons_by_those_who_may_delete_them(url: str) -> None:
    body = {"user": "ada", "confirm": "ada"}
    async with serving(url, gate=keepers(), http=Http(inspector=True)) as server:
        ada, http = await server.client("ada"), await server.http("root")
        assistant = await ada.assistants.create("slow", metadata={"owner": "ada"})
        await ada.assistants.update(assistant["assistant_id"], name="Changed")
        await ada.crons.create("slow", schedule="0 9 * * *", input=SAID)
        refused = await http.post("/inspect/api/actions/delete-user", json=body)
        assert refused.status_code == 403, refused.text
        assert await assistants_of(server, "ada") == {assistant["assistant_id"]}
        assert len(await crons_of(server, "ada")) == 1
        stored = (await http.get("/inspect/api/user", params={"user": "ada"})).json()["stored"]
        assert set(stored["crons"]) == await crons_of(server, "ada")
        assert stored["assistants"] == [assistant["assistant_id"]]
    async with serving(url, gate=keepers("read"), http=Http(inspector=True)) as server:
        shown = await (await server.http("root")).get("/inspect/api/user", params={"user": "ada"})
        # Who may not read all of it is shown the threads alone.
        assert (shown.status_code, shown.json()["stored"]) == (200, None)
    async with serving(url, gate=Handlers(known()), http=Http(inspector=True)) as server:
        done = await (await server.http("root")).post("/inspect/api/actions/delete-user", json=body)
        assert done.status_code == 200, done.text
        assert (done.json()["assistants"], done.json()["crons"]) == (1, 1)
        assert await assistants_of(server, "ada") | await crons_of(server, "ada") == set()
        documents = server.host.runtime.for_tenant("").documents("assistant")
        assert await documents.read_versions(assistant["assistant_id"]) == []
