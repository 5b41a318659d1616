"""HTTP connections that end a request whose head, or trailer, does not end, or that does not arrive, and that
answer clients of HTTP/1.0 in their protocol.

uvicorn's connection on httptools keeps whatever arrives of a head, without a limit, before any application is
asked: one client could fill the memory of the process. It also waits for the rest of a request without a
limit: clients that send nothing, or half of one, could hold every file descriptor of the process.
"""

from __future__ import annotations

import asyncio
from typing import cast

from uvicorn._types import (
    ASGI3Application,
    ASGIReceiveCallable,
    ASGISendCallable,
    ASGISendEvent,
    Scope,
)
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

HEAD_MAX = 65_536
"""Bytes that may arrive, beyond one read, without completing a request's head or bringing a part of its
body."""

REQUEST_S = 60.0
"""Seconds within which a request has to be complete, and one more for every ``BYTES_PER_S`` bytes of it. They
begin with the connection, and with each further request on it; they do not count while a response is under
way, nor while the application does not read."""
BYTES_PER_S = 1_000

KEEP_ALIVE_S = 75
"""Seconds a connection lasts without a request. More than a client or a load balancer keeps it (httpx 5,
nginx and AWS 60): a server that closes first may do so just when the next request is on its way."""


class LimitedConnection(HttpToolsProtocol):
    """uvicorn's connection, closed when ``HEAD_MAX`` or ``REQUEST_S`` is exceeded; without an answer if the
    request's application is already at work, or if too much time has passed."""

    _unfinished = 0
    _has_advanced = False
    _arrived = 0
    _began = 0.0
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.timeout_keep_alive = KEEP_ALIVE_S
        self._expect_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._have_request()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._has_advanced = False
        if self.timeout_keep_alive_task is not None:
            self._expect_request()  # the connection is no longer closed for being idle
        self._arrived += len(data)
        super().data_received(data)
        self._unfinished = 0 if self._has_advanced else self._unfinished + len(data)
        if self._unfinished <= HEAD_MAX or self.transport.is_closing():
            return
        # There is none before the first request.
        cycle = cast(RequestResponseCycle | None, self.cycle)
        if cycle is None or cycle.response_complete:
            self.send_400_response(f"The request's head is longer than {HEAD_MAX} bytes.")
        else:
            self.transport.abort()

    def on_message_begin(self) -> None:
        self._has_advanced = True
        if self._timer is None:
            self._expect_request()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._has_advanced = True
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._has_advanced = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._has_advanced = True
        self._have_request()
        super().on_message_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        if cycle.scope["http_version"] == "1.0":
            app = _without_chunks(app, cycle)
        super()._start_asgi_task(cycle, app)

    def _expect_request(self) -> None:
        self._have_request()
        self._began, self._arrived = self.loop.time(), 0
        self._timer = self.loop.call_later(REQUEST_S, self._look)

    def _have_request(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        """Close the connection if its request takes too long."""
        cycle = cast(RequestResponseCycle | None, self.cycle)
        is_responding = cycle is not None and not (cycle.more_body or cycle.response_complete)
        if is_responding or self.flow.read_paused:
            self._expect_request()
            return
        end = self._began + REQUEST_S + self._arrived / BYTES_PER_S
        if self.loop.time() < end:
            self._timer = self.loop.call_at(end, self._look)
        else:
            self.transport.abort()


def _without_chunks(app: ASGI3Application, cycle: RequestResponseCycle) -> ASGI3Application:
    """Return the application for a client of HTTP/1.0, which takes the sizes of chunks for parts of the body.
    The end of the connection is the end of such a response."""

    async def answered(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        async def unchunked(message: ASGISendEvent) -> None:
            cycle.chunked_encoding = False
            if message["type"] == "http.response.body":
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await app(scope, receive, unchunked)

    return cast(ASGI3Application, answered)
