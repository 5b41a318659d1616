"""Streams, and requests that wait for a run, end once their user may no longer read the thread."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import HTTPConnection

from perdure.server.auth.filters import Filter
from perdure.server.auth.identity import User
from perdure.server.config import RequestLimits
from tests.server.acceptance.saying import said
from tests.server.acceptance.serving import eventually, run
from tests.server.listening import Place, Revocable, place

SOON = RequestLimits(recheck=0.05)
THREAD_STREAMS = ("stream", "stream/events")
RUN_STREAMS = ("runs/stream", "runs/wait", "join", "join/stream", "alone")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'threads.db'}"


class Creator(Revocable):
    """A gate whose user may create runs, and read no thread."""

    async def authorize(self, user: User, resource: str, action: str, value: dict[str, Any]) -> Filter | None:
        if action == "read":
            return {"owner": "nobody"}
        return None


class Losing(Revocable):
    """A gate whose user loses a thread just after the request that may read it."""

    loses = False

    async def authorize(self, user: User, resource: str, action: str, value: dict[str, Any]) -> Filter | None:
        if action != "read" or not self.loses:
            return None
        if self.conditions is None:
            self.conditions = {"owner": "nobody"}
            return None
        return self.conditions


class Expiring(Revocable):
    """A gate whose token expires, and is accepted for a moment longer."""

    def __init__(self, until: float, leeway: float) -> None:
        super().__init__()
        self.user = User("ada", "", (), {"exp": until})
        self.leeway = leeway
        self.checks = 0

    async def authenticate(self, request: HTTPConnection) -> User:
        self.checks += 1
        assert self.user is not None
        if time.time() > self.user["exp"] + self.leeway:
            self.user = None
        return await super().authenticate(request)


async def open_stream(http: httpx.AsyncClient, thread_id: str, named: str) -> httpx.Response:
    body = {"channels": ["lifecycle"]} if named == "stream/events" else None
    method = "GET" if body is None else "POST"
    return await _open(http, method, f"/threads/{thread_id}/{named}", body)


async def _open(http: httpx.AsyncClient, method: str, path: str, body: Any = None) -> httpx.Response:
    opened = await http.send(http.build_request(method, path, json=body), stream=True)
    assert opened.status_code == 200, await opened.aread()
    return opened


async def open_run(http: httpx.AsyncClient, thread_id: str, named: str) -> httpx.Response:
    """Begin a run that takes a minute, and a request that lasts as long; it would cancel the run when its
    client disconnects."""
    asked = {"assistant_id": "slow", "input": said("60"), "on_disconnect": "cancel"}
    if named == "alone":
        return await _open(http, "POST", "/runs/stream", {**asked, "on_completion": "keep"})
    if named in ("runs/stream", "runs/wait"):
        return await _open(http, "POST", f"/threads/{thread_id}/{named}", asked)
    made = await http.post(f"/threads/{thread_id}/runs", json=asked)
    path = f"/threads/{thread_id}/runs/{made.json()['run_id']}"
    return await _open(http, "GET", f"{path}/{named.removeprefix('join/')}?cancel_on_disconnect=true")


async def _cut_off(gate: Revocable, opened: httpx.Response, **changed: Any) -> None:
    """Change the gate under an open response, which is cut off then."""
    try:
        for name, value in changed.items():
            setattr(gate, name, value)
        # A stream that is cut off, and not ended, makes clients connect again.
        with pytest.raises(httpx.RemoteProtocolError):
            await asyncio.wait_for(opened.aread(), 60)
    finally:
        await opened.aclose()


async def _end(here: Place, thread_id: str) -> None:
    """Cancel the run of a thread, for which a server that stops would wait."""
    runtime = here.host.runtime.for_tenant("")
    (latest,) = await runtime.messages(thread_id, limit=1)
    assert await runtime.cancel(thread_id, latest.message.id)


CHANGES: tuple[tuple[dict[str, Any], int], ...] = (
    ({"user": None}, 401),
    ({"user": User("bob", "")}, 200),
    ({"conditions": {"owner": "ada"}}, 404),
)


@run
async def _expires(url: str, named: str) -> None:
    gate = Revocable()
    async with place(url, gate=gate, limits=SOON) as here, here.client() as client, here.http() as http:
        for changed, status in CHANGES:
            gate.user, gate.conditions = User("ada", ""), None
            thread_id = (await client.threads.create())["thread_id"]
            await _cut_off(gate, await open_stream(http, thread_id, named), **changed)
            assert (await http.get(f"/threads/{thread_id}")).status_code == status


@pytest.mark.parametrize("named", THREAD_STREAMS)
def test_a_stream_of_a_thread_does_not_outlive_its_token(named: str, url: str) -> None:
    _expires(url, named)


@run
async def _run_expires(url: str, named: str) -> None:
    gate = Revocable()
    async with place(url, gate=gate, limits=SOON) as here, here.client() as client, here.http() as http:
        for changed, _ in CHANGES:
            gate.user, gate.conditions = User("ada", ""), None
            thread_id = (await client.threads.create())["thread_id"]
            opened = await open_run(http, thread_id, named)
            _, _, thread_id, _, run_id = opened.headers["content-location"].split("/")
            await _cut_off(gate, opened, **changed)
            # The loss of a right is not a disconnection: the run goes on.
            gate.user, gate.conditions = User("ada", ""), None
            assert (await client.runs.get(thread_id, run_id))["status"] in ("running", "pending")
            await client.runs.cancel(thread_id, run_id, wait=True)


@pytest.mark.parametrize("named", RUN_STREAMS)
def test_a_stream_of_a_run_does_not_outlive_its_token(named: str, url: str) -> None:
    _run_expires(url, named)


@run
async def _moves(url: str, named: str) -> None:
    gate = Revocable()
    gate.conditions = {"owner": "ada"}
    async with place(url, gate=gate, limits=SOON) as here, here.client() as client, here.http() as http:
        thread_id = (await client.threads.create(metadata={"owner": "ada"}))["thread_id"]
        is_of_run = named == "join"
        opened = await (open_run if is_of_run else open_stream)(http, thread_id, named)
        await here.host.runtime.for_tenant("").threads.change(thread_id, {"owner": "bob"})
        await _cut_off(gate, opened)
        # The thread is not there for its former owner.
        assert (await http.get(f"/threads/{thread_id}")).status_code == 404
        if is_of_run:
            await _end(here, thread_id)


@pytest.mark.parametrize("named", ["join", *THREAD_STREAMS])
def test_a_stream_ends_when_its_thread_gets_another_owner(named: str, url: str) -> None:
    _moves(url, named)


@pytest.mark.parametrize("named", ["join", "join/stream"])
@run
async def test_a_stream_ends_whose_thread_is_lost_while_it_opens(named: str, url: str) -> None:
    gate = Losing()
    async with place(url, gate=gate, limits=SOON) as here, here.client() as client, here.http() as http:
        thread_id = (await client.threads.create())["thread_id"]
        gate.loses = True
        opened = await open_run(http, thread_id, named)
        await _cut_off(gate, opened)
        gate.loses = False
        await _end(here, thread_id)


@run
async def _creates(url: str) -> None:
    gate = Creator()
    async with place(url, gate=gate, limits=SOON) as here, here.http() as http:
        thread_id = "00000000-0000-4000-8000-000000000001"
        asked = {"assistant_id": "slow", "input": said("1"), "if_not_exists": "create"}
        opened = await _open(http, "POST", f"/threads/{thread_id}/runs/wait", asked)
        assert "rested" in (await opened.aread()).decode()
        await _cut_off(gate, await open_run(http, thread_id, "runs/wait"), user=None)
        await _end(here, thread_id)


def test_a_user_who_may_only_create_runs_keeps_the_stream(url: str) -> None:
    _creates(url)


@run
async def _at_expiry(url: str) -> None:
    gate = Expiring(time.time() + 2.0, leeway=0.5)
    # Long before the first check at an interval, and while the token is accepted for a moment longer.
    async with place(url, gate=gate, limits=RequestLimits(recheck=3600)) as here, here.http() as http:
        thread_id = (await http.post("/threads", json={})).json()["thread_id"]
        opened = await open_run(http, thread_id, "runs/stream")
        before = gate.checks
        await _cut_off(gate, opened)
        assert gate.user is None
        assert gate.checks - before == 2
        await _end(here, thread_id)


def test_a_token_is_checked_when_it_expires(url: str) -> None:
    _at_expiry(url)


def _message(context_id: str, text: str) -> dict[str, Any]:
    part = {"messageId": str(uuid.uuid4()), "role": "ROLE_USER", "parts": [{"text": text}]}
    return {"message": {**part, "contextId": context_id}}


@run
async def _tasks(url: str, method: str) -> None:
    gate, context_id = Revocable(), str(uuid.uuid4())
    headers = {"A2A-Version": "1.0"}
    async with place(url, gate=gate, limits=SOON) as here, here.http() as http:
        asked = {"jsonrpc": "2.0", "id": 1, "method": method, "params": _message(context_id, "60")}
        sending = asyncio.create_task(http.post("/a2a/slow", json=asked, headers=headers))
        runtime = here.host.runtime.for_tenant("")

        async def begun() -> bool:
            return bool(await runtime.messages(context_id, limit=1))

        await eventually(begun)
        gate.conditions = {"owner": "ada"}
        if method == "SendMessage":
            refused = await asyncio.wait_for(sending, 60)
            assert refused.status_code == 403, refused.text
        else:
            with pytest.raises(httpx.RemoteProtocolError):
                await asyncio.wait_for(sending, 60)
        (message,) = await runtime.messages(context_id, limit=1)
        assert not message.is_over or message.run is None or message.run.state == "open"
        await _end(here, context_id)


@pytest.mark.parametrize("method", ["SendMessage", "SendStreamingMessage"])
def test_a_task_is_not_told_to_a_user_without_the_right_to_it(method: str, url: str) -> None:
    _tasks(url, method)


@run
async def _calls(url: str) -> None:
    gate = Revocable()
    async with place(url, gate=gate, limits=SOON) as here, here.http() as http:
        arguments = {"messages": [{"role": "user", "content": "60"}]}
        params = {"name": "slow", "arguments": arguments}
        asked = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        headers = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2025-06-18"}
        calling = asyncio.create_task(http.post("/mcp", json=asked, headers=headers))
        runtime = here.host.runtime.for_tenant("")

        async def rows() -> int:
            return len([row async for row in runtime.threads.index.search()])

        async def begun() -> bool:
            return await rows() == 1

        async def removed() -> bool:
            return await rows() == 0

        await eventually(begun)
        gate.user = None
        with pytest.raises(httpx.RemoteProtocolError):
            await asyncio.wait_for(calling, 60)
        await eventually(removed)


def test_the_call_of_a_tool_ends_with_the_right_to_its_result(url: str) -> None:
    _calls(url)


@run
async def _stays(url: str) -> None:
    gate, often = Revocable(), RequestLimits(recheck=0.001)
    async with (
        place(url, gate=gate, limits=often) as here,
        here.client() as client,
        here.http() as http,
    ):
        thread_id = (await client.threads.create())["thread_id"]
        opened = await open_stream(http, thread_id, "stream")
        try:
            await client.runs.wait(thread_id, "chat", input=said("hi"))
            lines = opened.aiter_lines()
            assert await asyncio.wait_for(_named(lines, "end"), 60)
        finally:
            await opened.aclose()


async def _named(lines: AsyncIterator[str], event: str) -> bool:
    async for line in lines:
        if line == f"event: {event}":
            return True
    return False


def test_a_user_who_may_read_keeps_the_stream(url: str) -> None:
    _stays(url)
