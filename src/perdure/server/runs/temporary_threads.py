"""Threads that exist for one run, and their removal after its end."""

from __future__ import annotations

import asyncio

from perdure.errors import Unavailable
from perdure.runtime import Standing
from perdure.runtime.events import LAST
from perdure.server.resources import HEARTBEAT_S, Caller
from perdure.server.responses import run_id_of
from perdure.server.runs.run_creation import AcceptedRun
from perdure.server.runs.webhooks import wait_for_delivery
from perdure.server.streaming import streams


async def wait_for_end(caller: Caller, thread_id: str, run_id: str) -> Standing:
    """Wait for a run's end and return its standing, without its events."""
    async for item in streams.follow(caller, thread_id, run_id, LAST):
        if isinstance(item, Standing):
            return item
    raise Unavailable("the server is stopping")


async def remove_after_run(caller: Caller, accepted: AcceptedRun, *, linger: bool = False) -> None:
    """Wait for the end of a run on a thread of its own, and remove the thread. With ``linger``, subscribers
    first have time to receive the last events."""
    standing = await wait_for_end(caller, accepted.thread_id, accepted.run_id)
    if linger:
        await asyncio.sleep(2 * HEARTBEAT_S)
    await remove_thread(caller, standing, accepted.thread_id)


async def remove_thread(caller: Caller, standing: Standing, thread_id: str) -> None:
    """Remove the thread of a run that has ended, once its webhook was delivered."""
    if not standing.message.channel or await wait_for_delivery(caller, thread_id, run_id_of(standing)):
        # If the same key has created another run meanwhile, the thread stays until its time to live expires.
        await caller.threads.remove_resting(thread_id)
