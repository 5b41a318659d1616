"""A server that is killed in the middle of a task, and started again: the task goes on.

Covers perdure.server.runs.run_values.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from a2a.types import a2a_pb2 as types
from google.protobuf.json_format import MessageToDict

import perdure
from tests.server.hosting import run
from tests.server.talking import reassembled, said, talking, text_of

AGENT = """
import asyncio
from pathlib import Path
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph

def first(state):
    Path("begun").touch()
    return {"messages": [AIMessage("a first word")]}

async def second(state):
    while not Path("go").exists():
        await asyncio.sleep(0.05)
    return {"messages": [AIMessage("the end")]}

builder = StateGraph(MessagesState)
builder.add_sequence([("first", first), ("second", second)])
builder.add_edge(START, "first")
graph = builder.compile()
"""
SERVE = "import sys; from perdure.cli import main; sys.exit(main())"


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[tuple[str, subprocess.Popen[bytes]]]:
    """A server process and its address; it is killed at the end, as by a power cut."""
    log = folder / "log"
    command = [sys.executable, "-c", SERVE, "serve", "agent=./agent.py:graph", "--db", "sqlite:///t.db"]
    with open(log, "wb") as written:  # noqa: ASYNC230
        process = subprocess.Popen(  # noqa: ASYNC220
            [*command, "--port", "0"],
            cwd=folder,
            env={**os.environ, "PYTHONUNBUFFERED": "1", "PERDURE_RUNTIME_LEASE": "3"},
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=written,
        )
    try:
        while not (words := [w for w in log.read_text().split() if w.startswith("http://127.0.0.1:")]):
            assert process.poll() is None, log.read_text()
            await asyncio.sleep(0.05)
        url = words[0].rstrip("/.,;")
        async with httpx.AsyncClient(trust_env=False) as http:
            while (await http.get(f"{url}/ok")).status_code != 200:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        yield url, process
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
@run
async def test_a_task_outlives_its_server(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(AGENT)
    with perdure.connect_sync(f"sqlite:///{tmp_path}/t.db", migrate=True):
        pass
    async with serving(tmp_path) as (url, _), talking(url, "agent", streaming=True) as talk:
        stream = talk.client.send_message(said("go"))
        task = MessageToDict(await anext(stream))["task"]
        seen: list[dict[str, Any]] = []
        while not seen or "artifactUpdate" not in seen[-1]:
            seen.append(MessageToDict(await anext(stream)))
        assert list(reassembled(seen).values()) == ["a first word"]
    # It was killed with the stream open.
    async with serving(tmp_path) as (url, _), talking(url, "agent", streaming=True) as talk:
        found = await talk.get(task["id"])
        assert found["status"]["state"] in ("TASK_STATE_WORKING", "TASK_STATE_SUBMITTED")
        follows = talk.client.subscribe(types.SubscribeToTaskRequest(id=task["id"]))
        events = [MessageToDict(await anext(follows))]
        (tmp_path / "go").touch()
        events += [MessageToDict(one) async for one in follows]
        assert events[-1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"
        assert list(reassembled(events).values())[-1] == "the end"
        assert text_of(await talk.get(task["id"])) == "the end"
        async with httpx.AsyncClient(base_url=url, trust_env=False) as http:
            state = (await http.get(f"/threads/{task['contextId']}/state")).json()
            assert [one["content"] for one in state["values"]["messages"]] == [
                "go",
                "a first word",
                "the end",
            ]
