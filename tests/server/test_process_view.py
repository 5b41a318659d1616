"""The view of the process that serves the page, and who may end it."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

import perdure
from perdure.runtime import Runtime
from perdure.server import process_view
from perdure.server.app import create_app
from perdure.server.auth.identity import Gate, OpenGate
from perdure.server.config import Http
from perdure.server.resources import ServerState
from tests.server.hosting import owners, run
from tests.server.typists import chat

KILL = "/chat/process/kill"


@asynccontextmanager
async def client_of(
    *, development: bool = True, gate: Gate | None = None, peer: str = "127.0.0.1"
) -> AsyncIterator[httpx.AsyncClient]:
    async with perdure.connect("memory://") as database, Runtime(database, chat()) as runtime:
        app = create_app(None, Http(page=True), development=development)
        app.state.perdure = ServerState.over(runtime, gate or OpenGate())
        transport = httpx.ASGITransport(app, client=(peer, 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            yield client


@pytest.fixture
def died(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The processes that were ended; this one goes on."""
    ended: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: ended.append(pid))
    return ended


@pytest.fixture
def replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that another one replaces."""
    monkeypatch.setattr(process_view, "parent_process", object)


@pytest.mark.usefixtures("replaced")
def test_a_replaced_process_is_shown_and_ended(died: list[int]) -> None:
    before = int(time.time() * 1000)

    @run
    async def ask() -> None:
        async with client_of() as client:
            shown = (await client.get("/chat/process.json")).json()
            # A fork has the time of its own start, not that of what it was forked from.
            assert shown["started_at"] >= before
            assert (shown["pid"], shown["can_kill"]) == (os.getpid(), True)
            assert (await client.post(KILL, json={})).status_code == 200

    ask()
    assert died == [os.getpid()]


@pytest.mark.usefixtures("replaced")
def test_nobody_else_may_end_it(died: list[int]) -> None:
    @run
    async def ask() -> None:
        async with client_of(development=False) as client:
            assert (await client.get("/chat/process.json")).status_code == 404
            assert (await client.post(KILL, json={})).status_code in (404, 405)
        async with client_of(peer="192.0.2.7") as client:
            assert (await client.get("/chat/process.json")).json()["can_kill"] is False
            assert (await client.post(KILL, json={})).status_code == 403
        async with client_of(gate=owners()) as client:
            assert (await client.get("/chat/process.json")).status_code == 401
            assert (await client.post(KILL, json={})).status_code == 401
        async with client_of() as client:
            other = {"sec-fetch-site": "same-site"}
            assert (await client.post(KILL, json={}, headers=other)).status_code == 403
            form = await client.post(KILL, content="{}", headers={"content-type": "text/plain"})
            assert form.status_code == 422

    ask()
    assert died == []


def test_a_process_without_another_is_not_ended(died: list[int]) -> None:
    @run
    async def ask() -> None:
        async with client_of() as client:
            assert (await client.get("/chat/process.json")).json()["can_kill"] is False
            answer = await client.post(KILL, json={})
            assert answer.status_code == 403
            assert "--workers 2, or perdure demo" in answer.json()["detail"]

    ask()
    assert died == []
