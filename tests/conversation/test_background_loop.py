"""The loop for coroutines of synchronous callers: one for all, in every thread and process."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from perdure.conversation.background_loop import wait_for


async def loop_of(_: int = 0) -> Any:
    await asyncio.sleep(0)
    return asyncio.get_running_loop()


async def failing() -> None:
    raise LookupError("not there")


def test_all_callers_share_one_loop() -> None:
    with ThreadPoolExecutor(4) as threads:
        loops = list(threads.map(lambda number: wait_for(loop_of(number)), range(20)))
    assert len(set(map(id, loops))) == 1

    async def within() -> Any:
        return wait_for(loop_of())

    # A caller that blocks a loop of its own gets this one too.
    assert asyncio.run(within()) is loops[0]


def test_an_error_arrives_at_the_caller() -> None:
    with pytest.raises(LookupError, match="not there"):
        wait_for(failing())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_process_has_a_loop_of_its_own() -> None:
    wait_for(loop_of())
    child = os.fork()
    if not child:
        os._exit(0 if wait_for(loop_of()) is not None else 1)
    _, status = os.waitpid(child, 0)
    assert status == 0
