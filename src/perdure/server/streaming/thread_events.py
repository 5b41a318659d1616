"""Events of all runs of a thread, as far as a user may see the thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from perdure.errors import SubscriberTooSlow, Unavailable
from perdure.runtime import Event
from perdure.server.auth.filters import Filter
from perdure.server.resources import Caller
from perdure.server.streaming import streams


async def thread_events(
    caller: Caller, thread_id: str, conditions: Filter | None, after: int
) -> AsyncIterator[Event | SubscriberTooSlow]:
    """Yield the events of a thread's runs after a number, until the server stops.

    While the user may not see the thread, its events are skipped, as if it did not exist, and so is the error
    for a subscriber that is too slow. The right to see the thread is checked for each run, and again every
    ``recheck`` seconds of the server's limits. If the database is unavailable, reading is retried for up to
    30 seconds.

    Args:
        caller: the authenticated user of the request.
        thread_id: the thread.
        conditions: the filter that restricts the user's threads, or None.
        after: the sequence number after which events are yielded.

    Raises:
        Unavailable: the database stayed unavailable.
    """
    host = caller.host
    loop = asyncio.get_running_loop()
    visible: dict[str, bool] = {}
    check_again_at = 0.0
    too_slow: SubscriberTooSlow | None = None
    unavailable_s = 0.0
    while not host.closing.is_set():
        try:
            if too_slow is not None:
                if await _may_see(caller, thread_id, conditions):
                    yield too_slow
                    return
                after, too_slow = await caller.runtime.latest_event(thread_id), None
            items = caller.runtime.follow_thread(thread_id, after=after)
            async for event in streams.iterate_until(host.closing, items):
                if event.run_id not in visible or loop.time() >= check_again_at:
                    visible = {event.run_id: await _may_see(caller, thread_id, conditions)}
                    check_again_at = loop.time() + host.limits.recheck
                if visible[event.run_id]:
                    yield event
                after, unavailable_s = event.seq, 0.0
        except SubscriberTooSlow as error:
            too_slow = error
        except Unavailable:
            unavailable_s += streams.RETRY_S
            if unavailable_s > streams.UNAVAILABLE_S:
                raise
            await asyncio.sleep(streams.RETRY_S)


async def _may_see(caller: Caller, thread_id: str, conditions: Filter | None) -> bool:
    """Return True if the user may see a thread now."""
    if conditions is None:
        return True
    row = await caller.threads.find(thread_id)
    return row is not None and caller.sees(conditions, row.metadata)
