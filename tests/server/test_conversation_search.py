"""Search over conversations by requests: who finds what, and unusual texts and cursors."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph

import perdure
from perdure.runtime import Runtime
from perdure.server import conversation_search
from perdure.server.app import create_app
from perdure.server.auth.identity import Gate, OpenGate
from perdure.server.config import Http
from perdure.server.resources import ServerState
from perdure.server.state_snapshots import snapshot
from tests.server.hosting import owners, run, tenants

SEARCH = "/chat/search.json"


@pytest.fixture(autouse=True)
def ample_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation_search, "SECONDS", 60.0)


def echo() -> Any:
    builder = StateGraph(MessagesState)
    builder.add_node("echo", lambda state: {"messages": [AIMessage("Noted.")]})
    builder.add_edge(START, "echo")
    return builder.compile()


@asynccontextmanager
async def client_of(gate: Gate | None = None) -> AsyncIterator[httpx.AsyncClient]:
    async with (
        perdure.connect("memory://") as database,
        Runtime(database, {"graph": echo()}, all_tenants=gate is not None) as runtime,
    ):
        app = create_app(None, Http(page=True))
        app.state.perdure = ServerState.over(runtime, gate or OpenGate())
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            yield client


async def say(client: httpx.AsyncClient, thread: str, text: str, who: str | None = None) -> None:
    headers = {} if who is None else {"authorization": who}
    made = await client.post("/threads", json={"thread_id": thread}, headers=headers)
    assert made.status_code == 200, made.text
    body = {"assistant_id": "graph", "input": {"messages": [{"role": "user", "content": text}]}}
    answer = await client.post(f"/threads/{thread}/runs/wait", json=body, headers=headers)
    assert answer.status_code == 200, answer.text


async def found(client: httpx.AsyncClient, words: str, who: str | None = None) -> dict[str, str | None]:
    headers = {} if who is None else {"authorization": who}
    answer = await client.get(SEARCH, params={"q": words}, headers=headers)
    assert answer.status_code == 200, answer.text
    return {row["thread_id"]: row.get("excerpt") for row in answer.json()["found"]}


@pytest.mark.parametrize("gate", [owners(), tenants()], ids=["owners", "tenants"])
def test_only_own_conversations_are_found(gate: Gate) -> None:
    @run
    async def ask() -> None:
        async with client_of(gate) as client:
            await say(client, "hers", "The lighthouse", "ada")
            await say(client, "his", "Another lighthouse", "bob")
            assert await found(client, "lighthouse", "ada") == {"hers": "The lighthouse"}
            assert await found(client, "lighthouse", "bob") == {"his": "Another lighthouse"}
            assert await found(client, "lighthouse", "eve") == {}
            assert (await client.get(SEARCH, params={"q": "lighthouse"})).status_code == 401

    ask()


def test_an_excerpt_has_the_word_also_after_characters_that_grow_when_folded() -> None:
    @run
    async def ask() -> None:
        async with client_of() as client:
            await say(client, "t", "ß" * 200 + "ﬃ sea and land")
            ((_, excerpt),) = (await found(client, "SEA")).items()
            assert excerpt is not None
            assert excerpt == "…sea and land"

    ask()


def test_a_conversation_that_is_removed_meanwhile_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    @run
    async def ask() -> None:
        async with client_of() as client:

            async def removing(caller: Any, row: Any) -> Any:
                if row.thread_id == "gone":
                    await client.delete("/threads/gone")
                return await snapshot(caller, row)

            monkeypatch.setattr(conversation_search, "snapshot", removing)
            for thread in ("gone", "kept"):
                await say(client, thread, "The sea")
            assert await found(client, "sea") == {"kept": "The sea"}

    ask()


@pytest.mark.parametrize(
    "asked", [{"q": " \t"}, {"q": ""}, {"q": "a", "cursor": -1}, {"q": "a", "cursor": 2**63}]
)
def test_a_search_that_cannot_be_made_is_refused(asked: dict[str, Any]) -> None:
    @run
    async def ask() -> None:
        async with client_of() as client:
            answer = await client.get(SEARCH, params=asked)
            assert answer.status_code == 422, answer.text

    ask()
