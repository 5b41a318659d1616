"""Node.js with LangGraph's JavaScript clients, in the versions that ``package-lock.json`` names."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from typing import Any

from tests.conftest import missing
from tests.servers import npm

FOLDER = Path(__file__).parent
_WITHIN_S = 60.0


def eventually(reached: Callable[[], bool], what: str) -> None:
    """Wait until something that has to be asked for is true."""
    deadline = time.monotonic() + _WITHIN_S
    while not reached():
        assert time.monotonic() < deadline, f"{what}: not within {_WITHIN_S:.0f} s"
        time.sleep(0.05)


def node() -> str:
    """Where Node.js is; ends the test when it, or a package, is missing."""
    found = shutil.which("node")
    if found is None:
        missing("Node.js", "install it with your system's packages (Debian: apt-get install nodejs npm)")
    npm.need(FOLDER)
    return found or ""


class Failed(Exception):
    """What the client in JavaScript raised; ``status`` is what the server answered with."""

    def __init__(self, name: str, message: str, status: int | None) -> None:
        super().__init__(f"{name}: {message}")
        self.status = status


class Node:
    """A process that does with the client what it is asked to, one thing after the other."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [node(), "bridge.mjs"], cwd=FOLDER, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, **asked: Any) -> dict[str, Any]:
        """One JSON document for another."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        with DefaultSelector() as selector:
            selector.register(self._process.stdout, EVENT_READ)
            assert selector.select(_WITHIN_S), f"no answer within {_WITHIN_S:.0f} s to {asked}"
        line = self._process.stdout.readline()
        assert line, f"Node.js ended with {self._process.wait()} on {asked}"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def stop(self) -> None:
        """End it by ending its input; a second call would fail."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


class Client:
    """The client of one server, through a relay that notes its requests: those for the last thing that was
    asked are ``requests``, and the run ids of which the client told then ``created``."""

    def __init__(self, process: Node, url: str) -> None:
        self._node = process
        self._url = url
        self.requests: list[dict[str, Any]] = []
        self.created: list[dict[str, Any]] = []

    def call(self, name: str, *args: Any) -> Any:
        """The value of a method, named as in ``runs.wait``. ``Failed`` when it raises."""
        return self._ask(name=name, args=args)

    def stream(
        self,
        name: str,
        target: tuple[Any, Any],
        options: dict[str, Any] | None = None,
        *,
        cut: tuple[int, ...] = (),
        leave: int | None = None,
    ) -> list[dict[str, Any]]:
        """The parts of a stream. The line is ``cut`` after so many of them; we ``leave`` after so many."""
        more = {} if leave is None else {"leave": leave}
        parts: list[dict[str, Any]] = self._ask(
            name=name, args=[*target, options or {}], streams=len(target), cut=cut, **more
        )
        return parts

    def talk(self, name: str, **given: Any) -> Any:
        """What came of one of ``conversations.mjs``."""
        return self._ask(talk=name, given=given)

    def new(self) -> str:
        """The id of a new thread."""
        thread_id: str = self.call("threads.create", {})["thread_id"]
        return thread_id

    def statuses(self, thread_id: str) -> list[str]:
        """Of the runs of a thread, the oldest first."""
        return [run["status"] for run in reversed(self.call("runs.list", thread_id))]

    def _ask(self, **asked: Any) -> Any:
        answer = self._node.ask(url=self._url, **asked)
        self.requests, self.created = answer["requests"], answer["created"]
        if "error" in answer:
            raise Failed(**answer["error"])
        return answer["value"]
