"""Routes of the event streaming protocol: a thread's filtered events, and its commands.

A client may subscribe to a thread before it exists, as clients choose the ids of their threads. For another
user's thread the response is the same as for one that does not exist.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field, StrictInt, ValidationError
from sse_starlette import ServerSentEvent

from perdure.errors import PerdureError, SubscriberTooSlow
from perdure.model.messages import OPEN, WAITING
from perdure.model.records import Partition
from perdure.runtime import Event
from perdure.runtime.encoding import encoded
from perdure.runtime.events import END
from perdure.server import commands, streams
from perdure.server.auth.filters import Filter
from perdure.server.auth.identity import Refusal
from perdure.server.protocol_events import CHANNELS, EventFilter, is_channel, project
from perdure.server.responses import Json
from perdure.server.routes import thread_stream
from perdure.server.state import Caller, CallerNow, ServerState, ThreadId

router = APIRouter(tags=["protocol"])

_log = logging.getLogger("perdure.server")
_LATEST = 20
"""Number of messages among which the latest run is searched; the newest may be queued without a run."""
_LATE_S = 30.0
"""Seconds after a run's end during which a subscriber without a number receives the run from its beginning.
"""
_KNOWN = 10_000


class _Subscription(BaseModel):
    model_config = ConfigDict(extra="ignore")

    channels: list[str] = Field(min_length=1, max_length=100)
    namespaces: list[list[str]] | None = Field(None, max_length=1000)
    depth: StrictInt | None = Field(None, ge=0)
    since: StrictInt | None = Field(None, ge=0)


@router.post("/threads/{thread_id}/commands")
async def command(caller: CallerNow, request: Request, thread_id: ThreadId) -> Json:
    """Execute a command; errors are part of the response."""
    body = await _body(request)
    number, method, params = body.get("id"), body.get("method"), body.get("params")
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise Refusal(400, "a command needs an id: a whole number that is not negative")
    if not isinstance(method, str) or not isinstance(params, dict | None):
        raise Refusal(400, "a command needs a method, which is text, and params, which are an object")
    # Events up to this number precede the command.
    before = max(0, await caller.runtime.latest_event(thread_id))
    answer = {**await commands.do(caller, request, thread_id, method, params or {}), "id": number}
    # A user without access to a thread must not learn that it has events.
    return Json({**answer, "meta": {"applied_through_seq": before}} if "result" in answer else answer)


@router.post("/threads/{thread_id}/stream/events")
async def events(caller: CallerNow, request: Request, thread_id: ThreadId) -> Response:
    """Stream the events of a thread in some channels until the client disconnects: those after ``since``, or
    from the beginning of the run that is under way or waits."""
    asked = _subscription(await _body(request))
    wanted = EventFilter(
        frozenset(asked.channels),
        None if asked.namespaces is None else tuple(map(tuple, asked.namespaces)),
        asked.depth,
    )
    conditions = await caller.may("threads", "read", {"thread_id": thread_id})
    await caller.runtime.expect_followers(thread_id)
    start = _Start(asked.since) if asked.since is not None else await _start(caller, thread_id, wanted)
    return streams.stream(caller.host, _frames(caller, thread_id, conditions, wanted, start), {})


async def _body(request: Request) -> dict[str, Any]:
    try:
        body = await request.json()
    except (ValueError, RecursionError):
        raise Refusal(400, "the body is not JSON, or nested too deeply") from None
    if not isinstance(body, dict):
        raise Refusal(400, "the body is not a JSON object")
    return body


def _subscription(body: dict[str, Any]) -> _Subscription:
    try:
        asked = _Subscription.model_validate(body)
    except ValidationError as error:
        wrong = error.errors()[0]
        raise Refusal(400, f"{'.'.join(map(str, wrong['loc']))}: {wrong['msg']}") from None
    if unknown := [name for name in asked.channels if not is_channel(name)]:
        raise Refusal(
            400, f"there is no channel {unknown[0]!r}; there are {', '.join(CHANNELS)}, custom:NAME"
        )
    return asked


async def _frames(
    caller: Caller, thread_id: str, conditions: Filter | None, wanted: EventFilter, start: _Start
) -> AsyncGenerator[ServerSentEvent, None]:
    partition = caller.partition(thread_id)
    try:
        async for event in thread_stream.thread_events(caller, thread_id, conditions, start.after):
            if isinstance(event, SubscriberTooSlow):
                yield _failed(str(event))
                return
            if not start.includes(event):
                continue
            for frame in project(event, wanted):
                if frame.seq > start.after:
                    yield ServerSentEvent(frame.text, event=frame.method, id=str(frame.seq))
            if event.name == END:
                _ends(caller.host).given(partition, event.run_id, wanted)
    except PerdureError as error:
        _log.error("the events of a thread could not be read: %s", type(error).__name__)
        yield _failed("the events of the thread could not be read; open the stream again")
        return
    yield _failed("the server is stopping; open the stream again")


def _failed(message: str) -> ServerSentEvent:
    error = {"type": "error", "id": None, "error": "unknown_error", "message": message}
    return ServerSentEvent(encoded(error), event="error")


class _Start(NamedTuple):
    """Position at which a stream begins. Up to ``through`` it contains only the events of ``run_id``."""

    after: int
    through: int = -1
    run_id: str = ""

    def includes(self, event: Event) -> bool:
        return event.seq > self.through or event.run_id == self.run_id


async def _start(caller: Caller, thread_id: str, wanted: EventFilter) -> _Start:
    """Return the start of a stream for a subscriber without a number: the run that is under way or waits for
    an answer. A run that has just ended is included, as a client learns of its run before it subscribes; but
    only once, or the next turn would begin with the end of the last."""
    partition = caller.partition(thread_id)
    through = await caller.runtime.latest_event(thread_id)
    latest = await caller.runtime.messages(thread_id, limit=_LATEST)
    run = next((standing.run for standing in latest if standing.run is not None), None)
    if run is None:
        return _Start(through)
    if run.state not in (OPEN, WAITING):
        is_late = await caller.host.runtime.now() - run.updated_at > _LATE_S * 1_000_000
        if is_late or _ends(caller.host).was_given(partition, run.id, wanted):
            return _Start(through)
    return _Start(min(through, run.started_at - 1), through, run.id)


class _Ends:
    """The ends of runs that streams of this server have recently sent, by thread, run and filter."""

    def __init__(self) -> None:
        self._given: OrderedDict[tuple[Partition, str, EventFilter], float] = OrderedDict()

    def given(self, partition: Partition, run_id: str, wanted: EventFilter) -> None:
        now = time.monotonic()
        self._given[partition, run_id, wanted] = now
        while self._given and (
            len(self._given) > _KNOWN or next(iter(self._given.values())) < now - 2 * _LATE_S
        ):
            self._given.popitem(last=False)

    def was_given(self, partition: Partition, run_id: str, wanted: EventFilter) -> bool:
        return (partition, run_id, wanted) in self._given


_all_ends: WeakKeyDictionary[ServerState, _Ends] = WeakKeyDictionary()


def _ends(host: ServerState) -> _Ends:
    found = _all_ends.get(host)
    if found is None:
        found = _all_ends[host] = _Ends()
    return found
