"""HTTP connections that abort a request whose head or trailer has no end, a request that does not arrive in
time, and a response that the client does not read. They answer clients of HTTP/1.0 in their protocol.

uvicorn's connection on httptools keeps whatever arrives of a head, and every request that is sent before
earlier ones are answered, without a limit: one client could fill the memory of the process. It also waits for
the rest of a request, and for a client that reads nothing, without a limit: such clients could hold every
file descriptor of the process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sized
from typing import Any, cast

import uvicorn
from uvicorn._types import (
    ASGI3Application,
    ASGIReceiveCallable,
    ASGISendCallable,
    ASGISendEvent,
    Scope,
)
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

HEAD_MAX = 65_536
"""Bytes that may arrive, beyond one read, without completing a request's head or bringing a part of its
body."""

REQUEST_S = 60.0
"""Seconds within which a request has to be complete, and one more for every ``BYTES_PER_S`` bytes of it. This
time begins with the connection, and with each further request on it. It does not count while a response is
under way, nor while the application does not read."""
BYTES_PER_S = 1_000

KEEP_ALIVE_S = 75
"""Seconds a connection lasts without a request. Clients and load balancers close it earlier (httpx after 5,
nginx and AWS after 60): a server that closes first may do so just when the next request is on its way."""


STALLED_S = 60.0
"""Seconds for which a client may accept no data before its connection is closed."""

PIPELINED_MAX = 100
"""Requests that may wait for the response to an earlier one on their connection."""


_log = logging.getLogger("perdure.server")


def make_server_config(app: Any, graceful_s: int, **more: Any) -> uvicorn.Config:
    """Return uvicorn's configuration of a server whose connections are limited, without a lifespan.

    Args:
        app: the application.
        graceful_s: seconds for which requests may go on when the server stops.
        more: further settings.
    """
    return uvicorn.Config(
        app,
        http=LimitedConnection,
        log_level="warning",
        lifespan="off",
        timeout_graceful_shutdown=graceful_s,
        server_header=False,
        **more,
    )


class _TooMany(Exception):
    """More than ``PIPELINED_MAX`` requests wait on a connection."""


class _Flow(FlowControl):
    """Flow control that reads nothing while complete requests wait: otherwise more requests would be read
    after each response than the one that it answers."""

    def __init__(self, transport: asyncio.Transport, waiting: Sized) -> None:
        super().__init__(transport)
        self._waiting = waiting

    def resume_reading(self) -> None:
        if not self._waiting:
            super().resume_reading()


class LimitedConnection(HttpToolsProtocol):
    """uvicorn's connection, closed when ``HEAD_MAX``, ``REQUEST_S`` or ``STALLED_S`` is exceeded. It answers
    with an error first, unless the application is at work on a request or a time is exceeded. After more than
    ``PIPELINED_MAX`` waiting requests, or a malformed one, the response that is under way is the last."""

    _unfinished = 0
    _has_advanced = False
    _arrived = 0
    _request_began_at = 0.0
    _request_timer: asyncio.TimerHandle | None = None
    _answering: RequestResponseCycle | None = None
    _is_last_response = False
    _is_lost = False
    _is_upgrade = False
    _unsent = 0
    _write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = _Flow(transport, self.pipeline)
        self.timeout_keep_alive = KEEP_ALIVE_S
        self._start_request_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        self._stop_request_timer()
        self._stop_write_timer()
        # The base class cancels the keep-alive timer only if there is no error, and informs only the request
        # that came last.
        self._unset_keepalive_if_required()
        self.pipeline.clear()
        if (cycle := self._under_way) is not None:
            cycle.disconnected = True
            cycle.message_event.set()
        super().connection_lost(exc)

    @property
    def _under_way(self) -> RequestResponseCycle | None:
        """The request that the application is at work on, if any. The base class's ``cycle`` is the request
        that came last, which may still wait for this one."""
        cycle = self._answering
        if cycle is None or cycle.response_complete:
            return None
        return cycle

    def data_received(self, data: bytes) -> None:
        if self._is_last_response:
            return
        self._has_advanced = False
        if self.timeout_keep_alive_task is not None:
            self._start_request_timer()  # the connection is no longer closed for being idle
        self._arrived += len(data)
        super().data_received(data)
        self._unfinished += len(data)
        if self._has_advanced:
            self._unfinished = 0
        if self._unfinished <= HEAD_MAX or self.transport.is_closing():
            return
        if self._under_way is None:
            self.send_400_response(f"The request's head is longer than {HEAD_MAX} bytes.")
        else:
            self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        """Answer what is not a request. A response that is under way is not interrupted by this answer."""
        cycle = self._under_way
        if cycle is None or (cycle.more_body and not cycle.response_started):
            super().send_400_response(msg)
        elif cycle.more_body:
            self.transport.abort()
        else:
            self._is_last_response = True
            self._stop_request_timer()
            self.pipeline.clear()
            cycle.keep_alive = False
            self.flow.resume_reading()

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= PIPELINED_MAX:
            raise _TooMany
        self._has_advanced = True
        if self._request_timer is None:
            self._start_request_timer()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._has_advanced = True
        before = self.cycle
        super().on_headers_complete()
        # The base class makes no cycle for a WebSocket: another protocol takes the request over.
        self._is_upgrade = self.cycle is before

    def on_body(self, body: bytes) -> None:
        self._has_advanced = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._has_advanced = True
        self._stop_request_timer()
        super().on_message_complete()
        if not self._is_upgrade and self.cycle.response_complete and not self.transport.is_closing():
            # The request was answered before all of it had arrived, and the connection is idle from now on.
            self._unset_keepalive_if_required()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def on_response_complete(self) -> None:
        super().on_response_complete()
        # The base class does this before it takes the next of the waiting requests, when ``_Flow`` refuses.
        if not self.transport.is_closing():
            self.flow.resume_reading()

    def handle_websocket_upgrade(self) -> None:
        self._stop_write_timer()
        super().handle_websocket_upgrade()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._start_write_timer()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._answering = cycle
        if not self.flow.write_paused:
            self._stop_write_timer()
        if cycle.scope["http_version"] == "1.0":
            app = _without_chunks(app, cycle)
        super()._start_asgi_task(cycle, self._watch_response(app, cycle))

    def _watch_response(self, app: ASGI3Application, cycle: RequestResponseCycle) -> ASGI3Application:
        """Return the application, wrapped so that after its end the client has to accept the rest of the
        response in time.

        An error that the application raises after its response, as Starlette's do after a 500, is only
        logged: the base class would close the connection unannounced, when the next request may be on its
        way."""

        async def answer(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
            try:
                await app(scope, receive, send)
            except Exception as error:
                if not cycle.response_complete:
                    raise
                # The application logs the error itself; the text may quote what a client sent.
                _log.debug(
                    "an application failed after its response: %s", type(error).__name__, exc_info=True
                )
            finally:
                is_watched = self._is_lost or self._write_timer is not None
                if not is_watched and self.transport.get_write_buffer_size():
                    self._start_write_timer()

        return cast(ASGI3Application, answer)

    def _start_write_timer(self) -> None:
        """Close the connection unless its client accepts some data within ``STALLED_S``."""
        self._stop_write_timer()
        self._unsent = self.transport.get_write_buffer_size()
        self._write_timer = self.loop.call_later(STALLED_S, self._check_writing)

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _check_writing(self) -> None:
        self._write_timer = None
        unsent = self.transport.get_write_buffer_size()
        if 0 < unsent < self._unsent:
            self._start_write_timer()
        elif unsent:
            self.transport.abort()

    def _start_request_timer(self) -> None:
        self._stop_request_timer()
        self._request_began_at, self._arrived = self.loop.time(), 0
        self._request_timer = self.loop.call_later(REQUEST_S, self._close_if_slow)

    def _stop_request_timer(self) -> None:
        if self._request_timer is not None:
            self._request_timer.cancel()
            self._request_timer = None

    def _close_if_slow(self) -> None:
        """Close the connection if its request takes too long."""
        cycle = self._under_way
        is_responding = cycle is not None and not cycle.more_body
        if is_responding or self.flow.read_paused:
            self._start_request_timer()
            return
        end = self._request_began_at + REQUEST_S + self._arrived / BYTES_PER_S
        if self.loop.time() < end:
            self._request_timer = self.loop.call_at(end, self._close_if_slow)
        else:
            self.transport.abort()


def _without_chunks(app: ASGI3Application, cycle: RequestResponseCycle) -> ASGI3Application:
    """Return the application for a client of HTTP/1.0, which takes the sizes of chunks for parts of the body.
    The end of the connection is the end of such a response."""

    async def answer(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        async def send_unchunked(message: ASGISendEvent) -> None:
            cycle.chunked_encoding = False
            if message["type"] == "http.response.body":
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await app(scope, receive, send_unchunked)

    return cast(ASGI3Application, answer)
