"""A server that is told to stop in the middle of a run, and another that goes on with its clients."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from tests.server.acceptance.serving import Line, Place, Server, line_to, near
from tests.server.js.node import Client, Node, eventually

SERVE = "from perdure.cli import main; main()"
STEPS = 80
"""More than are gone before the server stops, and while it does."""


class Doomed(Place):
    """A process that serves until it is told to stop."""

    def __init__(self, database: str) -> None:
        command = [sys.executable, "-c", SERVE, "serve", "walk=tests.server.graphs:walk"]
        self.process = subprocess.Popen(
            [*command, "--db", database, "--port", "0", "--dev"], stderr=subprocess.PIPE, text=True
        )
        assert self.process.stderr is not None
        self.said = self.process.stderr.readline()
        super().__init__(int(self.said.rpartition(":")[2]))

    def stop(self) -> None:
        """Tell it to; repeatable."""
        self.process.send_signal(signal.SIGTERM)
        self.said += self.process.communicate(timeout=60)[1]


@contextmanager
def stopped_in_the_middle(doomed: Doomed, line: Line, server: Server, thread_id: str) -> Iterator[None]:
    """For as long as the block lasts a client is at a walk: the server stops when that has begun."""

    def has_begun() -> bool:
        answer = httpx.get(f"{server.url}/threads/{thread_id}/state", trust_env=False)
        return answer.is_success and len((answer.json()["values"] or {}).get("trail", ())) > 3

    def stop() -> None:
        eventually(has_begun, "the walk begins")
        line.target = server.port
        doomed.stop()

    stopping = threading.Thread(target=stop)
    stopping.start()
    try:
        yield
    finally:
        stopping.join()


@pytest.fixture
def doomed(server: Server) -> Iterator[Doomed]:
    process = Doomed(server.database)
    try:
        yield process
    finally:
        process.process.kill()
        process.process.communicate()


@pytest.mark.slow
@near
@pytest.mark.parametrize("protocol", ["runs.stream", "threads.stream"])
def test_t20_a_server_that_stops_hands_its_streams_on(
    node: Node, server: Server, doomed: Doomed, protocol: str
) -> None:
    with line_to(doomed) as line:
        js = Client(node, line.near.url)
        thread_id = js.new()
        walked = _walked if protocol == "runs.stream" else _walked_by_protocol
        with stopped_in_the_middle(doomed, line, server, thread_id):
            steps = walked(js, thread_id)
    assert steps == list(range(STEPS))
    assert "ERROR" not in doomed.said
    assert doomed.process.returncode == 0


def _walked(js: Client, thread_id: str) -> list[int]:
    options: dict[str, Any] = {
        "input": {"steps": STEPS, "pause": 0.05},
        "config": {"recursion_limit": 2 * STEPS},
        "streamMode": "custom",
        "streamResumable": True,
    }
    told = js.stream("runs.stream", (thread_id, "walk"), options)
    assert len(js.requests) > 1
    assert "end" not in [part["event"] for part in told]
    ids = [int(part["id"]) for part in told]
    assert ids == sorted(set(ids))
    return [part["data"]["step"] for part in told if part["event"] == "custom"]


def _walked_by_protocol(js: Client, thread_id: str) -> list[int]:
    came = js.talk("walkedOverCuts", threadId=thread_id, steps=STEPS, pause=0.05, cuts=[])
    assert came["reconnects"] >= 1
    assert len(set(came["ids"])) == len(came["ids"])
    assert came["trail"] == list(range(STEPS))
    seen: list[int] = came["seen"]
    return seen
