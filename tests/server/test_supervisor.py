"""Several server processes on one socket, as ``perdure serve --workers`` starts them.

Covers perdure.cli.serve.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest

WITHIN_S = 60.0
_ADDRESS = re.compile(r"serves agent at (http://\S+)")

GRAPH = """\
import os
from langgraph.graph import START, MessagesState, StateGraph


def turn(state):
    raise RuntimeError(f"it broke in {os.getpid()}")


graph = StateGraph(MessagesState).add_node("turn", turn).add_edge(START, "turn").compile()
"""
SERVE = "import sys; from perdure.cli import main; sys.exit(main())"


@pytest.mark.slow
def test_in_development_each_process_writes_the_errors_of_its_graphs(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(GRAPH)
    with _serving(tmp_path) as (url, log):
        broken = _failed_in_two_processes(url, log)
        end = time.monotonic() + WITHIN_S
        while not all(f"RuntimeError: it broke in {one}" in log.read_text() for one in broken):
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.1)
    text = log.read_text()
    assert text.count("Traceback") >= 2
    assert 'agent.py", line 6, in turn' in text


HOLDS = """\
import asyncio, os, pathlib
from langgraph.graph import START, MessagesState, StateGraph

held = pathlib.Path("held")


async def turn(state):
    if not held.exists():
        held.write_text(str(os.getpid()))
        await asyncio.sleep(3600)
    return {"messages": [("ai", f"after {held.read_text()} in {os.getpid()}")]}


graph = StateGraph(MessagesState).add_node("turn", turn).add_edge(START, "turn").compile()
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_runs_of_a_process_that_is_killed_do_not_wait_for_their_leases(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(HOLDS)
    (tmp_path / "perdure.toml").write_text("[runtime]\nlease = 36000\n")
    with _serving(tmp_path) as (url, log), httpx.Client(base_url=url, timeout=60, trust_env=False) as http:
        thread = http.post("/threads", json={}).raise_for_status().json()["thread_id"]
        body = {"assistant_id": "agent", "input": {"messages": [{"role": "user", "content": "hello"}]}}
        http.post(f"/threads/{thread}/runs", json=body).raise_for_status()
        held = tmp_path / "held"
        _until(lambda: held.exists() and held.read_text() != "")
        os.kill(int(held.read_text()), signal.SIGKILL)

        def answer() -> list[str]:
            with suppress(httpx.TransportError):
                values = http.get(f"/threads/{thread}/state").raise_for_status().json()["values"]
                return [message["content"] for message in values.get("messages", [])]
            return []

        _until(lambda: len(answer()) == 2)
        assert answer()[1].startswith(f"after {held.read_text()} in ")
        assert "leases.ended" in log.read_text()


def _until(what: Callable[[], bool]) -> None:
    end = time.monotonic() + 4 * WITHIN_S
    while not what():
        assert time.monotonic() < end
        time.sleep(0.05)


@contextmanager
def _serving(folder: Path) -> Iterator[tuple[str, Path]]:
    """Serve the graph of a folder from two processes: the address, and the log."""
    command = [sys.executable, "-c", SERVE, "serve", "./agent.py:graph", "--dev", "--workers", "2"]
    log = folder / "log"
    with open(log, "wb") as written:
        process = subprocess.Popen(
            [*command, "--port", "0"],
            cwd=folder,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=written,
        )
    try:
        _until(lambda: _ADDRESS.search(log.read_text()) is not None)
        yield _ADDRESS.findall(log.read_text())[0], log
    finally:
        process.terminate()
        assert process.wait(WITHIN_S) == 0


def _failed_in_two_processes(url: str, log: Path) -> set[str]:
    """Have runs fail until two processes had one; the ids of these."""
    body = {"assistant_id": "agent", "input": {"messages": []}}
    end = time.monotonic() + WITHIN_S
    found: set[str] = set()
    while len(found) < 2:
        assert time.monotonic() < end, log.read_text()
        # Several at once, each on a connection of its own, which any of the processes may accept.
        with ThreadPoolExecutor(8) as pool:
            asked = [
                pool.submit(httpx.post, f"{url}/runs/wait", json=body, timeout=WITHIN_S, trust_env=False)
                for _ in range(8)
            ]
        for answer in asked:
            with suppress(httpx.TransportError):
                found.add(answer.result().json()["__error__"]["message"].rpartition(" ")[2])
    return found
