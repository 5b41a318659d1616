"""HTTP connections that end a request whose head, or trailer, does not end.

uvicorn's connection on httptools keeps whatever arrives of them, without a limit, before any application is
asked: one client could fill the memory of the process.
"""

from __future__ import annotations

from typing import cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

HEAD_MAX = 65_536
"""Bytes that may arrive, beyond one read, without completing a request's head or bringing a part of its
body."""


class LimitedConnection(HttpToolsProtocol):
    """uvicorn's connection, closed when ``HEAD_MAX`` is exceeded; without an answer if the request's
    application is already at work."""

    _unfinished = 0
    _has_advanced = False

    def data_received(self, data: bytes) -> None:
        self._has_advanced = False
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
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._has_advanced = True
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._has_advanced = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._has_advanced = True
        super().on_message_complete()
