"""A path in front of every route, as ``http.mount_prefix`` sets it.

Covers perdure.server.hosting.mounting, perdure.web.prefixes.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from langgraph_sdk import get_client
from websockets.asyncio.client import connect

from tests.server.served_processes import process_of
from tests.server.test_isolation import routes_of

PROJECT = """\
import asyncio

from fastapi import FastAPI
from fastapi.responses import RedirectResponse
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph


async def turn(state):
    await asyncio.sleep(0.2)
    return {"messages": [AIMessage("done")]}


graph = StateGraph(MessagesState).add_node("turn", turn).add_edge(START, "turn").compile()
app = FastAPI()


@app.get("/own")
async def own() -> str:
    return "own"


@app.get("/leads")
async def leads():
    return RedirectResponse("/own")
"""
SAYS: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
RUN = {"assistant_id": "agent", "input": SAYS, "if_not_exists": "create", "stream_resumable": True}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("prefixed")
    (folder / "prefixed_agent.py").write_text(PROJECT)
    config = {
        "graphs": {"agent": "./prefixed_agent.py:graph"},
        "http": {"mount_prefix": "/my/agents", "app": "./prefixed_agent.py:app"},
    }
    (folder / "langgraph.json").write_text(json.dumps(config))
    with process_of(folder, "--dev") as address:
        yield address


@pytest.fixture
def http(url: str) -> Iterator[httpx.Client]:
    root = f"http://{urlsplit(url).netloc}"
    with httpx.Client(base_url=root, timeout=60, trust_env=False) as client:
        yield client


def test_the_address_that_is_told_has_it(url: str) -> None:
    assert urlsplit(url).path == "/my/agents"


def test_every_route_is_below_it_and_nowhere_else(http: httpx.Client) -> None:
    from perdure.server.app import create_app
    from perdure.server.config import Http

    health = {"/", "/ok", "/live", "/ready", "/metrics"}
    every = routes_of(create_app(None, Http(page=True, inspector=True)).routes)
    # These are routes of the application, which comes before the pages' redirects to a slash.
    own = {"/", "/chat", "/inspect"}
    paths = {path for verb, path in every if verb == "GET" and "{" not in path} - own
    for path in {*paths, "/own", "/chat/", "/inspect/"}:
        with http.stream("GET", f"/my/agents{path}", follow_redirects=True) as below:
            # No graph of this server has a memory, which the route itself says.
            assert below.status_code in (200, 400, 422) or path == "/memory", path
        beside = http.get(path)
        assert (beside.status_code == 404) is (path not in health), (path, beside.text)
    assert "no graph" in http.get("/my/agents/memory").json()["detail"]
    for path in ("/my/agentsx/ok", "/my", "/my/agents/none"):
        assert http.get(path).status_code == 404


@pytest.mark.parametrize("way", ["stream", "wait"])
def test_the_addresses_of_a_run_have_it_and_lead_to_it(http: httpx.Client, way: str) -> None:
    answer = http.post(f"/my/agents/threads/t {way}/runs/{way}", json=RUN)
    assert answer.status_code == 200, answer.text
    for name in ("location", "content-location"):
        address = answer.headers[name]
        assert address.startswith(f"/my/agents/threads/t%20{way}/runs/")
        found = http.get(address, headers={"Last-Event-ID": "-1"})
        assert found.status_code == 200, (address, found.text)
        # As clients of LangGraph's do, which append it to their base URL.
        assert http.get(f"/my/agents{address}").status_code == 200


def test_a_redirect_of_the_application_stays_below_it(http: httpx.Client) -> None:
    answer = http.get("/my/agents/leads", follow_redirects=True)
    assert (answer.url.path, answer.json()) == ("/my/agents/own", "own")


def test_a_card_has_it(url: str, http: httpx.Client) -> None:
    assert f"{url}/a2a/" in http.get("/my/agents/.well-known/agent-card.json").text


def test_langgraph_s_client_works_below_it(url: str) -> None:
    async def asked() -> None:
        async with get_client(url=url, api_key=None) as client:
            thread = await client.threads.create()
            parts = [part async for part in client.runs.stream(thread["thread_id"], "agent", input=SAYS)]
            assert parts[-1].event == "end" or parts[-1].data["messages"][-1]["content"] == "done"
            values: Any = await client.runs.wait(thread["thread_id"], "agent", input=SAYS)
            assert len(values["messages"]) == 4
        path = f"/threads/{thread['thread_id']}/stream/events"
        async with connect(url.replace("http", "ws", 1) + path) as socket:
            command = {"id": 1, "method": "subscription.subscribe", "params": {"channels": ["values"]}}
            await socket.send(json.dumps(command))
            assert json.loads(await socket.recv())["type"] == "success"

    asyncio.run(asked())
