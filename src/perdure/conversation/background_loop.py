"""One event loop in an OS thread of its own, for coroutines that a caller without a loop has to wait for.

A client of a provider is bound to the event loop in which it was first used. So all of these coroutines run
in one loop, which lives as long as the process.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable
from threading import Lock, Thread
from typing import TypeVar

T = TypeVar("T")

_lock = Lock()
_running: tuple[int, asyncio.AbstractEventLoop] | None = None


def wait_for(awaitable: Awaitable[T]) -> T:
    """Run an awaitable in the loop, and return its result, or raise its error. Blocks the caller."""

    async def wait() -> T:
        return await awaitable

    return asyncio.run_coroutine_threadsafe(wait(), _get_loop()).result()


def _get_loop() -> asyncio.AbstractEventLoop:
    global _running
    with _lock:
        # A forked process has the loop of its parent, and no OS thread that runs it.
        if _running is None or _running[0] != os.getpid():
            loop = asyncio.new_event_loop()
            Thread(target=loop.run_forever, name="perdure-summaries", daemon=True).start()
            _running = os.getpid(), loop
        return _running[1]
