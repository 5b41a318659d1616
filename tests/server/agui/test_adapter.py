"""AG-UI's adapter for LangGraph, through which CopilotKit speaks to a server, as it comes from npm."""

from __future__ import annotations

import json
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.backends import EMPTY
from tests.conftest import missing
from tests.server.acceptance.serving import Server
from tests.server.browsing import wait_for
from tests.server.gates import GATES
from tests.servers import npm

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

FOLDER = Path(__file__).parent


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with EMPTY["sqlite"]() as url:
        served = Server(url)
        try:
            yield served
        finally:
            served.stop()


@pytest.fixture
def thread_id() -> str:
    return str(uuid.uuid4())


def talk(server: Server, graph: str, thread_id: str, *steps: dict[str, Any]) -> list[dict[str, Any]]:
    """What came of each step; see ``talk.mjs``."""
    node = shutil.which("node")
    if node is None:
        missing("Node.js", "install it with your system's packages (Debian: apt-get install nodejs npm)")
    npm.need(FOLDER)
    asked = json.dumps({"graph": graph, "threadId": thread_id, "steps": steps})
    done = subprocess.run(
        [node or "", "talk.mjs", server.url],
        cwd=FOLDER,
        input=asked,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    told: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return told


def statuses(server: Server, thread_id: str) -> list[str]:
    """Of the runs of a thread, the oldest first."""
    answer = httpx.get(f"{server.url}/threads/{thread_id}/runs", trust_env=False, timeout=60)
    if answer.status_code == 404:
        return []
    return [run["status"] for run in reversed(answer.json())]


def test_messages_are_sent_and_answered(server: Server, thread_id: str) -> None:
    first, second = talk(server, "chat", thread_id, {"say": "one"}, {"say": "two"})
    # The adapter looks for the thread, and makes it when there is none.
    assert first["refused"] == [f"404 GET /threads/{thread_id}"]
    assert (first["error"], second["error"], second["refused"]) == (None, None, [])
    said = [["user", "one"], ["assistant", "echo one"], ["user", "two"], ["assistant", "echo two"]]
    assert second["messages"] == said
    assert second["kinds"][-1] == "RUN_FINISHED"
    assert statuses(server, thread_id) == ["success", "success"]


def test_an_answer_is_written_again_from_the_checkpoint_before_it(server: Server, thread_id: str) -> None:
    _, _, again = talk(server, "chat", thread_id, {"say": "one"}, {"say": "two"}, {"again": True})
    assert (again["error"], again["refused"]) == (None, [])
    said = [["user", "one"], ["assistant", "echo one"], ["user", "two"], ["assistant", "echo two"]]
    state = httpx.get(f"{server.url}/threads/{thread_id}/state", trust_env=False, timeout=60).json()
    assert [each["content"] for each in state["values"]["messages"]] == [text for _, text in said]
    assert statuses(server, thread_id) == ["success"] * 3


def test_a_question_is_answered(server: Server, thread_id: str) -> None:
    asked, answered = talk(server, "ask", thread_id, {"say": "hello"}, {"resume": "yes"})
    assert "on_interrupt" in asked["kinds"]
    assert (answered["error"], answered["refused"]) == (None, [])
    assert answered["messages"] == [["user", "hello"], ["assistant", "you said yes"]]


def test_an_answer_is_stopped_and_the_thread_goes_on(server: Server, thread_id: str) -> None:
    GATES.clear()
    with ThreadPoolExecutor(1) as pool:
        steps = {"say": "one", "stopAfter": 5}, {"say": "two"}
        talking = pool.submit(talk, server, "drip", thread_id, *steps)
        wait_for("the stop", lambda: "interrupted" in statuses(server, thread_id) or talking.done(), 90)
        GATES["drip"].set()
        stopped, after = talking.result()
    # It cancels at once and again with the next event, and ignores what the second call says.
    assert {line.rpartition("/")[2] for line in stopped["refused"]} <= {thread_id, "cancel"}
    assert (after["error"], after["refused"]) == (None, [])
    assert statuses(server, thread_id) == ["interrupted", "success"]
