"""The text of an exception of an application: clients are told it by a server in development only."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

import perdure
from perdure.server.config import load
from perdure.server.hosting.process import application
from perdure.server.hosting.startup import open_state
from tests.server.acceptance.serving import run
from tests.server.listening import heard, start, until_ended
from tests.server.ports import served
from tests.server.test_protocol import EVERYTHING, new

SECRET = "postgresql://admin:hunter2@db"
GRAPH = f"""
from langgraph.graph import START, MessagesState, StateGraph
from langchain_core.tools import tool
from langgraph.prebuilt import ToolNode
from langchain_core.messages import AIMessage

def fails(state):
    raise ConnectionError({SECRET!r})

@tool
def look() -> str:
    "Look."
    raise ConnectionError({SECRET!r})

def calls(state):
    return {{"messages": [AIMessage("", tool_calls=[{{"name": "look", "args": {{}}, "id": "1"}}])]}}

inner = StateGraph(MessagesState).add_node("fail", fails).add_edge(START, "fail").compile()
graph = StateGraph(MessagesState).add_node("below", inner).add_edge(START, "below").compile()
tools = (
    StateGraph(MessagesState)
    .add_node("calls", calls)
    .add_node("tools", ToolNode([look], handle_tool_errors=False))
    .add_edge(START, "calls").add_edge("calls", "tools").compile()
)
"""
MODES = ["values", "updates", "tasks", "checkpoints", "debug", "messages-tuple", "events", "custom"]


@pytest.mark.parametrize("graph", ["graph", "tools"])
@pytest.mark.parametrize("development", [True, False])
@run
async def test_what_failed_is_told_by_its_kind_and_in_development_by_its_text(
    tmp_path: Path, development: bool, graph: str, nothing_is_set: None
) -> None:
    module = f"fails_{graph}_{development}".lower()
    (tmp_path / f"{module}.py").write_text(GRAPH)
    (tmp_path / "perdure.toml").write_text(
        f'[graphs]\nit = "./{module}.py:{graph}"\n[http]\ninspector = true\n'
    )
    database = f"sqlite:///{tmp_path / 'threads.db'}"
    async with perdure.connect(database, migrate=True):
        pass
    config = load(file=tmp_path / "perdure.toml", db=database, development=development, environ={})
    body: dict[str, Any] = {
        "assistant_id": "it",
        "input": {"messages": [{"role": "user", "content": "hi"}]},
        "if_not_exists": "create",
    }

    # In a task of its own: what is set at the start is set for it.
    async def asked() -> dict[str, str]:
        told: dict[str, str] = {}
        async with (
            open_state(config) as host,
            application(config, host) as app,
            served(app, host) as url,
            httpx.AsyncClient(base_url=url, timeout=60) as http,
        ):
            told["wait"] = (await http.post("/threads/a/runs/wait", json=body)).text
            stream = {**body, "stream_mode": MODES, "stream_subgraphs": True, "stream_resumable": True}
            told["stream"] = (await http.post("/threads/b/runs/stream", json=stream)).text
            thread_id = new()
            following = asyncio.create_task(until_ended(heard(http, thread_id, channels=EVERYTHING)))
            await start(http, thread_id, "it", body["input"])
            told["events"] = str(await following)
            for path in ("", "/state?subgraphs=true", "/history", "/runs"):
                told[path] = (await http.get(f"/threads/a{path}")).text
            told["search"] = (await http.post("/threads/search", json={})).text
            run_id = (await http.get("/threads/b/runs")).json()[0]["run_id"]
            told["join"] = (await http.get(f"/threads/b/runs/{run_id}/join")).text
            joined = await http.get(f"/threads/b/runs/{run_id}/stream", headers={"Last-Event-ID": "-1"})
            told["joined"] = joined.text
            for view in ("threads", "thread", "timeline", "checkpoint", "messages", "queue"):
                answer = await http.get(f"/inspect/api/{view}", params={"id": "a"})
                assert answer.status_code == 200, (view, answer.text)
                told[f"inspect {view}"] = answer.text
        return told

    told = await asyncio.create_task(asked())
    assert all(
        "ConnectionError" in told[name] for name in ("wait", "stream", "events", "", "join", "/history")
    )
    if development:
        shown = ("wait", "stream", "events", "", "join", "inspect timeline", "inspect checkpoint")
        assert [name for name in shown if SECRET not in told[name]] == []
    else:
        assert [name for name, text in told.items() if SECRET in text] == []
        assert "The graph failed (ConnectionError); the server's log says where." in told["wait"]
