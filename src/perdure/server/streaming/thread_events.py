"""Events of all runs of a thread, as far as a user may see the thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from perdure.errors import SubscriberTooSlow, Unavailable
from perdure.runtime import Event
from perdure.server.auth.filters import Filter
from perdure.server.resources import Caller
from perdure.server.streaming import streams

_AWAY_S = 30.0
_AGAIN_S = 0.5


async def thread_events(
    caller: Caller, thread_id: str, conditions: Filter | None, after: int
) -> AsyncIterator[Event | SubscriberTooSlow]:
    """Yield the events of a thread's runs after a number, until the server stops.

    Events are skipped while the user may not see the thread, as if it did not exist; that includes the error
    for a subscriber that is too slow. Whether it is seen is read for each run, and again every ``recheck``
    seconds of the server's limits. A database that is unavailable is retried for up to 30 seconds.

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
    read_again = 0.0
    slow: SubscriberTooSlow | None = None
    away = 0.0
    while not host.closing.is_set():
        try:
            if slow is not None:
                if await _sees(caller, thread_id, conditions):
                    yield slow
                    return
                after, slow = await caller.runtime.latest_event(thread_id), None
            items = caller.runtime.follow_thread(thread_id, after=after)
            async for event in streams.until(host.closing, items):
                if event.run_id not in visible or loop.time() >= read_again:
                    visible = {event.run_id: await _sees(caller, thread_id, conditions)}
                    read_again = loop.time() + host.limits.recheck
                if visible[event.run_id]:
                    yield event
                after, away = event.seq, 0.0
        except SubscriberTooSlow as error:
            slow = error
        except Unavailable:
            away += _AGAIN_S
            if away > _AWAY_S:
                raise
            await asyncio.sleep(_AGAIN_S)


async def _sees(caller: Caller, thread_id: str, conditions: Filter | None) -> bool:
    """Return True if the user may see a thread now."""
    if conditions is None:
        return True
    row = await caller.threads.look(thread_id)
    return row is not None and caller.sees(conditions, row.metadata)
