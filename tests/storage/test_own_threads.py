"""Perdure's own work beside an event loop waits for no node, however many block.

Covers perdure.storage.own_threads.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar

import pytest

from perdure.storage.own_threads import run_in_own_thread

_HEARD: ContextVar[str] = ContextVar("heard", default="")


def _answer(more: str) -> str:
    return _HEARD.get() + more


def test_it_waits_for_no_call_in_the_threads_of_the_loop() -> None:
    async def main() -> None:
        blocked = threading.Event()
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        waiting = [loop.run_in_executor(None, blocked.wait) for _ in range(3)]
        try:
            async with asyncio.timeout(10):
                _HEARD.set("context")
                assert await run_in_own_thread(_answer, " and arguments") == "context and arguments"
                with pytest.raises(KeyError):
                    await run_in_own_thread(dict[str, int]().__getitem__, "absent")
        finally:
            blocked.set()
            await asyncio.gather(*waiting)

    asyncio.run(main())


def _in_child() -> None:
    assert asyncio.run(run_in_own_thread(int, "7")) == 7


@pytest.mark.skipif(sys.platform == "win32", reason="nothing forks there")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_has_threads_of_its_own() -> None:
    assert asyncio.run(run_in_own_thread(int, "7")) == 7
    child = multiprocessing.get_context("fork").Process(target=_in_child)
    child.start()
    child.join(20)
    assert child.exitcode == 0
