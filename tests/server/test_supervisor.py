"""Several server processes on one socket, as ``perdure serve --workers`` starts them.

Covers perdure.cli.serve.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import httpx
import psutil
import pytest

WITHIN_S = 60.0

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
    command = [sys.executable, "-c", SERVE, "serve", "./agent.py:graph", "--dev", "--workers", "2"]
    log = tmp_path / "log"
    with open(log, "wb") as written:
        process = subprocess.Popen(
            [*command, "--port", "0"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=written,
        )
    try:
        broken = _failed_in_two_processes(log)
        end = time.monotonic() + WITHIN_S
        while not all(f"RuntimeError: it broke in {one}" in log.read_text() for one in broken):
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.1)
    finally:
        process.terminate()
        assert process.wait(WITHIN_S) == 0
    text = log.read_text()
    assert text.count("Traceback") >= 2
    assert 'agent.py", line 6, in turn' in text


STARTS_ONE = """\
import multiprocessing, os, pathlib, sys, time


def serve(place):
    from perdure.server.hosting import supervisor

    supervisor._end_with_parent()
    pathlib.Path(place).write_text(str(os.getpid()))
    while True:
        time.sleep(0.1)


if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(sys.argv[1],))
    process.start()
    process.join()
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_process_does_not_outlive_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "starts.py").write_text(STARTS_ONE)
    place = tmp_path / "pid"
    supervisor = subprocess.Popen([sys.executable, "starts.py", str(place)], cwd=tmp_path)
    try:
        _until(lambda: place.exists() and place.read_text() != "")
        serving = psutil.Process(int(place.read_text()))
        supervisor.kill()
        supervisor.wait()
        _until(lambda: not serving.is_running() or serving.status() == psutil.STATUS_ZOMBIE)
    finally:
        supervisor.kill()
        supervisor.wait()


def _until(what: Callable[[], bool]) -> None:
    end = time.monotonic() + 4 * WITHIN_S
    while not what():
        assert time.monotonic() < end
        time.sleep(0.05)


def _failed_in_two_processes(log: Path) -> set[str]:
    """Have runs fail until two processes had one; the ids of these."""
    body = {"assistant_id": "agent", "input": {"messages": []}}
    end = time.monotonic() + WITHIN_S
    found: set[str] = set()
    while len(found) < 2:
        assert time.monotonic() < end, log.read_text()
        url = re.search(r"serves agent at (http://\S+)", log.read_text())
        if url is None:
            time.sleep(0.1)
            continue
        # Several at once, each on a connection of its own, which any of the processes may accept.
        with ThreadPoolExecutor(8) as pool:
            asked = [
                pool.submit(httpx.post, f"{url[1]}/runs/wait", json=body, timeout=WITHIN_S, trust_env=False)
                for _ in range(8)
            ]
        for answer in asked:
            with suppress(httpx.TransportError):
                found.add(answer.result().json()["__error__"]["message"].rpartition(" ")[2])
    return found
