"""A project that ``perdure dev`` serves in a process of its own, and edits of it."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx

from tests.forking import Forked, fork_server

WITHIN_S = 120.0
_ADDRESS = re.compile(r"serves \S+ at (http://\S+)")


class Development:
    """The process, its log and its address."""

    def __init__(self, process: Forked, log: Path) -> None:
        self.process = process
        self._log = log

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def url(self) -> str:
        found = _ADDRESS.search(self.log)
        assert found, self.log
        return found[1]

    def until(self, holds: Callable[[], object]) -> None:
        end = time.monotonic() + WITHIN_S
        while not holds():
            assert self.process.poll() is None, self.log
            assert time.monotonic() < end, self.log
            time.sleep(0.05)

    def logs(self, text: str, times: int = 1) -> None:
        """Wait until the log has a text so many times."""
        self.until(lambda: self.log.count(text) >= times)

    def request(self, method: str, path: str, **more: Any) -> httpx.Response:
        return httpx.request(method, f"{self.url}{path}", timeout=WITHIN_S, trust_env=False, **more)

    def accept(self, thread: str, text: str) -> str:
        """Have a run of a thread accepted; its id."""
        body = {
            "assistant_id": "agent",
            "if_not_exists": "create",
            "input": {"messages": [{"role": "user", "content": text}]},
        }
        answer = self.request("POST", f"/threads/{thread}/runs", json=body)
        run_id: str = answer.raise_for_status().json()["run_id"]
        return run_id

    def answer(self, thread: str, run_id: str) -> str:
        """The last message of the thread after a run, which is waited for over reloads."""
        end = time.monotonic() + WITHIN_S
        while time.monotonic() < end:
            with suppress(httpx.TransportError):
                joined = self.request("GET", f"/threads/{thread}/runs/{run_id}/join")
                if joined.status_code == 200 and joined.content.strip():
                    content: str = joined.json()["messages"][-1]["content"]
                    return content
            time.sleep(0.1)
        raise AssertionError(self.log)

    def ask(self, thread: str, text: str) -> str:
        return self.answer(thread, self.accept(thread, text))

    def interrupt(self) -> int:
        """Press Ctrl-C, which reaches every process of the terminal; the exit code."""
        os.killpg(self.process.pid, signal.SIGINT)
        return self.process.wait(WITHIN_S)


@contextmanager
def developing(
    folder: Path, *words: str, environ: Mapping[str, str] | None = None, is_ready: bool = True
) -> Iterator[Development]:
    """Serve a project for development for as long as the block lasts."""
    log = folder / "log"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PERDURE_")}
    with open(log, "wb") as written:
        process = fork_server().start(
            ["dev", "--port", "0", *words],
            cwd=folder,
            environ={**environment, **(environ or {})},
            stdout=written.fileno(),
            stderr=written.fileno(),
            start_new_session=True,
        )
    made = Development(process, log)
    try:
        if is_ready:
            made.logs("watching the files")
        yield made
    finally:
        if process.poll() is None:
            process.terminate()
        try:
            process.wait(WITHIN_S)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
