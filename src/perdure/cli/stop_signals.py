"""Signals that stop a worker's process, and its end when a node cannot be interrupted.

The first SIGTERM or SIGINT requests the stop, which other modules carry out. The second one ends the process
at once.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_THREADS_END_S = 1.0
_ONE_REQUEST_S = 0.5
"""Seconds within which signals count as one request: a launcher may forward a signal that its group gets
too."""

_log = logging.getLogger("perdure.worker")


@contextmanager
def watch_stop_signals() -> Iterator[asyncio.Future[str]]:
    """Yield a future of the first signal's name; the second signal ends the process.

    The handlers are the interpreter's, not the event loop's, so that a node that blocks the loop does not
    block the second signal.
    """
    loop = asyncio.get_running_loop()
    asked: asyncio.Future[str] = loop.create_future()
    first: float | None = None

    def handle(number: int, _: FrameType | None) -> None:
        nonlocal first
        if first is None:
            first = time.monotonic()
            loop.call_soon_threadsafe(asked.set_result, signal.Signals(number).name)
        elif time.monotonic() - first > _ONE_REQUEST_S:
            _end(128 + number)

    before = {number: signal.signal(number, handle) for number in _SIGNALS}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def leave(threads: ThreadPoolExecutor) -> None:
    """End the process if nodes that cannot be interrupted still hold threads: their runs were handed over,
    and nothing that they return is stored."""
    threads.shutdown(wait=False, cancel_futures=True)
    waiting = threading.Thread(target=threads.shutdown, daemon=True)
    waiting.start()
    waiting.join(_THREADS_END_S)
    if waiting.is_alive():
        _log.warning("nodes that cannot be interrupted are left behind; their runs were handed over")
        _end(0)


def _end(code: int) -> NoReturn:
    """End the process without waiting; log lines are written at once, so none is lost."""
    os._exit(code)
