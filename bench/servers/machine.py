"""A server under measurement: what it can be asked, and how its process is started and ended.

A server hands out empty databases, weighs them, and says how it is set up. One that cannot be started
is a `Missing` with the reason, which ends up on the page in place of the numbers.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

_STARTING_S = 30.0


class Missing(Exception):
    """A part of the server is not on this machine; the message says which and what to do."""


class Server(Protocol):
    """`variants` are settings that can be changed while it runs, for the same work under each."""

    port: int
    settings: str
    variants: tuple[str, ...]

    def vary(self, variant: str) -> None: ...

    def empty(self, name: str) -> str:
        """The URL of a database that nobody has used. `name` is of letters, digits and hyphens."""
        ...

    def measure_stored(self, url: str) -> int | None:
        """Bytes that one database takes now."""
        ...

    def compact(self, url: str) -> None:
        """Give back what was freed in one database, as far as that takes a command."""
        ...

    def measure_written(self) -> int | None:
        """Bytes that the server has written since its start, to its log of changes; None when unknown."""
        ...


@contextmanager
def run_server(command: list[Any], folder: Path, port: int, **options: Any) -> Iterator[None]:
    """A server from its start to its end; what it complained about stands in the error."""
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, **options)
        try:
            wait_for_answer(process, port, folder / "server.log")
            yield
        finally:
            process.send_signal(signal.SIGINT)  # PostgreSQL: without waiting for its clients to leave
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def wait_for_answer(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + _STARTING_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 0.5).close()
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise Missing(f"the server did not start: {log.read_text()[-300:].strip()}") from None
            time.sleep(0.02)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


Starter = Callable[[], AbstractContextManager[Server]]
