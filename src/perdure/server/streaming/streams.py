"""Server-sent events of a run, from its beginning or after an event, until its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Collection
from typing import Any, TypeVar

from sse_starlette import EventSourceResponse
from starlette.requests import Request
from starlette.responses import Response

from perdure.errors import NotFound, SubscriberTooSlow, Unavailable
from perdure.model.runs.messages import FAILED
from perdure.runtime import Event, Standing
from perdure.runtime.events import END, LAST
from perdure.runtime.json_encoding import to_json
from perdure.server.error_handlers import make_event_data
from perdure.server.resources import HEARTBEAT_S, Caller, ServerState
from perdure.server.responses import run_error, run_status
from perdure.server.runs.disconnects import cancel_left
from perdure.server.runs.run_creation import AcceptedRun
from perdure.server.streaming.event_stream import EventStream, Frame, make_error_frame
from perdure.server.streaming.reading_rights import RunRights

T = TypeVar("T")
UNAVAILABLE_S = 30.0
"""Seconds for which a stream waits for a database that is unavailable."""
RETRY_S = 0.5
STALLED_S = 60.0
"""Seconds for which a client may read nothing before its stream is aborted. Until then the stream occupies a
connection, and memory for a page of its run's events."""

_HEARTBEAT: Any = b": heartbeat\n"
"""A comment without the blank line that ends an event: with it, JavaScript clients would take the comment for
an event without a name, with the id of the event before."""

_DIGITS = 20

ALL = "-1"
"""``Last-Event-ID`` of a client that has received no event and wants all of them."""


def cursor_of(request: Request, otherwise: str | None = None) -> int | None:
    """Return the number of the last event that a client received, 0 for all events, or None if neither the
    request nor ``otherwise`` gives one."""
    value = request.headers.get("last-event-id", otherwise)
    if value is None:
        return None
    is_number = value.isascii() and value.isdigit() and len(value) < _DIGITS
    # No event has a number greater than ``LAST``.
    if is_number and int(value) <= LAST:
        return int(value)
    return 0


_NAMES_OF = {
    "messages": {"messages/metadata", "messages/partial", "messages/complete"},
    "messages-tuple": {"messages"},
}
"""Names of the events of a stream mode, if they are not the mode's own."""


def names_of(modes: Collection[str]) -> frozenset[str]:
    """Return the names of the events that belong to stream modes."""
    names = {"metadata"}
    for mode in modes:
        names |= _NAMES_OF.get(mode, {mode})
    return frozenset(names)


def respond(
    caller: Caller,
    accepted: AcceptedRun,
    *,
    modes: Collection[str] | None,
    after: int,
    has_ids: bool,
    cancels: bool,
    headers: dict[str, str],
    has_end: bool,
    rights: RunRights,
) -> Response:
    """Return a stream of a run's events.

    Args:
        caller: the authenticated user of the request.
        accepted: the run, and the request that follows it.
        modes: the stream modes that are sent, or None for all.
        after: the sequence number after which the stream starts.
        has_ids: send event ids, so that a client can resume after the last one that it received.
        cancels: cancel the run when the client disconnects, unless a later request follows it.
        headers: further headers of the response.
        has_end: send the event that ends the stream.
        rights: the user's right to the run; when it is lost, the stream ends.
    """
    names = None if modes is None else names_of(modes)
    frames = _frames(caller, accepted.thread_id, accepted.run_id, names, after, has_ids)
    if cancels:
        frames = _cancel_on_disconnect(caller, accepted, frames, rights)
    return rights.guard(stream(caller.host, frames, headers, ends=(END, "error"), has_end=has_end))


def stream(
    host: ServerState,
    frames: AsyncGenerator[Frame, None],
    headers: dict[str, str],
    *,
    ends: Collection[str] = (),
    has_end: bool = True,
) -> EventSourceResponse:
    """Return a stream of frames, with heartbeats while there are none.

    Args:
        host: the server's state.
        frames: the frames to send.
        headers: further headers of the response.
        ends: names of frames that may end the stream; after any other last frame the connection is
            aborted, so that clients reconnect.
        has_end: send frames named ``end``.
    """
    return EventStream(
        frames,
        ends,
        has_end=has_end,
        ping=HEARTBEAT_S,
        ping_message_factory=lambda: _HEARTBEAT,
        send_timeout=STALLED_S,
        sep="\n",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no", **headers},
    )


def respond_not_found(host: ServerState, message: str) -> EventSourceResponse:
    """Return the stream for a run that does not exist: one error, as LangGraph's clients expect."""

    async def frames() -> AsyncGenerator[Frame, None]:
        yield make_error_frame("NotFound", f"404: {message}")

    return stream(host, frames(), {}, ends=("error",))


async def _frames(
    caller: Caller, thread_id: str, run_id: str, names: frozenset[str] | None, after: int, has_ids: bool
) -> AsyncGenerator[Frame, None]:
    try:
        async for item in follow(caller, thread_id, run_id, after):
            if isinstance(item, Standing):
                if item.run is not None and item.run.state == FAILED:
                    yield Frame("error", to_json(run_error(item.run)))
                yield make_end_frame(run_id, item)
            elif isinstance(item, SubscriberTooSlow):
                yield make_error_frame("SubscriberTooSlow", str(item))
            elif names is None or item.name.partition("|")[0] in names or _is_question(item):
                yield Frame(item.name, make_event_data(item.name, item.data), item.seq if has_ids else None)
    except NotFound as error:
        # The run was removed meanwhile. A client that reconnected would get the same error.
        yield make_error_frame("NotFound", f"404: {error}")


def make_end_frame(run_id: str, standing: Standing | None, event_id: int | None = None) -> Frame:
    """Return the frame that ends the stream of a run; ``standing`` is None for a run that was removed."""
    status = "interrupted"
    if standing is not None:
        status = run_status(standing) or status
    return Frame(END, to_json({"run_id": run_id, "status": status}), event_id)


def _is_question(event: Event) -> bool:
    """Return True if the event shows an interrupt; False also for a breakpoint, whose list of interrupts is
    empty."""
    return event.name.startswith("updates") and event.data.startswith('{"__interrupt__":[{')


async def follow(
    caller: Caller, thread_id: str, run_id: str, after: int
) -> AsyncIterator[Event | Standing | SubscriberTooSlow]:
    """Yield a run's events until the server stops, and its ``Standing`` at the end of the run.

    If the database is unavailable, reading is retried for up to 30 seconds. If the server stops, the stream
    ends without a ``Standing``, and the client resumes at another server.

    Args:
        caller: the authenticated user of the request.
        thread_id: the thread.
        run_id: the run.
        after: the sequence number after which events are yielded.
    """
    host = caller.host
    unavailable_s = 0.0
    while not host.closing.is_set():
        items = caller.runtime.follow(thread_id, run_id, after=after)
        try:
            async for item in iterate_until(host.closing, items):
                yield item
                unavailable_s = 0.0
                if isinstance(item, Standing):
                    return
                after = item.seq
        except SubscriberTooSlow as error:
            yield error
            return
        except Unavailable:
            unavailable_s += RETRY_S
            if unavailable_s > UNAVAILABLE_S:
                return
            await asyncio.sleep(RETRY_S)


async def iterate_until(closing: asyncio.Event, items: AsyncIterator[T]) -> AsyncIterator[T]:
    """Yield items until there are no more, or until ``closing`` is set."""
    waiting: list[asyncio.Task[Any]] = []
    cancelled: list[asyncio.Task[Any]] = []

    def cancel_waiting(_: object) -> None:
        for task in waiting:
            task.cancel()
            cancelled.append(task)

    # As in asyncio.timeout, the wait for an item is cancelled, so that it does not need a task of its own.
    closed = asyncio.ensure_future(closing.wait())
    closed.add_done_callback(cancel_waiting)
    try:
        while not closing.is_set():
            if (task := asyncio.current_task()) is not None:
                waiting.append(task)
            try:
                item = await anext(items)
            except StopAsyncIteration:
                return
            except asyncio.CancelledError:
                if cancelled and cancelled[0].uncancel() == 0:
                    return
                raise
            finally:
                waiting.clear()
            yield item
    finally:
        closed.remove_done_callback(cancel_waiting)
        closed.cancel()


async def _cancel_on_disconnect(
    caller: Caller, accepted: AcceptedRun, frames: AsyncIterator[Frame], rights: RunRights
) -> AsyncGenerator[Frame, None]:
    """Yield the frames of a run, and cancel the run if the client disconnects before its end."""
    is_over = False
    try:
        async for frame in frames:
            is_over = is_over or frame.name == END
            yield frame
    finally:
        if not (is_over or rights.is_lost or caller.host.closing.is_set()):
            caller.host.run_in_background(
                cancel_left(caller, accepted.thread_id, accepted.run_id, accepted.request)
            )
