"""Several server processes on one socket: a process that ends is replaced, all stop together.

The one that replaces it ends its leases, so that its runs continue at once.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Collection
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import NamedTuple

from perdure.errors import PerdureError, Unavailable
from perdure.runtime.failure_location import show_failures
from perdure.runtime.runtime import process_name
from perdure.server.config import Config
from perdure.server.hosting.process import run, serve

_log = logging.getLogger("perdure.server")

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_LOOK_S = 0.2
_PAUSE_S = 1.0
_NAMED = 32
"""Ended processes whose leases the next one ends: one before it may have failed to start."""
_CANNOT_START = 78
"""Exit code of a process that cannot start with its configuration, ``EX_CONFIG``."""


class _Given(NamedTuple):
    """Arguments of ``serve_many`` that each process gets."""

    config: Config
    works: bool
    encryption_key: bytes | Collection[bytes] | None
    log_level: str


def serve_many(
    config: Config,
    listener: socket.socket,
    processes: int,
    *,
    works: bool = True,
    encryption_key: bytes | Collection[bytes] | None = None,
    log_level: str = "INFO",
) -> int:
    """Serve from several processes until SIGINT or SIGTERM, and return the exit code. A process that
    cannot start with its configuration stops all of them.

    Args:
        config: the configuration.
        listener: the listening socket, which all processes share.
        processes: number of processes.
        works: execute runs in these processes, too.
        encryption_key: key, or keys, that encrypt stored data.
        log_level: level of Perdure's logger.
    """
    context = multiprocessing.get_context("spawn")
    stopping = threading.Event()

    def stop(number: int, _: FrameType | None) -> None:
        stopping.set()

    before = {number: signal.signal(number, stop) for number in _SIGNALS}

    given = _Given(config, works, encryption_key, log_level)
    ended: deque[str] = deque(maxlen=_NAMED)

    def started() -> tuple[BaseProcess, str]:
        token = secrets.token_hex(3)
        child = context.Process(target=_child, args=(given, listener, token, tuple(ended)))
        child.start()
        return child, token

    children = [started() for _ in range(processes)]
    code = 0
    try:
        while not stopping.wait(_LOOK_S):
            for at, (child, token) in enumerate(children):
                if child.exitcode is None or child.pid is None:
                    continue
                if child.exitcode == _CANNOT_START:
                    code = 1
                    stopping.set()
                    break
                _log.warning("server process %s ended with %s; another one starts", child.pid, child.exitcode)
                ended.append(process_name(child.pid, token))
                time.sleep(_PAUSE_S)
                children[at] = started()
    finally:
        for child, _ in children:
            if child.exitcode is None:
                child.terminate()
        for child, _ in children:
            child.join()
        for number, handler in before.items():
            signal.signal(number, handler)
    return code


def _end_with_parent() -> None:
    """Stop this process as SIGTERM does when the one that started it has ended, however that came about: it
    would go on serving, with nothing left that could stop or replace it."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="supervisor", daemon=True).start()


def _child(given: _Given, listener: socket.socket, token: str, ended: Collection[str]) -> None:
    _end_with_parent()
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("perdure").setLevel(given.log_level)
    if given.config.development:
        show_failures()
    try:
        name = process_name(os.getpid(), token)
        run(
            serve(
                given.config,
                listener,
                works=given.works,
                encryption_key=given.encryption_key,
                name=name,
                ended=ended,
            )
        )
    except Unavailable as error:
        # The database may come back; the supervisor starts another process.
        _log.error("%s", error)
        sys.exit(1)
    except PerdureError as error:
        sys.stderr.write(f"perdure: {error}\n")
        sys.exit(_CANNOT_START)
