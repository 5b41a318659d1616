"""Signals that stop a worker's process.

The first SIGTERM or SIGINT requests a stop, which other modules carry out. The second one ends the process at
once.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_ONE_REQUEST_S = 0.5
"""Seconds within which several signals count as one request: a launcher may forward a signal that the whole
process group receives too."""


@contextmanager
def watch_stop_signals() -> Iterator[asyncio.Future[str]]:
    """Yield a future with the name of the first signal; the second signal ends the process.

    The handlers are the interpreter's, not the event loop's, so that a node that blocks the loop does not
    block the second signal.
    """
    loop = asyncio.get_running_loop()
    stop: asyncio.Future[str] = loop.create_future()
    first: float | None = None

    def handle(number: int, _: FrameType | None) -> None:
        nonlocal first
        if first is None:
            first = time.monotonic()
            loop.call_soon_threadsafe(stop.set_result, signal.Signals(number).name)
        elif time.monotonic() - first > _ONE_REQUEST_S:
            _end(128 + number)

    before = {number: signal.signal(number, handle) for number in _SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(code: int) -> NoReturn:
    """End the process without waiting; log lines are written at once, so none is lost."""
    os._exit(code)
