"""Child process that serves, and is replaced on the same socket when it is killed.

So a user can kill the server from the page, as a power cut would, and see the conversation go on. The child
ends with its parent, however the parent ends.
"""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from types import FrameType

from perdure.server.hosting import child_process
from perdure.server.hosting.child_process import STOPS

Serve = Callable[[socket.socket, bool], int]
"""Serves on a socket until it is stopped, and returns the exit code. The second argument is true if the
process replaces a killed one. It may be pickled, so it is a function of a module, or an object that can be
pickled."""

KILLED = -9
"""Exit code of a process that SIGKILL ended."""
_STOPPED = 130


def serve_replaced(serve: Serve, listener: socket.socket) -> int:
    """Run ``serve`` in a child process until it is stopped, and return its exit code. SIGINT and SIGTERM stop
    it; a child that is killed is replaced."""
    stopping = threading.Event()
    child: BaseProcess | None = None

    def stop(number: int, frame: FrameType | None) -> None:
        stopping.set()
        if child is not None and child.is_alive():
            child.terminate()

    before = {number: signal.signal(number, stop) for number in STOPS}
    try:
        is_again = False
        while not stopping.is_set():
            child = child_process.start(_run_child, serve, listener, is_again)
            if stopping.is_set():
                child.terminate()
            child.join()
            if child.exitcode != KILLED:
                break
            is_again = True
        code = None if child is None else child.exitcode
        if code is None or code < 0:
            return _STOPPED
        return code
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run_child(serve: Serve, listener: socket.socket, is_again: bool) -> None:
    try:
        code = serve(listener, is_again)
    except KeyboardInterrupt:
        code = _STOPPED
    raise SystemExit(code)
