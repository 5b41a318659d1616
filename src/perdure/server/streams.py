"""Server-sent events of a run, from its beginning or after an event, until its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection
from contextlib import aclosing
from typing import Any, TypeVar

from sse_starlette import EventSourceResponse, ServerSentEvent
from sse_starlette.sse import SendTimeoutError
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from perdure.errors import SubscriberTooSlow, Unavailable
from perdure.model.messages import FAILED
from perdure.runtime import Event, Standing
from perdure.runtime.events import END
from perdure.runtime.json_encoding import encoded
from perdure.server.resources import HEARTBEAT_S, Caller, ServerState
from perdure.server.responses import run_error, run_status

T = TypeVar("T")
_log = logging.getLogger("perdure.server")
_AWAY_S = 30.0
_AGAIN_S = 0.5
STALLED_S = 60.0
"""Seconds for which a reader may take nothing before its stream is aborted. Until then it holds the events of
its run, at most 8 MB, and a connection."""

ALL = "-1"
"""``Last-Event-ID`` of a client that has received no event and wants all of them."""


def cursor_of(request: Request, otherwise: str | None = None) -> int | None:
    """Return the number of the last event that a client received, 0 for all events, or None if neither the
    request nor ``otherwise`` gives one."""
    given = request.headers.get("last-event-id", otherwise)
    if given is None:
        return None
    return int(given) if given.isdecimal() and len(given) < 20 else 0


def names_of(modes: Collection[str]) -> frozenset[str]:
    """Return the names of the events that belong to stream modes."""
    names = {"metadata"}
    for mode in modes:
        if mode == "messages":
            names |= {"messages/metadata", "messages/partial", "messages/complete"}
        else:
            names.add("messages" if mode == "messages-tuple" else mode)
    return frozenset(names)


def respond(
    caller: Caller,
    thread_id: str,
    run_id: str,
    *,
    modes: Collection[str] | None,
    after: int,
    has_ids: bool,
    cancels: bool,
    headers: dict[str, str],
    has_end: bool,
) -> EventSourceResponse:
    """Return a stream of a run's events.

    Args:
        caller: the authenticated user of the request.
        thread_id: the thread.
        run_id: the run.
        modes: the stream modes that are sent, or None for all.
        after: the sequence number after which the stream starts.
        has_ids: send event ids, so that a client can resume after the last one that it received.
        cancels: cancel the run when the client disconnects.
        headers: further headers of the response.
        has_end: send the event that ends the stream.
    """
    frames = _frames(caller, thread_id, run_id, None if modes is None else names_of(modes), after, has_ids)
    return stream(
        caller.host,
        frames if not cancels else _watched(caller, thread_id, run_id, frames),
        headers,
        ends=(END, "error"),
        has_end=has_end,
    )


class _Stream(EventSourceResponse):
    """A stream that is aborted unless its last frame is one of ``ends``: JavaScript clients take an
    orderly end for the end of the run, and reconnect only to a stream that was cut off."""

    def __init__(
        self,
        frames: AsyncGenerator[ServerSentEvent, None],
        ends: Collection[str],
        has_end: bool,
        refused: Callable[[], Awaitable[Any]] | None,
        **more: Any,
    ) -> None:
        self._ends = ends
        self._refused = refused
        self._has_end = has_end
        self._is_whole = False
        super().__init__(self._noted(frames), **more)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sent(message: Message) -> None:
            is_last = message["type"] == "http.response.body" and not message.get("more_body", False)
            if self._is_whole or not is_last:
                await send(message)

        if self._refused is None:
            await self._sent(scope, receive, sent)
            return
        sending = asyncio.ensure_future(self._sent(scope, receive, sent))
        refusing = asyncio.ensure_future(self._refused())
        try:
            await asyncio.wait((sending, refusing), return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                await sending
        finally:
            sending.cancel()
            refusing.cancel()
            await asyncio.gather(sending, refusing, return_exceptions=True)

    async def _sent(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream; one whose reader takes nothing ends here, without its last frame."""
        try:
            await super().__call__(scope, receive, send)
        except (SendTimeoutError, ExceptionGroup) as error:
            if isinstance(error, ExceptionGroup) and error.split(SendTimeoutError)[1] is not None:
                raise
            _log.warning("a stream was aborted: its reader took nothing for %g s", self.send_timeout)

    async def _noted(self, frames: AsyncGenerator[ServerSentEvent, None]) -> AsyncIterator[ServerSentEvent]:
        async with aclosing(frames):
            async for frame in frames:
                self._is_whole = frame.event in self._ends
                if self._has_end or frame.event != END:
                    yield frame


def stream(
    host: ServerState,
    frames: AsyncGenerator[ServerSentEvent, None],
    headers: dict[str, str],
    *,
    ends: Collection[str] = (),
    has_end: bool = True,
    refused: Callable[[], Awaitable[Any]] | None = None,
) -> EventSourceResponse:
    """Return a stream of frames, with heartbeats while there are none.

    Args:
        host: the server's state.
        frames: the frames to send.
        headers: further headers of the response.
        ends: names of frames that may end the stream; after any other last frame the connection is
            aborted, so that clients reconnect.
        has_end: send frames named ``end``.
        refused: returns once the user may no longer have the stream, which is aborted then.
    """
    return _Stream(
        frames,
        ends,
        has_end,
        refused,
        ping=round(HEARTBEAT_S),
        ping_message_factory=lambda: ServerSentEvent(comment="heartbeat"),
        send_timeout=STALLED_S,
        sep="\n",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no", **headers},
    )


def refused(host: ServerState, kind: str, message: str) -> EventSourceResponse:
    """Return a stream that consists of one error."""

    async def frames() -> AsyncGenerator[ServerSentEvent, None]:
        yield ServerSentEvent(encoded({"error": kind, "message": message}), event="error")

    return stream(host, frames(), {}, ends=("error",))


async def _frames(
    caller: Caller, thread_id: str, run_id: str, names: frozenset[str] | None, after: int, has_ids: bool
) -> AsyncGenerator[ServerSentEvent, None]:
    async for item in followed(caller, thread_id, run_id, after):
        if isinstance(item, Standing):
            if item.run is not None and item.run.state == FAILED:
                yield ServerSentEvent(encoded(run_error(item.run)), event="error")
            status = run_status(item) or "interrupted"
            yield ServerSentEvent(encoded({"run_id": run_id, "status": status}), event="end")
        elif isinstance(item, SubscriberTooSlow):
            yield ServerSentEvent(
                encoded({"error": "SubscriberTooSlow", "message": str(item)}), event="error"
            )
        elif names is None or item.name.partition("|")[0] in names or _is_question(item):
            yield ServerSentEvent(item.data, event=item.name, id=str(item.seq) if has_ids else None)


def _is_question(event: Event) -> bool:
    return event.name.startswith("updates") and event.data.startswith('{"__interrupt__"')


async def followed(
    caller: Caller, thread_id: str, run_id: str, after: int
) -> AsyncIterator[Event | Standing | SubscriberTooSlow]:
    """Yield a run's events until the server stops, and its ``Standing`` at the end of the run.

    A database that is unavailable is retried for up to 30 seconds. The stream ends without a ``Standing``
    if the server stops: the client then resumes at another server.

    Args:
        caller: the authenticated user of the request.
        thread_id: the thread.
        run_id: the run.
        after: the sequence number after which events are yielded.
    """
    host = caller.host
    away = 0.0
    while not host.closing.is_set():
        items = caller.runtime.follow(thread_id, run_id, after=after)
        try:
            async for item in until(host.closing, items):
                yield item
                away = 0.0
                if isinstance(item, Standing):
                    return
                after = item.seq
        except SubscriberTooSlow as error:
            yield error
            return
        except Unavailable:
            away += _AGAIN_S
            if away > _AWAY_S:
                return
            await asyncio.sleep(_AGAIN_S)


async def until(closing: asyncio.Event, items: AsyncIterator[T]) -> AsyncIterator[T]:
    """Yield items until there are no more, or until ``closing`` is set."""
    waiting: list[asyncio.Task[Any]] = []
    ended: list[asyncio.Task[Any]] = []

    def end(_: object) -> None:
        for task in waiting:
            task.cancel()
            ended.append(task)

    # As in asyncio.timeout: the wait for an item is cancelled, so that an item takes no task of its own.
    closed = asyncio.ensure_future(closing.wait())
    closed.add_done_callback(end)
    try:
        while not closing.is_set():
            waiting.extend(task for task in (asyncio.current_task(),) if task is not None)
            try:
                item = await anext(items)
            except StopAsyncIteration:
                return
            except asyncio.CancelledError:
                if ended and ended[0].uncancel() == 0:
                    return
                raise
            finally:
                waiting.clear()
            yield item
    finally:
        closed.remove_done_callback(end)
        closed.cancel()


async def _watched(
    caller: Caller, thread_id: str, run_id: str, frames: AsyncIterator[ServerSentEvent]
) -> AsyncGenerator[ServerSentEvent, None]:
    """Yield the frames of a run, and cancel the run if the client disconnects before its end."""
    is_over = False
    try:
        async for frame in frames:
            is_over = is_over or frame.event == "end"
            yield frame
    finally:
        if not is_over and not caller.host.closing.is_set():
            caller.host.apart(caller.runtime.cancel(thread_id, run_id))


async def while_waiting(work: asyncio.Task[Any]) -> AsyncIterator[bytes]:
    """Yield a body that is a JSON document once the work is done, and blank lines before that, which keep
    the connection alive and have no meaning in JSON."""
    while not work.done():
        await asyncio.wait([work], timeout=HEARTBEAT_S)
        if not work.done():
            yield b"\n"
    yield work.result()
