"""Server-sent events of all runs of a thread, for users who may see it, until the client disconnects."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator

from fastapi import Request, Response

from perdure.errors import SubscriberTooSlow
from perdure.model.runs.messages import FAILED
from perdure.runtime.events import END, REMINDER
from perdure.runtime.events.protocol import OWN
from perdure.runtime.json_encoding import to_json
from perdure.runtime.options import describe_unknown_modes
from perdure.server import responses
from perdure.server.auth.filters import Filter
from perdure.server.auth.identity import Refusal
from perdure.server.error_handlers import make_event_data
from perdure.server.openapi import make_router
from perdure.server.resources import Caller, CallerNow, GatedRoute, QueriedNames, ThreadId
from perdure.server.streaming import streams
from perdure.server.streaming.end_frames import wants_end
from perdure.server.streaming.event_stream import Frame, make_error_frame
from perdure.server.streaming.reading_rights import ReadingRights, reads_as_before
from perdure.server.streaming.thread_events import thread_events

router = make_router("threads", GatedRoute)

_MODES = ("run_modes", "lifecycle", "state_update")
_STATE = ("values", "updates")


@router.get("/threads/{thread_id}/stream")
async def join(
    caller: CallerNow,
    request: Request,
    thread_id: ThreadId,
    stream_mode: QueriedNames = None,
    stream_modes: QueriedNames = None,
) -> Response:
    """Stream the events of all runs of a thread, from now on or from a given event. ``Last-Event-ID``
    names the event to start after; ``-`` is before the first that is kept."""
    modes = _parse_modes([*(stream_mode or ()), *(stream_modes or ())])
    conditions = await caller.may("threads", "read", {"thread_id": thread_id})
    await caller.find_visible_thread(thread_id, conditions)
    await caller.runtime.expect_followers(thread_id)
    after = streams.cursor_of(request)
    if after is None:
        after = await caller.runtime.latest_event(thread_id)
    frames = _make_frames(caller, thread_id, conditions, after, frozenset(modes or ("run_modes",)))
    rights = ReadingRights(request, caller, reads_as_before(thread_id, conditions))
    return rights.guard(streams.stream(caller.host, frames, {}, has_end=wants_end(request)))


async def _make_frames(
    caller: Caller, thread_id: str, conditions: Filter | None, after: int, modes: frozenset[str]
) -> AsyncGenerator[Frame, None]:
    async for event in thread_events(caller, thread_id, conditions, after):
        if isinstance(event, SubscriberTooSlow):
            yield make_error_frame("SubscriberTooSlow", str(event))
        elif event.name == END:
            if "run_modes" in modes or "lifecycle" in modes:
                # As in a stream of the run alone.
                standing = await caller.runtime.find(thread_id, event.run_id)
                is_failed = json.loads(event.data).get("state") == FAILED
                if is_failed and standing is not None and standing.run is not None:
                    yield Frame("error", to_json(responses.run_error(standing.run)))
                yield streams.make_end_frame(event.run_id, standing, event.seq)
        elif event.name == REMINDER and "run_modes" in modes:
            yield Frame(REMINDER, to_json(responses.reminder(event.data)), event.seq)
        elif _is_wanted(event.name, modes):
            yield Frame(event.name, make_event_data(event.name, event.data), event.seq)


def _is_wanted(name: str, modes: frozenset[str]) -> bool:
    if name.startswith(OWN):
        return False
    return (
        "run_modes" in modes
        or ("lifecycle" in modes and name == "metadata")
        or ("state_update" in modes and name in _STATE)
    )


def _parse_modes(given: list[str]) -> list[str]:
    listed = [mode for text in given for mode in text.split(",")]
    if unknown := [mode for mode in listed if mode not in _MODES]:
        raise Refusal(422, describe_unknown_modes(unknown, _MODES, "a thread"))
    return listed
