"""A server of models that the providers' own clients call: aimock, started once a process on a free port.

It answers as ``aimock/answers.json`` says, and keeps a journal of what it was asked.
"""

from __future__ import annotations

import atexit
import shutil
import subprocess
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import httpx

from tests.conftest import missing
from tests.servers import npm
from tests.servers.ports import free_port

FOLDER = Path(__file__).with_name("aimock")
CHUNK_MS, CHUNK_CHARACTERS = 20, 4
"""The pace of a streamed answer: milliseconds before each piece of so many characters."""
READY_SECONDS = 60


@dataclass
class Server:
    """A running server at an address."""

    process: subprocess.Popen[bytes]
    origin: str

    @property
    def url(self) -> str:
        """The base of OpenAI's API."""
        return f"{self.origin}/v1"

    def asked(self) -> list[dict[str, Any]]:
        """Return the requests since ``forget``, each with its ``timestamp`` in milliseconds."""
        found: list[dict[str, Any]] = self._call("GET", "journal").json()
        return found

    def forget(self) -> None:
        """Forget the requests."""
        self._call("POST", "reset/journal")

    def _call(self, method: str, path: str) -> httpx.Response:
        found = httpx.request(method, f"{self.origin}/__aimock/{path}", trust_env=False, timeout=30)
        return found.raise_for_status()

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


@cache
def started() -> Server:
    """The server of this process."""
    node = shutil.which("node")
    if node is None:
        missing("Node.js", "install it with your system's packages (Debian: apt-get install nodejs npm)")
    npm.need(FOLDER)
    port = free_port()
    program = FOLDER / "node_modules" / "@copilotkit" / "aimock" / "dist" / "cli.js"
    options = {
        "--port": port,
        "--fixtures": FOLDER / "answers.json",
        "--latency": CHUNK_MS,
        "--chunk-size": CHUNK_CHARACTERS,
        "--log-level": "silent",
    }
    words = [str(word) for option in options.items() for word in option]
    server = Server(
        subprocess.Popen([node or "node", program, "--strict", *words]), f"http://127.0.0.1:{port}"
    )
    atexit.register(server.stop)
    until = time.monotonic() + READY_SECONDS
    while True:
        try:
            server.forget()
        except httpx.ConnectError:
            assert server.process.poll() is None, "aimock did not start"
            assert time.monotonic() < until, f"aimock was not ready after {READY_SECONDS} s"
            time.sleep(0.05)
        else:
            return server
