"""The platform's example: memories, questions and users, over A2A and MCP with their own clients."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client

import perdure
from examples.platform.app import create_app, token
from tests.server.applications import listening
from tests.server.hosting import run
from tests.server.talking import talking, text_of


@pytest.mark.slow
@run
async def test_agents_of_a_platform(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'platform.db'}"
    async with perdure.connect(url, migrate=True):
        pass
    app = create_app(url)
    async with AsyncExitStack() as stack:
        base = await stack.enter_async_context(listening(app))
        ada, bob = token("ada"), token("bob")
        guide = await stack.enter_async_context(talking(base, "guide", user=ada))
        assert text_of(await guide.task("I drink green tea")) == "Noted."
        reply = ""
        while "green tea" not in reply:
            reply = text_of(await guide.task("What do I drink?"))
        others = await stack.enter_async_context(talking(base, "guide", user=bob))
        assert text_of(await others.task("What do I drink?")) == "You have not told me yet."
        desk = await stack.enter_async_context(talking(base, "desk", user=ada))
        asked = await desk.task("a table for two")
        assert asked["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
        assert text_of(await desk.task("yes", task=asked["id"])) == "a table for two is booked."
        http = await stack.enter_async_context(
            httpx2.AsyncClient(headers={"Authorization": f"Bearer {ada}"}, timeout=60)
        )
        client = await stack.enter_async_context(
            Client(streamable_http_client(f"{base}/mcp", http_client=http))
        )
        assert {tool.name for tool in (await client.list_tools()).tools} == {"desk", "guide"}
        message: Any = {"messages": [{"role": "user", "content": "hello"}]}
        result = await client.call_tool("guide", message)
        assert [one.text for one in result.content] == ["Noted."]  # type: ignore[union-attr]
        nobody = httpx.AsyncClient(base_url=base, trust_env=False)
        assert (await (await stack.enter_async_context(nobody)).post("/mcp", json={})).status_code == 401


@pytest.mark.slow
@run
async def test_a_booking_that_nobody_agrees_to_is_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLATFORM_ANSWER_WITHIN", "1")
    url = f"sqlite:///{tmp_path / 'platform.db'}"
    async with perdure.connect(url, migrate=True):
        pass
    async with listening(create_app(url)) as base, talking(base, "desk", user=token("ada")) as desk:
        task = await desk.task("a table for two")
        assert task["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
        while task["status"]["state"] != "TASK_STATE_COMPLETED":
            await asyncio.sleep(0.1)
            task = await desk.get(task["id"])
        assert text_of(task) == "Nothing is booked."
