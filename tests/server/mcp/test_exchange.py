"""Agents as tools, driven by the protocol's own client.

Covers perdure.server.routes.mcp, perdure.server.runs.run_request_headers.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx2
import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from perdure.server.config import Http
from tests.backends import EMPTY
from tests.server.hosting import Served, owners, run, serving, tenants

HELLO = {"messages": [{"role": "user", "content": "hello"}]}
MODES = ("auto", pytest.param("legacy", marks=pytest.mark.slow))


def _echo(state: MessagesState) -> dict[str, Any]:
    return {"messages": [AIMessage(f"echo {state['messages'][-1].text}")]}


def _boom(state: MessagesState) -> dict[str, Any]:
    raise ValueError("the kettle is dry")


def _ask(state: MessagesState) -> dict[str, Any]:
    return {"messages": [AIMessage(str(interrupt("which cup?")))]}


async def _rest(state: MessagesState) -> dict[str, Any]:
    await asyncio.Event().wait()
    return {}


def _only(node: Any) -> Any:
    builder: Any = StateGraph(MessagesState)
    return builder.add_node("turn", node).add_edge(START, "turn").compile()


def graphs() -> dict[str, Any]:
    return {"ask": _only(_ask), "boom": _only(_boom), "chat": _only(_echo), "rest": _only(_rest)}


@asynccontextmanager
async def tools(
    served: Served, user: str | None = None, mode: Any = "auto", **headers: str
) -> AsyncIterator[Client]:
    """A client of the server's tools."""
    if user is not None:
        headers["Authorization"] = f"Bearer {user}"
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(httpx2.AsyncClient(headers=headers, timeout=60))
        transport = streamable_http_client(f"{served.url}/mcp", http_client=http)
        yield await stack.enter_async_context(Client(transport, mode=mode))


@pytest.fixture
def url() -> Iterator[str]:
    with EMPTY["sqlite"]() as url:
        yield url


@pytest.mark.parametrize("mode", MODES)
@run
async def test_each_assistant_is_a_tool_and_a_call_is_a_run(mode: str) -> None:
    async with serving("memory://", of=graphs()) as served, tools(served, mode=mode) as client:
        api = await served.client()
        made = await api.assistants.create("chat", name="waiter", description="Takes orders.")
        await api.assistants.create("chat", name="two words")
        await api.assistants.create("chat", name="boom")
        listed = {tool.name: tool for tool in (await client.list_tools()).tools}
        others = listed.keys() - {"ask", "boom", "chat", "rest", "waiter"}
        assert {name[:-8] for name in others} == {"two_words_", "boom_"}
        assert listed["waiter"].description == "Takes orders."
        assert listed["chat"].input_schema["required"] == ["messages"]
        for name in ("chat", "waiter", made["assistant_id"], *(others - {"boom"})):
            result = await client.call_tool(name, HELLO)
            assert not result.is_error
            assert [one.text for one in result.content] == ["echo hello"]  # type: ignore[union-attr]
            assert [one["content"] for one in result.structured_content["messages"]] == [
                "hello",
                "echo hello",
            ]
        assert await api.threads.count() == 0, "the thread of a call is removed after it"


@run
async def test_a_reply_with_an_image_has_it_as_content() -> None:
    def draw(state: MessagesState) -> dict[str, Any]:
        image = {"type": "image", "base64": "aGVsZA==", "mime_type": "image/png"}
        return {"messages": [AIMessage([{"type": "text", "text": "a cup"}, image])]}

    async with serving("memory://", of={"draw": _only(draw)}) as served, tools(served) as client:
        result = await client.call_tool("draw", HELLO)
        assert [one.type for one in result.content] == ["text", "image"]


@pytest.mark.parametrize("mode", MODES)
@run
async def test_errors_have_names(mode: str) -> None:
    async with serving("memory://", of=graphs()) as served, tools(served, mode=mode) as client:

        async def failed(name: str, arguments: dict[str, Any]) -> str:
            result = await client.call_tool(name, arguments)
            assert result.is_error
            return str(result.content[0].text)  # type: ignore[union-attr]

        assert await failed("boom", HELLO) == "ValueError: the kettle is dry"
        assert await failed("chat", {}) == "InvalidArguments: the arguments: lacks 'messages'"
        wrong = {"messages": [{"role": "a secret", "content": "x"}]}
        said = await failed("chat", wrong)
        assert said.startswith("InvalidArguments: ['messages'][0]['role']: has to be one of")
        assert "a secret" not in said
        assert "which cup?" in await failed("ask", HELLO)
        with pytest.raises(MCPError, match="There is no tool 'waiter'"):
            await client.call_tool("waiter", {})
        assert await (await served.client()).threads.search(status="busy") == []


@pytest.mark.parametrize("mode", MODES)
@run
async def test_a_call_that_is_cancelled_cancels_its_run(mode: str, url: str) -> None:
    async with serving(url, of=graphs()) as served, tools(served, mode=mode) as client:
        api = await served.client()
        call = asyncio.create_task(client.call_tool("rest", HELLO))
        while not (busy := await api.threads.search(status="busy")):
            assert not call.done()
            await asyncio.sleep(0.02)
        (stored,) = await api.runs.list(busy[0]["thread_id"])
        assert stored["status"] in ("pending", "running"), "a call is a run as others are, and is stored"
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        if mode == "legacy":
            # It closes the connection only when the client ends.
            await client.__aexit__(None, None, None)
        while await api.threads.count():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


@pytest.mark.slow
@run
async def test_headers_that_name_how_a_run_is_accepted_do_not_join_calls() -> None:
    fixed = {"Idempotency-Key": "one", "X-Debounce-Ms": "soon", "X-Multitask-Strategy": "reject"}
    async with serving("memory://", of=graphs()) as served, tools(served, **fixed) as client:
        for text in ("hello", "goodbye"):
            result = await client.call_tool("chat", {"messages": [{"role": "user", "content": text}]})
            assert [one.text for one in result.content] == [f"echo {text}"]  # type: ignore[union-attr]


@run
async def test_tools_are_those_of_the_user() -> None:
    for gate in (owners, tenants):
        async with serving("memory://", of=graphs(), gate=gate()) as served:
            api = await served.client("alice")
            made = await api.assistants.create("chat", name="secret_waiter")
            async with tools(served, "alice") as client:
                assert "secret_waiter" in {tool.name for tool in (await client.list_tools()).tools}
                assert not (await client.call_tool("secret_waiter", HELLO)).is_error
            async with tools(served, "bob") as client:
                assert {tool.name for tool in (await client.list_tools()).tools} == set(graphs())
                lasting = f"secret_waiter_{made['assistant_id'][:8]}"
                for name in ("secret_waiter", lasting, made["assistant_id"]):
                    with pytest.raises(MCPError, match="There is no tool"):
                        await client.call_tool(name, HELLO)
            http = await served.http()
            assert (await http.post("/mcp", json={})).status_code == 401


@run
async def test_a_page_of_another_origin_calls_no_tool() -> None:
    async with serving("memory://", of=graphs()) as served:
        http = await served.http()
        refused = await http.post("/mcp", json={}, headers={"Origin": "https://elsewhere.example"})
        assert (refused.status_code, "http.cors" in refused.json()["detail"]) == (403, True)
        # A name that leads here, as its owner has it.
        named = {"Origin": "http://elsewhere.example", "Host": "elsewhere.example"}
        for path in ("/mcp", "/a2a/chat"):
            assert (await http.post(path, json={}, headers=named)).status_code == 403
        near = {"Origin": served.url, "Accept": "application/json, text/event-stream"}
        ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        assert (await http.post("/mcp", json=ping, headers=near)).status_code == 200


@run
async def test_without_the_extra_the_answer_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "perdure.server.mcp.exchange", None)
    async with serving("memory://", of=graphs()) as served:
        refused = await (await served.http()).post("/mcp", json={})
        assert refused.status_code == 501
        assert "pip install 'perdure[mcp]'" in refused.json()["detail"]


@run
async def test_it_can_be_disabled() -> None:
    async with serving("memory://", of=graphs(), http=Http(disable_mcp=True)) as served:
        assert (await (await served.http()).post("/mcp", json={})).status_code == 404
