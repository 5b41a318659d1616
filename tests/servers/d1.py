"""Cloudflare D1's own engine, started once a process on a free port; each test gets an emptied database."""

from __future__ import annotations

import atexit
import os
import secrets
import shutil
import subprocess
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector

import httpx

from tests.conftest import missing
from tests.servers import npm

FOLDER = Path(__file__).with_name("d1")
ACCOUNT = "0123456789abcdef0123456789abcdef"
TOKEN_ENV = "PERDURE_TEST_D1_TOKEN"
DATABASES = 24
READY_SECONDS = 60


@dataclass
class Server:
    """A running engine. ``origin`` is its address, ``free`` are the databases that nobody uses."""

    process: subprocess.Popen[str]
    origin: str
    token: str
    free: deque[str]

    @property
    def endpoint(self) -> str:
        return f"{self.origin}/client/v4"

    def url(self, database: str, endpoint: str | None = None) -> str:
        return f"d1://{ACCOUNT}/{database}?token_env={TOKEN_ENV}&endpoint={endpoint or self.endpoint}"

    def stop(self) -> None:
        """End the engine by ending its input, which also ends what it has started."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


@contextmanager
def database() -> Iterator[str]:
    """The id of a database without tables."""
    server = started()
    id_ = server.free.popleft()
    try:
        # On a connection of its own: the engine closes those that are idle, also while one is used again.
        headers = {"Authorization": f"Bearer {server.token}"}
        url = f"{server.origin}/empty/{id_}"
        httpx.post(url, headers=headers, trust_env=False, timeout=30).raise_for_status()
        yield id_
    finally:
        server.free.append(id_)


@contextmanager
def empty() -> Iterator[str]:
    """The URL of a database without tables."""
    with database() as id_:
        yield started().url(id_)


@cache
def started() -> Server:
    """The engine of this process."""
    node = shutil.which("node")
    if node is None:
        missing("Node.js", "install it with your system's packages (Debian: apt-get install nodejs npm)")
    npm.need(FOLDER)
    token = secrets.token_hex(20)
    os.environ[TOKEN_ENV] = token
    ids = [f"00000000-0000-4000-8000-{n:012d}" for n in range(DATABASES)]
    process = subprocess.Popen(
        [node or "node", "server.mjs", token, ACCOUNT, *ids],
        cwd=FOLDER,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    server = Server(process, "", token, deque(ids))
    atexit.register(server.stop)
    server.origin = _address(process)
    return server


def _address(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    with DefaultSelector() as selector:
        selector.register(process.stdout, EVENT_READ)
        assert selector.select(READY_SECONDS), f"D1's engine was not ready after {READY_SECONDS} s"
    line = process.stdout.readline()
    assert line.startswith("READY "), f"D1's engine did not start: {line!r}"
    return line.split()[1]
