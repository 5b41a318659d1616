"""OS threads in which a process calls the nodes of its graphs that are plain functions."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor

_SPARE = 4
_END_S = 1.0

_log = logging.getLogger("perdure.worker")


async def run_with_node_threads(concurrency: int, work: Coroutine[None, None, None]) -> None:
    """Run a process's work, and let its event loop call plain functions in as many OS threads as
    there are runs, so that no run waits for another's: asyncio's own number of threads depends on the
    processors. At the end of the work, end the process if nodes still occupy threads or ignore that their
    tasks are cancelled: their runs were handed over, and their results are not stored."""
    threads = ThreadPoolExecutor(concurrency + _SPARE, thread_name_prefix="node")
    asyncio.get_running_loop().set_default_executor(threads)
    await work
    threads.shutdown(wait=False, cancel_futures=True)
    waiting = threading.Thread(target=threads.shutdown, daemon=True)
    waiting.start()
    waiting.join(_END_S)
    if waiting.is_alive() or await _cancel_others():
        _log.warning("nodes that cannot be interrupted are left behind; they store nothing more")
        # This does not wait for the threads. Log lines are written at once, so none is lost.
        os._exit(0)


async def _cancel_others() -> set[asyncio.Task[object]]:
    """Cancel all other tasks of the event loop, as its end would, and return those that go on."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if not others:
        return set()
    _, left = await asyncio.wait(others, timeout=_END_S)
    return left
