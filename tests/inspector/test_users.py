"""A user's threads with what they used, and removing everything of a user, with the rights to that.

Covers perdure.inspector.users, perdure.runtime.operations.user_removal.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import closing
from typing import Any

import apsw
import pytest
from langgraph.store.base import PutOp

import perdure
from perdure.database.base import handle_of
from perdure.engine.items import items
from perdure.engine.queue import crons
from perdure.inspector import api, users
from perdure.inspector.access import PERMISSIONS, LocalAccess
from perdure.limits import SharedLimit
from perdure.memory import Memory, MemoryPolicy
from perdure.memory.users import REMOVALS, namespace_of
from perdure.model.store_items import labels_of
from perdure.runtime import Agent, Runtime
from perdure.runtime.limits.limiter import CallTurn, limiter_of
from tests.inspector import staging
from tests.inspector.staging import HOSTILE
from tests.inspector.test_operations import BACKENDS, Restricted, Site, site, within_two_minutes


async def threads_of(found: Site, user: str) -> list[str]:
    pages: list[dict[str, Any]] = []
    cursor = None
    while not pages or cursor is not None:
        pages.append(await found.get("user", user=user, **({} if cursor is None else {"cursor": cursor})))
        cursor = pages[-1]["cursor"]
    return sorted(each["thread_id"] for page in pages for each in page["threads"])


@pytest.mark.parametrize("backend", BACKENDS)
@within_two_minutes
async def test_the_threads_of_a_user_have_what_they_used(backend: str) -> None:
    async with site(backend) as found:
        for thread, user in (("a1", "ada"), ("b", "bob"), ("a2", "ada")):
            await found.say(thread, "hello", user)
        assert await threads_of(found, "ada") == ["a1", "a2"]
        page = await found.get("user", user="ada")
        assert page["examined"] == 3
        assert {each["usage"]["calls"] for each in page["threads"]} == {0}
        assert [(each["runs"], each["others"]) for each in page["threads"]] == [(1, []), (1, [])]
        assert all(each["bytes"] > 0 for each in page["threads"])
        nothing: Any = {"crons": [], "assistants": [], "unlisted": [], "items": 0, "sessions": 0}
        nothing |= {"entries": 0, "turns": 0, "names": 0, "namespaces": [], "limits": []}
        assert page["stored"] == nothing
        assert (await found.get("user", user="ada", since="1h"))["threads"] == page["threads"]
        assert (await found.get("user", user="ada", before=str(10**15)))["threads"] == []
        await found.get("user", 422, user="ada", since="soon")
        assert await threads_of(found, "nobody") == []
        for wrong in ({}, {"user": ""}, {"user": "x" * 301}, {"user": "ada", "cursor": "x"}):
            await found.get("user", 422, **wrong)
    async with site(backend, kind=Restricted) as found:
        for user in ("ada", "bob"):
            await found.say(f"of {user}", "hello", user)
        assert (await threads_of(found, "ada"), await threads_of(found, "bob")) == (["of ada"], [])
        assert (await found.get("user", user="ada"))["stored"] is None


@pytest.mark.parametrize("backend", BACKENDS)
@within_two_minutes
async def test_what_stays_of_a_user_is_named(backend: str) -> None:
    async with site(backend) as found:
        store = found.runtime.for_tenant("").store()
        for namespace in (("notes", "carla"), ("notes", "bob"), ("carla", "drafts"), ("carla",)):
            await store.aput(namespace, "one", {"text": "kept"})
        await store.adelete(("carla",), "one")
        limiter = limiter_of(handle_of(found.runtime.database))
        each = SharedLimit(by=("user",), rate=60)
        limits = {"a": SharedLimit(rate=60), "daily": each, "other": each, "z": SharedLimit(rate=60)}
        limiter.declare(limits)
        for name, key in (("a", ""), ("daily", "ada"), ("daily", "carla"), ("other", "bob"), ("z", "")):
            turn = CallTurn([(name, {"user": key} if key else {}, "")])
            await asyncio.to_thread(limiter.acquire_blocking, turn, "", 20)
        stored = (await found.get("user", user="carla"))["stored"]
        names = [each["namespace"] for each in stored["namespaces"]]
        assert (stored["items"], names) == (2, [["carla", "drafts"], ["notes", "carla"]])
        assert stored["limits"] == ["daily"]
        await found.act("delete-user", user="carla", confirm="carla")
        assert (await found.get("user", user="carla"))["stored"] == {**stored, "names": 0}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("seconds", [60.0, 0.0])
@within_two_minutes
async def test_nothing_of_a_removed_user_is_left(
    backend: str, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(users, "_SECONDS", seconds)
    async with site(backend) as found:
        for thread, user in (("a1", HOSTILE), ("b", "bob"), ("a2", HOSTILE)):
            await found.say(thread, "hello", user)
        await found.wait_with("waits", HOSTILE)
        config = {"configurable": {"user_id": HOSTILE}}
        await found.runtime.submit("later", {"messages": []}, config=config, delay=3600)
        handle = handle_of(found.runtime.database)
        for user in (HOSTILE, "bob"):
            memory = Memory(found.runtime.for_tenant("").store(), user)
            await memory.aremember("Likes tea.")
            # Of what a program has removed itself, only the name may be there.
            own = (*namespace_of(user, ()), "facts")
            for value in ({"of": "the application"}, None):
                await found.runtime.for_tenant("").store().abatch([PutOp(own, "own", value)])
            body = {"thread_id": None, "user": {"identity": user}}
            await handle.arun(crons.create(crons.place(""), f"cron of {user}", crons.Due(body, None), 1, 1))
            assistant = {"graph_id": "agent", "metadata": {"owner": user}, "config": {}}
            await found.runtime.for_tenant("").documents("assistant").create(f"of {user}", assistant)
        for wrong in ({}, {"user": HOSTILE}, {"user": HOSTILE, "confirm": "bob"}, {"user": 1, "confirm": 1}):
            await found.act("delete-user", 422, **wrong)
        await found.act("delete-user", 422, user=HOSTILE, confirm=HOSTILE, cursor="x")
        stored = (await found.get("user", user=HOSTILE))["stored"]
        assert (len(stored["crons"]), len(stored["assistants"]), len(stored["unlisted"])) == (1, 1, 1)
        assert (stored["entries"], stored["items"]) == (1, 0)
        sums = dict.fromkeys(("threads", "shared", "crons", "assistants", "entries", "refused"), 0)
        cursor, requests = "", 0
        while cursor is not None:
            done = await found.act("delete-user", user=HOSTILE, confirm=HOSTILE, cursor=cursor)
            cursor, requests = done.pop("cursor"), requests + 1
            assert done.pop("is_in_log") is False
            sums = {name: sums[name] + count for name, count in done.items()}
        assert (requests > 1) == (seconds == 0)
        assert sums == {"threads": 4, "shared": 0, "crons": 1, "assistants": 1, "entries": 1, "refused": 0}
        assert [each["thread_id"] for each in (await found.get("threads"))["threads"]] == ["b"]
        assert await Memory(found.runtime.for_tenant("").store(), HOSTILE).afacts() == []
        assert len(await Memory(found.runtime.for_tenant("").store(), "bob").afacts()) == 1
        left = await handle.arun(crons.read_all_crons(crons.place("")))
        assert [cron.id for cron in left] == ["cron of bob"]
        assistants = await found.runtime.for_tenant("").documents("assistant").read_all()
        assert [assistant.name for assistant in assistants] == ["of bob"]
        names = {labels_of(each.thread) for each in await handle.arun(items.read_namespaces("", ()))}
        assert {label for labels in names for label in labels} - {"facts", REMOVALS} <= {"memories", "bob"}
        log = (await found.get("log"))["entries"]
        assert log[0]["action"] == "delete-user"
        assert HOSTILE not in json.dumps(log[0])


@within_two_minutes
async def test_a_user_is_removed_by_those_who_may_delete_every_thread() -> None:
    for how in ({"allowed": frozenset(PERMISSIONS) - {"delete"}}, {"kind": Restricted}):
        async with site(**how) as found:
            await found.say("t", "hello", "ada")
            await found.act("delete-user", 403, user="ada", confirm="ada")
            assert await threads_of(found, "ada") == ["t"]


@within_two_minutes
async def test_a_log_that_may_hold_what_was_removed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.storage.sqlite.driver._CUT_MS", 20)
    async with site("sqlite") as found:
        await found.say("t", "hello", "ada")
        with closing(apsw.Connection(found.url.removeprefix("sqlite:///"))) as reader:
            reader.execute("BEGIN; SELECT * FROM perdure_thread").fetchall()
            done = await found.act("delete-user", user="ada", confirm="ada")
        assert (done["threads"], done["is_in_log"], done["cursor"]) == (1, True, None)


@within_two_minutes
async def test_the_memories_of_each_graph_are_removed() -> None:
    async with perdure.connect("memory://") as database:
        policy = MemoryPolicy(root=("notes", "of"))
        agent = Agent(staging.graph().compile(), memory=policy)
        async with Runtime(database, {"agent": agent}, works=False, observers=()) as runtime:
            access = LocalAccess(handle_of(database), "", runtime=runtime, allowed=frozenset(("delete",)))
            store = runtime.for_tenant("").store()
            memories = [Memory(store, "ada"), Memory(store, "ada", root=policy.root)]
            for memory in memories:
                await memory.aremember("Likes tea.")
            done = await api.act(access, "delete-user", {"user": "ada", "confirm": "ada"})
            assert done["entries"] == 2
            assert [await memory.afacts() for memory in memories] == [[], []]
