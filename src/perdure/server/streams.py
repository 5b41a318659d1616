"""Runs as server-sent events: what a run tells, from the beginning or after an event, until its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Collection
from contextlib import aclosing
from typing import Any, TypeVar

from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from perdure.engine.events import END
from perdure.engine.inbox import Standing
from perdure.errors import SubscriberTooSlow, Unavailable
from perdure.model.messages import FAILED
from perdure.runtime import Event
from perdure.runtime.encoding import encoded
from perdure.server.responses import run_error, run_status
from perdure.server.state import HEARTBEAT_S, Caller, ServerState

T = TypeVar("T")
_AWAY_S = 30.0
_AGAIN_S = 0.5


ALL = "-1"
"""What a client says that has seen nothing and wants all of it."""


def cursor_of(request: Request, otherwise: str | None = None) -> int | None:
    """The number of the event that a client saw last, 0 for all of them, ``None`` when it says nothing, nor
    ``otherwise`` for it."""
    said = request.headers.get("last-event-id", otherwise)
    if said is None:
        return None
    return int(said) if said.isdecimal() and len(said) < 20 else 0


def names_of(modes: Collection[str]) -> frozenset[str]:
    """The names of the events that belong to modes."""
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
    """A stream of a run. With ``has_ids`` a client can come back and go on after the last it saw; with
    ``cancels`` the run ends when the client goes away. ``modes`` are those that it wants of what is told."""
    frames = _frames(caller, thread_id, run_id, None if modes is None else names_of(modes), after, has_ids)
    return stream(
        caller.host,
        frames if not cancels else _watched(caller, thread_id, run_id, frames),
        headers,
        ends=(END, "error"),
        has_end=has_end,
    )


class _Stream(EventSourceResponse):
    """Frames, which are broken off unless the last of them is one of ``ends``: clients in JavaScript take an
    orderly end for the end of what they follow, and come back only to what was cut off."""

    def __init__(
        self,
        frames: AsyncGenerator[ServerSentEvent, None],
        ends: Collection[str],
        has_end: bool,
        **more: Any,
    ) -> None:
        self._ends = ends
        self._has_end = has_end
        self._is_whole = False
        super().__init__(self._noted(frames), **more)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sent(message: Message) -> None:
            is_last = message["type"] == "http.response.body" and not message.get("more_body", False)
            if self._is_whole or not is_last:
                await send(message)

        await super().__call__(scope, receive, sent)

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
) -> EventSourceResponse:
    """Frames on an open connection, and something now and then where there are none. One of ``ends`` may be
    the last; otherwise clients are to come back. Without ``has_end`` frames of that name are not sent."""
    return _Stream(
        frames,
        ends,
        has_end,
        ping=round(HEARTBEAT_S),
        ping_message_factory=lambda: ServerSentEvent(comment="heartbeat"),
        sep="\n",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no", **headers},
    )


def refused(host: ServerState, kind: str, message: str) -> EventSourceResponse:
    """A stream of an error and nothing else."""

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
    """What a run tells, as long as this server goes on; a database that is away for a moment is waited for.
    Ends without a ``Standing`` when the server stops: the client comes back elsewhere."""
    host = caller.host
    away = 0.0
    while not host.closing.is_set():
        items = host.runtime.follow(thread_id, run_id, after=after, tenant=caller.user.tenant)
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
    """Items until there are no more or something closes."""
    closed = asyncio.ensure_future(closing.wait())
    try:
        while True:
            coming = asyncio.ensure_future(anext(items))
            try:
                await asyncio.wait((coming, closed), return_when=asyncio.FIRST_COMPLETED)
            finally:
                if not coming.done():
                    coming.cancel()
            if not coming.done():
                return
            try:
                yield coming.result()
            except StopAsyncIteration:
                return
    finally:
        closed.cancel()


async def _watched(
    caller: Caller, thread_id: str, run_id: str, frames: AsyncIterator[ServerSentEvent]
) -> AsyncGenerator[ServerSentEvent, None]:
    """Frames of a run that ends when nobody takes them any more."""
    is_over = False
    try:
        async for frame in frames:
            is_over = is_over or frame.event == "end"
            yield frame
    finally:
        if not is_over and not caller.host.closing.is_set():
            caller.host.apart(caller.host.runtime.cancel(thread_id, run_id, tenant=caller.user.tenant))


async def while_waiting(work: asyncio.Task[Any]) -> AsyncIterator[bytes]:
    """A body that is a JSON document once the work is done, and blank lines before that, which keep the
    connection alive and mean nothing in JSON."""
    while not work.done():
        await asyncio.wait([work], timeout=HEARTBEAT_S)
        if not work.done():
            yield b"\n"
    yield work.result()
