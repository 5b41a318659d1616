"""A worker process of ``test_wait_processes.py``: the URL of its database, and how far its clock is ahead."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from langgraph.pregel import Pregel

from perdure.runtime import ask, sleep, wait_for
from tests.chaos.child_processes import skew
from tests.runtime.graphs import settings
from tests.runtime.nodes.test_waiting import Noted, chain

STEP_S = 1.5
TERMS = settings(lease=2.0, poll=0.1, attempts=50)


async def asks(state: Noted) -> dict[str, Any]:
    return {"notes": [ask("pay?", within=STEP_S, default="no", remind=STEP_S / 2)]}


async def naps(state: Noted) -> dict[str, Any]:
    await sleep(STEP_S)
    return {"notes": ["slept"]}


async def hopes(state: Noted) -> dict[str, Any]:
    return {"notes": [await wait_for("paid", within=STEP_S, default="unpaid")]}


def graph() -> Pregel[Any, Any, Any, Any]:
    """Each thread waits three times."""
    return chain(asks, naps, hopes)


async def _work(url: str) -> None:
    import perdure
    from perdure.runtime import Runtime

    async with perdure.connect(url) as database, Runtime(database, graph(), settings=TERMS):
        print("ready", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    if ahead := float(sys.argv[2]):
        skew(ahead)
    asyncio.run(_work(sys.argv[1]))
