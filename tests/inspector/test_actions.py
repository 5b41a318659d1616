"""Actions of the inspector: behind their permissions, through the runtime, in the audit log."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

import perdure
from perdure.database.base import handle_of
from perdure.inspector import actions
from perdure.inspector.access import PERMISSIONS, LocalAccess
from perdure.inspector.actions import ACTIONS
from perdure.inspector.web import create_app
from perdure.runtime import Runtime
from perdure.runtime.tickets import Ticket
from tests.inspector import staging

BASE = "http://127.0.0.1:8770"


def within_a_minute(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an asynchronous test."""

    @functools.wraps(test)
    def run(*given: Any, **named: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*given, **named), 60))

    return run


class Site:
    """An inspector over an open database with a runtime, in this process."""

    def __init__(self, client: httpx.AsyncClient, runtime: Runtime, database: perdure.Database) -> None:
        self.client, self.runtime, self.database = client, runtime, database

    async def act(self, action: str, /, **given: Any) -> Any:
        response = await self.client.post(f"/inspect/api/actions/{action}", json={"id": "t", **given})
        assert response.status_code == 200, response.text
        return response.json()

    async def refused(self, action: str, status: int, /, **given: Any) -> str:
        response = await self.client.post(f"/inspect/api/actions/{action}", json={"id": "t", **given})
        assert response.status_code == status, response.text
        return str(response.json()["detail"])

    async def get(self, view: str, **asked: Any) -> Any:
        response = await self.client.get(f"/inspect/api/{view}", params=asked)
        assert response.status_code == 200, response.text
        return response.json()

    async def log(self) -> list[tuple[str, str]]:
        return [(each["action"], each["outcome"]) for each in (await self.get("log"))["entries"]]

    async def ended(self, run_id: str) -> None:
        standing = await self.runtime.find("t", run_id)
        assert standing is not None
        await self.runtime.wait(Ticket("t", standing.message.seq, run_id, False, ""), 20)

    async def say(self, text: str) -> None:
        message = {"role": "user", "content": text}
        ticket = await self.runtime.submit("t", {"messages": [message], "notes": [], "facts": {}})
        await self.runtime.wait(ticket, 20)


@asynccontextmanager
async def site(allowed: frozenset[str] = frozenset(PERMISSIONS)) -> AsyncIterator[Site]:
    async with (
        perdure.connect("memory://") as database,
        Runtime(database, staging.graph().compile()) as runtime,
    ):
        access = LocalAccess(handle_of(database), "", runtime=runtime, allowed=allowed)
        transport = httpx.ASGITransport(app=create_app(access), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url=BASE) as client:
            yield Site(client, runtime, database)


@within_a_minute
async def test_each_action_needs_its_own_permission() -> None:
    for name, action in ACTIONS.items():
        async with site(frozenset(PERMISSIONS) - {action.permission}) as found:
            await found.say("tides")
            before = await found.database.export("t")
            assert f"may not {action.permission}" in await found.refused(name, 403)
            assert await found.database.export("t") == before
            assert await found.log() == []


@within_a_minute
async def test_an_edit_forks_and_leaves_the_original() -> None:
    async with site() as found:
        await found.say("tides")
        page = (await found.get("timeline", id="t"))["checkpoints"]
        past = next(each for each in page if each["step"] == 1)
        message = {"role": "user", "content": "the moon"}
        made = await found.act(
            "edit", checkpoint=past["checkpoint_id"], values={"messages": [message]}, as_node="plan"
        )
        after = await found.get("checkpoint", id="t")
        assert after["checkpoint_id"] == made["checkpoint_id"]
        assert after["parent_id"] == past["checkpoint_id"]
        assert len((await found.get("branches", id="t"))["branches"]) == 3
        kept = {each["checkpoint_id"] for each in (await found.get("timeline", id="t"))["checkpoints"]}
        assert kept > {each["checkpoint_id"] for each in page}
        ran = await found.act("run", checkpoint=made["checkpoint_id"])
        await found.ended(ran["run_id"])
        notes = (await found.get("channel", id="t", channel="notes"))["items"]
        assert [item["value"] for item in notes] == ["left", "right"]
        assert await found.log() == [("run", "done"), ("edit", "done")]


@within_a_minute
async def test_an_interrupt_is_answered() -> None:
    async with site() as found:
        await found.say("send it")
        assert (await found.get("thread", id="t"))["status"] == "interrupted"
        ran = await found.act("answer", value="yes")
        await found.ended(ran["run_id"])
        messages = (await found.get("channel", id="t", channel="messages"))["items"]
        assert messages[-1]["value"]["value"]["content"] == "sent: yes"
        # The second answer has nothing to answer.
        await found.refused("answer", 409, value="no")
        assert await found.log() == [("answer", "failed: NotWaiting"), ("answer", "done")]


@within_a_minute
async def test_tags_come_and_go_and_a_thread_is_exported_and_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    async with site() as found:
        await found.say("tides")
        tagged = await found.act("tag", name="approved")
        assert await found.database.tags("t") == {"approved": tagged["checkpoint_id"]}
        exported = await found.act("export")
        assert exported["format"] == "perdure.thread/1"
        assert exported["tags"] == {"approved": tagged["checkpoint_id"]}
        monkeypatch.setattr(actions, "EXPORT_MAX", 100)
        assert "export it with `perdure export`" in await found.refused("export", 422)
        monkeypatch.undo()
        await found.act("untag", name="approved")
        assert await found.database.tags("t") == {}
        assert "cannot be brought back" in await found.refused("delete", 422)
        await found.act("delete", confirm="t")
        assert (await found.client.get("/inspect/api/thread", params={"id": "t"})).status_code == 404
        log = (await found.get("log"))["entries"]
        assert [each["action"] for each in log] == ["delete", "delete", "untag", "export", "export", "tag"]
        assert log[-1]["details"] == {"name": "approved", "checkpoint_id": tagged["checkpoint_id"]}
        assert all(each["who"] == "local" and each["thread_id"] == "t" for each in log)
        assert "tides" not in str(log)


@pytest.mark.parametrize(
    ("action", "given", "status"),
    [
        ("edit", {}, 422),
        ("edit", {"values": {"messages": []}, "as_node": "none"}, 422),
        ("edit", {"values": {"messages": []}, "checkpoint": "none"}, 404),
        ("run", {"checkpoint": "none"}, 404),
        ("answer", {}, 422),
        ("cancel", {"run_id": "none"}, 404),
        ("cancel", {"run_id": "none", "rollback": "yes"}, 422),
        ("retry", {"reply": "one"}, 422),
        ("retry", {"reply": 7}, 404),
        ("discard", {"run_id": "none"}, 404),
        ("tag", {"name": 7}, 422),
        ("tag", {"name": "a", "checkpoint": "none"}, 404),
        ("untag", {"name": "none"}, 404),
        ("unheard-of", {}, 404),
    ],
)
@within_a_minute
async def test_what_cannot_be_done_changes_nothing(action: str, given: dict[str, Any], status: int) -> None:
    async with site() as found:
        await found.say("tides")
        before = await found.database.export("t")
        await found.refused(action, status, **given)
        assert await found.database.export("t") == before


@pytest.mark.parametrize("value", ["cut \ud83d", {"\ud83d": 1}, float("nan")])
@within_a_minute
async def test_an_edit_that_no_client_could_read_again_changes_nothing(value: Any) -> None:
    async with site() as found:
        await found.say("tides")
        before = await found.database.export("t")
        body = json.dumps({"id": "t", "values": {"notes": [value]}}).encode()
        response = await found.client.post(
            "/inspect/api/actions/edit", content=body, headers={"Content-Type": "application/json"}
        )
        assert response.status_code == 422, response.text
        assert "['values']['notes'][0]" in response.json()["detail"]
        assert await found.database.export("t") == before


@within_a_minute
async def test_a_form_of_another_page_is_no_action() -> None:
    async with site() as found:
        await found.say("tides")
        path = "/inspect/api/actions/delete"
        body = '{"id": "t", "confirm": "t"}'
        plain = await found.client.post(path, content=body, headers={"content-type": "text/plain"})
        assert plain.status_code == 422
        foreign = {"content-type": "application/json", "sec-fetch-site": "cross-site"}
        assert (await found.client.post(path, content=body, headers=foreign)).status_code == 403
        assert await found.database.tags("t") == {}
        assert (await found.get("thread", id="t"))["has_state"]
