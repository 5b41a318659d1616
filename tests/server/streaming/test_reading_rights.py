"""Streams of a thread over HTTP end once their user may no longer read the thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from perdure.server.auth.identity import User
from perdure.server.streaming import reading_rights
from tests.server.acceptance.saying import said
from tests.server.acceptance.serving import run
from tests.server.listening import Place, Revocable, place

STREAMS = ("stream", "stream/events")


async def open_stream(http: httpx.AsyncClient, thread_id: str, named: str) -> httpx.Response:
    body = {"channels": ["lifecycle"]} if named == "stream/events" else None
    method = "GET" if body is None else "POST"
    request = http.build_request(method, f"/threads/{thread_id}/{named}", json=body)
    opened = await http.send(request, stream=True)
    assert opened.status_code == 200, await opened.aread()
    return opened


async def _until_cut_off(here: Place, gate: Revocable, named: str, *changed: tuple[str, Any]) -> int:
    """Change the gate under an open stream; return the status of a second request once it is cut off."""
    gate.user, gate.conditions = User("ada", ""), None
    async with here.client() as client, here.http() as http:
        thread_id = (await client.threads.create())["thread_id"]
        opened = await open_stream(http, thread_id, named)
        try:
            for name, value in changed:
                setattr(gate, name, value)
            # A stream that is cut off, and not ended, makes clients connect again.
            with pytest.raises(httpx.RemoteProtocolError):
                await asyncio.wait_for(opened.aread(), 60)
        finally:
            await opened.aclose()
        return (await http.get(f"/threads/{thread_id}")).status_code


@run
async def _expires(url: str, named: str) -> None:
    gate = Revocable()
    async with place(url, gate=gate) as here:
        assert await _until_cut_off(here, gate, named, ("user", None)) == 401
        assert await _until_cut_off(here, gate, named, ("user", User("bob", ""))) == 200
        assert await _until_cut_off(here, gate, named, ("conditions", {"owner": "ada"})) == 404


@pytest.mark.parametrize("named", STREAMS)
def test_a_stream_of_a_thread_does_not_outlive_its_token(
    named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading_rights, "RECHECK_S", 0.05)
    _expires(f"sqlite:///{tmp_path / 'threads.db'}", named)


@run
async def _stays(url: str) -> None:
    async with place(url, gate=Revocable()) as here, here.client() as client, here.http() as http:
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


def test_a_user_who_may_read_keeps_the_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading_rights, "RECHECK_S", 0.001)
    _stays(f"sqlite:///{tmp_path / 'threads.db'}")
