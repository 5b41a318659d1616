"""Response of server-sent events: its frames, its heartbeats, and its end when its reader takes nothing."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, Collection
from typing import Any, NamedTuple

import anyio
from sse_starlette import EventSourceResponse
from sse_starlette.sse import SendTimeoutError
from starlette.types import Message, Receive, Scope, Send

from perdure.runtime.events import END
from perdure.runtime.json_encoding import to_json

_log = logging.getLogger("perdure.server")
_TURN_S = 0.005
"""Seconds for which a stream may send before others have a turn of the event loop."""
_BREAKS = re.compile(r"[\r\n]+")


class Frame(NamedTuple):
    """One event of a stream. ``data`` is JSON, which has no line breaks."""

    name: str
    data: str
    id: int | None = None

    def encode(self) -> bytes:
        """Return the event as it is sent."""
        # The name of an event contains that of a node, which may have line breaks: these would end the field.
        name = self.name
        if not name.isprintable():
            name = _BREAKS.sub("", name)
        first = ""
        if self.id is not None:
            first = f"id: {self.id}\n"
        return f"{first}event: {name}\ndata: {self.data}\n\n".encode()


def make_error_frame(kind: str, message: str) -> Frame:
    """Return the frame of an error."""
    return Frame("error", to_json({"error": kind, "message": message}))


class EventStream(EventSourceResponse):
    """A stream that is aborted unless its last frame is one of ``ends``: JavaScript clients take an
    orderly end for the end of the run, and reconnect only to a stream that was cut off."""

    def __init__(
        self,
        frames: AsyncGenerator[Frame, None],
        ends: Collection[str],
        *,
        has_end: bool,
        send_timeout: float,
        **more: Any,
    ) -> None:
        """Create the response.

        Args:
            frames: the frames to send; each is made once the reader has taken the one before.
            ends: names of frames that may end the stream.
            has_end: send frames named ``end``.
            send_timeout: seconds for which the reader may take nothing.
            more: further arguments of the base class.
        """
        self._frames = frames
        self._ends = ends
        self._sends_end = has_end
        self._is_complete = False
        self._send_timeout = send_timeout
        super().__init__(frames, send_timeout=send_timeout, **more)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream. If its reader takes nothing for too long, end it without its last frame."""
        try:
            await super().__call__(scope, receive, send)
        except (SendTimeoutError, ExceptionGroup) as error:
            if isinstance(error, ExceptionGroup) and error.split(SendTimeoutError)[1] is not None:
                raise
            _log.warning("a stream was aborted: its reader took nothing for %g s", self.send_timeout)

    async def _stream_response(self, send: Send) -> None:
        """Send the frames. The base class makes a cancel scope and a timer for each frame; here all frames
        share one timer."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        limit = asyncio.timeout(None)
        try:
            async with limit:
                await self._send_frames(send, _SendTimer(limit, self._send_timeout))
        except TimeoutError:
            if not limit.expired():
                raise
            raise SendTimeoutError from None
        finally:
            with anyio.CancelScope(shield=True):
                await self._frames.aclose()
        async with self._send_lock:
            self.active = False
            if self._is_complete:
                await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_frames(self, send: Send, timer: _SendTimer) -> None:
        loop = asyncio.get_running_loop()
        turn_began = loop.time()
        try:
            async for frame in self._frames:
                if loop.time() - turn_began > _TURN_S:
                    # A closed connection takes everything at once: without a turn for others, a stored
                    # stream would be sent to its end before the disconnection is seen.
                    await asyncio.sleep(0)
                    turn_began = loop.time()
                self._is_complete = frame.name in self._ends
                if self._sends_end or frame.name != END:
                    timer.begin()
                    await send(_make_body(frame.encode()))
                    timer.end()
        finally:
            timer.close()


def _make_body(body: bytes) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": True}


class _SendTimer:
    """Ends a stream when sending one of its frames takes longer than ``seconds``. Its timer is not reset for
    each frame: when it fires, it checks when the sending of the current frame began."""

    def __init__(self, limit: asyncio.Timeout, seconds: float) -> None:
        self._limit = limit
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._began_at: float | None = None
        self._timer = self._loop.call_later(seconds, self._check)

    def begin(self) -> None:
        self._began_at = self._loop.time()

    def end(self) -> None:
        self._began_at = None

    def close(self) -> None:
        self._timer.cancel()

    def _check(self) -> None:
        now = self._loop.time()
        end = (now if self._began_at is None else self._began_at) + self._seconds
        if end <= now:
            self._limit.reschedule(now)
        else:
            self._timer = self._loop.call_at(end, self._check)
