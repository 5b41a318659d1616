"""Nodes that are plain functions run at once, as many as the server has runs, and hold up nothing else.

Covers perdure.runtime.worker.node_threads.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path

import httpx
import pytest
from langgraph_sdk import get_client

from tests.runtime.graphs import eventually
from tests.server.served_processes import process_of

CODE = """
import pathlib, time
from langgraph.graph import START, MessagesState, StateGraph
from langgraph_sdk import Auth

auth = Auth()


@auth.authenticate
def who(authorization: str | None) -> str:
    return "ada"


def block(state: MessagesState) -> dict:
    end = time.monotonic() + 60
    here = pathlib.Path("here")
    (here / str(time.monotonic_ns())).touch()
    while not pathlib.Path("go").exists() and time.monotonic() < end:
        time.sleep(0.05)
    return {"messages": [("ai", "done")]}


graph = StateGraph(MessagesState).add_node(block).add_edge(START, "block").compile()
"""
RUNS = min(32, (os.cpu_count() or 1) + 4) + 4
"""More runs than asyncio has threads by itself."""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "blocking.py").write_text(CODE)
    (tmp_path / "here").mkdir()
    served = {
        "dependencies": ["."],
        "graphs": {"block": "./blocking.py:graph"},
        "auth": {"path": "./blocking.py:auth"},
    }
    (tmp_path / "langgraph.json").write_text(json.dumps(served))
    return tmp_path


def test_blocking_nodes_run_at_once_and_hold_up_nothing(project: Path) -> None:
    def count_calls() -> int:
        return len(list((project / "here").iterdir()))

    async def drive(url: str) -> None:
        async with asyncio.timeout(100), get_client(url=url) as client, httpx.AsyncClient() as http:
            begun = [await client.threads.create() for _ in range(RUNS)]
            runs = [await client.runs.create(one["thread_id"], "block", input={}) for one in begun]
            await eventually(lambda: count_calls() == RUNS)
            at = time.monotonic()
            # The handler that authenticates is a plain function, too.
            assert (await http.get(f"{url}/metrics")).status_code == 200
            await client.threads.search()
            assert time.monotonic() - at < 10
            (project / "go").touch()
            for run in runs:
                await client.runs.join(run["thread_id"], run["run_id"])

    environ = {"PERDURE_RUNTIME_CONCURRENCY": str(RUNS)}
    with process_of(project, "--dev", environ=environ) as url:
        asyncio.run(drive(url))
