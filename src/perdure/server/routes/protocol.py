"""Routes of the event streaming protocol: a thread's filtered events, and its commands.

A client may subscribe to a thread before it exists, as clients choose the ids of their threads. The response
for another user's thread is the same as for a thread that does not exist.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import Request, Response
from starlette.datastructures import Headers

from perdure.runtime.json_encoding import to_json
from perdure.server import error_handlers
from perdure.server.auth.identity import Refusal
from perdure.server.openapi import make_router
from perdure.server.resources import Caller, CallerNow, GatedRoute, ThreadId
from perdure.server.responses import Json
from perdure.server.streaming import protocol_commands, protocol_subscriptions, streams
from perdure.server.streaming.event_stream import Frame
from perdure.server.streaming.protocol_events import ProtocolEvent
from perdure.server.streaming.protocol_subscriptions import Failed
from perdure.server.streaming.reading_rights import ReadingRights, reads_as_before
from perdure.web.guard import needs_preflight

router = make_router("protocol", GatedRoute)


@router.post("/threads/{thread_id}/commands")
async def command(caller: CallerNow, request: Request, thread_id: ThreadId) -> Json:
    """Execute a command; errors are part of the response."""
    return Json(await execute(caller, request.headers, thread_id, await _read_body(request)))


async def execute(caller: Caller, headers: Headers, thread_id: str, body: dict[str, Any]) -> dict[str, Any]:
    """Execute a command and return its response; raise ``Refusal`` if ``body`` is not a command.

    Args:
        caller: the authenticated user of the request.
        headers: the headers of the request.
        thread_id: the thread.
        body: the command.
    """
    number, method, params = parse_envelope(body)
    # Events up to this number precede the command.
    before = max(0, await caller.runtime.latest_event(thread_id))
    answer = {**await protocol_commands.execute(caller, headers, thread_id, method, params), "id": number}
    # A user without access to a thread must not learn that it has events.
    if "result" in answer:
        return {**answer, "meta": {"applied_through_seq": before}}
    return answer


def parse_envelope(body: dict[str, Any]) -> tuple[int, str, dict[str, Any]]:
    """Return the number, the method and the parameters of a command; raise ``Refusal`` if the number or the
    method is missing or one of the three has the wrong type."""
    number, method, params = body.get("id"), body.get("method"), body.get("params")
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise Refusal(400, "a command needs an id: a whole number that is not negative")
    if not isinstance(method, str) or not isinstance(params, dict | None):
        raise Refusal(400, "a command needs a method, which is text, and its params have to be an object")
    return number, method, params or {}


@router.post("/threads/{thread_id}/stream/events")
async def events(caller: CallerNow, request: Request, thread_id: ThreadId) -> Response:
    """Stream the events of a thread in the requested channels until the client disconnects: those after
    ``since``, by default from the beginning of the run that is in progress or waiting."""
    subscription = protocol_subscriptions.read(await _read_body(request))
    conditions = await caller.may("threads", "read", {"thread_id": thread_id})
    subscribed = await protocol_subscriptions.subscribe(caller, thread_id, conditions, subscription)
    rights = ReadingRights(request, caller, reads_as_before(thread_id, conditions))
    return rights.guard(streams.stream(caller.host, _make_frames(subscribed), {}))


async def _make_frames(
    subscribed: AsyncGenerator[ProtocolEvent | Failed, None],
) -> AsyncGenerator[Frame, None]:
    async with aclosing(subscribed):
        async for event in subscribed:
            if isinstance(event, Failed):
                yield Frame("error", to_json(error(None, "unknown_error", event.message)))
            else:
                yield Frame(event.method, event.text, event.seq)


def error(number: int | None, code: str, message: str) -> dict[str, Any]:
    """Return an error of the protocol: the response to a command, or, without a number, an event."""
    return {"type": "error", "id": number, "error": code, "message": message}


async def _read_body(request: Request) -> dict[str, Any]:
    if not needs_preflight(request.headers):
        raise Refusal(400, error_handlers.describe_wrong_content_type(request))
    try:
        body = await request.json()
    except (ValueError, RecursionError):
        raise Refusal(400, "the body is not JSON, or nested too deeply") from None
    if not isinstance(body, dict):
        raise Refusal(400, "the body is not a JSON object")
    return body
