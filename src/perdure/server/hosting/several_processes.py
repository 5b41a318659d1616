"""Several server processes on one socket: a process that ends is replaced, all stop together.

The new process ends the leases of the one that it replaces, so that the runs of that one continue at once.
The new process starts at once, too, unless the old one ended soon after its own start.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Collection
from multiprocessing.process import BaseProcess
from typing import NamedTuple

from perdure.errors import PerdureError, Unavailable
from perdure.runtime.failures.failure_location import show_failures
from perdure.runtime.garbage_collector import exempt_existing
from perdure.runtime.log_output import configure_logging
from perdure.runtime.runtime import process_name
from perdure.server.config import Config
from perdure.server.hosting import child_process
from perdure.server.hosting.child_process import handle_stops
from perdure.server.hosting.process import run_server
from perdure.storage.url import backend_of

_log = logging.getLogger("perdure.server")

_POLL_S = 0.2
_SHORT_S = 10.0
_PAUSE_S = 1.0
"""Seconds before a process takes the place of one that lived for less than ``_SHORT_S``."""
_ENDED_MAX = 32
"""Number of ended processes whose leases the next process ends. Its direct predecessor may have failed to
start, and ended none."""
_CANNOT_START = 78
"""Exit code of a process that cannot start with its configuration, ``EX_CONFIG``."""


class _Given(NamedTuple):
    """Arguments of ``serve_many`` that each process gets."""

    config: Config
    works: bool
    log_level: str


class _Child(NamedTuple):
    """A process, the part of its name beside the id, and the time of its start."""

    process: BaseProcess
    token: str
    started_at: float


def serve_many(
    config: Config,
    listener: socket.socket,
    processes: int,
    *,
    works: bool = True,
    log_level: str = "INFO",
) -> int:
    """Serve from several processes until SIGINT or SIGTERM, and return the exit code. A process that
    cannot start with its configuration stops all of them.

    Args:
        config: the configuration.
        listener: the listening socket, which all processes share.
        processes: number of processes.
        works: execute runs in these processes, too.
        log_level: level of Perdure's logger.
    """
    # Before the forks: the processes share the memory of what is imported, and a garbage collection, which
    # would write to this memory, passes over exempt objects.
    backend_of(config.database_url)
    exempt_existing()
    stopping = threading.Event()

    given = _Given(config, works, log_level)
    ended: deque[str] = deque(maxlen=_ENDED_MAX)

    def start_child() -> _Child:
        token = secrets.token_hex(3)
        process = child_process.start(_serve, given, listener, token, tuple(ended))
        return _Child(process, token, time.monotonic())

    with handle_stops(lambda *_: stopping.set()):
        children = [start_child() for _ in range(processes)]
        code = 0
        try:
            while not stopping.wait(_POLL_S):
                for index, child in enumerate(children):
                    pid, status = child.process.pid, child.process.exitcode
                    if status is None or pid is None:
                        continue
                    if status == _CANNOT_START:
                        code = 1
                        stopping.set()
                        break
                    _log.warning("server process %s ended with %s; another one starts", pid, status)
                    ended.append(process_name(pid, child.token))
                    if time.monotonic() - child.started_at < _SHORT_S and stopping.wait(_PAUSE_S):
                        break
                    children[index] = start_child()
        finally:
            for child in children:
                if child.process.exitcode is None:
                    child.process.terminate()
            for child in children:
                child.process.join()
    return code


def _serve(given: _Given, listener: socket.socket, token: str, ended: Collection[str]) -> None:
    configure_logging(given.log_level)
    if given.config.development:
        show_failures()
    try:
        name = process_name(os.getpid(), token)
        run_server(given.config, listener, works=given.works, name=name, ended=ended)
    except Unavailable as error:
        # The database may come back; the supervisor starts another process.
        _log.error("%s", error)
        sys.exit(1)
    except PerdureError as error:
        sys.stderr.write(f"perdure: {error}\n")
        sys.exit(_CANNOT_START)
