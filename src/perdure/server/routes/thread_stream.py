"""Server-sent events of all runs of a thread, for users who may see it, until the client disconnects."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from sse_starlette import ServerSentEvent

from perdure.errors import SubscriberTooSlow, Unavailable
from perdure.model.messages import FAILED
from perdure.runtime import Event
from perdure.runtime.encoding import encoded
from perdure.runtime.events import END
from perdure.runtime.events.protocol import OWN
from perdure.server import responses, streams
from perdure.server.auth.filters import Filter
from perdure.server.auth.identity import Refusal
from perdure.server.end_frames import wants_end
from perdure.server.state import Caller, CallerNow, ThreadId

router = APIRouter(tags=["threads"])

_AWAY_S = 30.0
_AGAIN_S = 0.5
_MODES = ("run_modes", "lifecycle", "state_update")
_STATE = ("values", "updates")


async def thread_events(
    caller: Caller, thread_id: str, conditions: Filter | None, after: int
) -> AsyncIterator[Event | SubscriberTooSlow]:
    """Yield the events of a thread's runs after a number, until the server stops.

    Events are skipped while the user may not see the thread, as if it did not exist; that includes the error
    for a subscriber that is too slow. A database that is unavailable is retried for up to 30 seconds.

    Args:
        caller: the authenticated user of the request.
        thread_id: the thread.
        conditions: the filter that restricts the user's threads, or None.
        after: the sequence number after which events are yielded.

    Raises:
        Unavailable: the database stayed unavailable.
    """
    host = caller.host
    visible: dict[str, bool] = {}
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
                if event.run_id not in visible:
                    visible = {event.run_id: await _sees(caller, thread_id, conditions)}
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


@router.get("/threads/{thread_id}/stream")
async def join(
    caller: CallerNow,
    request: Request,
    thread_id: ThreadId,
    stream_mode: Annotated[list[str] | None, Query()] = None,
    stream_modes: Annotated[list[str] | None, Query()] = None,
) -> Response:
    """Stream the events of all runs of a thread, from now on or from a given event. ``Last-Event-ID``
    names the event to start after; ``-`` is before the first that is kept."""
    modes = _listed([*(stream_mode or ()), *(stream_modes or ())])
    conditions = await caller.may("threads", "read", {"thread_id": thread_id})
    await caller.visible(thread_id, conditions)
    await caller.runtime.expect_followers(thread_id)
    after = streams.cursor_of(request)
    if after is None:
        after = await caller.runtime.latest_event(thread_id)
    frames = _frames(caller, thread_id, conditions, after, frozenset(modes or ("run_modes",)))
    return streams.stream(caller.host, frames, {}, has_end=wants_end(request))


async def _frames(
    caller: Caller, thread_id: str, conditions: Filter | None, after: int, modes: frozenset[str]
) -> AsyncGenerator[ServerSentEvent, None]:
    async for event in thread_events(caller, thread_id, conditions, after):
        if isinstance(event, SubscriberTooSlow):
            error = {"error": "SubscriberTooSlow", "message": str(event)}
            yield ServerSentEvent(encoded(error), event="error")
        elif event.name == END:
            if "run_modes" in modes or "lifecycle" in modes:
                for frame in await _end(caller, thread_id, event):
                    yield frame
        elif _is_wanted(event.name, modes):
            yield ServerSentEvent(event.data, event=event.name, id=str(event.seq))


def _is_wanted(name: str, modes: frozenset[str]) -> bool:
    if name.startswith(OWN):
        return False
    return (
        "run_modes" in modes
        or ("lifecycle" in modes and name == "metadata")
        or ("state_update" in modes and name in _STATE)
    )


async def _end(caller: Caller, thread_id: str, event: Event) -> list[ServerSentEvent]:
    """Return the events that end a run, as a stream of the run alone contains them."""
    data: dict[str, Any] = json.loads(event.data)
    standing = await caller.runtime.find(thread_id, event.run_id)
    frames: list[ServerSentEvent] = []
    if standing is not None and standing.run is not None and data.get("state") == FAILED:
        error = encoded(responses.run_error(standing.run))
        frames.append(ServerSentEvent(error, event="error"))
    status = "interrupted" if standing is None else responses.run_status(standing) or "interrupted"
    over = encoded({"run_id": event.run_id, "status": status})
    return [*frames, ServerSentEvent(over, event="end", id=str(event.seq))]


def _listed(given: list[str]) -> list[str]:
    listed = [mode for text in given for mode in text.split(",")]
    if unknown := [mode for mode in listed if mode not in _MODES]:
        raise Refusal(
            422, f"there is no stream mode {unknown[0]!r} of a thread; there are {', '.join(_MODES)}"
        )
    return listed
