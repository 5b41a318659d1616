"""Limits the answers of an HTTP server, in bytes after decompression and in seconds."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple

import httpx

from perdure.errors import TooLarge, Unavailable

_PACKED = ("", "identity", "gzip", "deflate")
"""Encodings that are accepted: with them a piece of an answer grows at most about a thousandfold."""


class Bounds(NamedTuple):
    """Bounds of one answer, in bytes and seconds."""

    size: int = 64 << 20
    seconds: float = 600.0


class BoundedTransport(httpx.BaseTransport):
    """A transport whose answers end with an error where they exceed their bounds.

    Raises:
        TooLarge: An answer is too large.
        Unavailable: An answer takes too long, or is compressed in a way that the request did not accept.
    """

    def __init__(self, transport: httpx.BaseTransport, bounds: Bounds = Bounds()) -> None:  # noqa: B008
        self._transport = transport
        self._bounds = bounds

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request."""
        response = self._transport.handle_request(request)
        packed = response.headers.get("content-encoding", "").strip().lower()
        if packed not in _PACKED:
            response.close()
            raise Unavailable(f"{request.url.host} packs its answers with {packed[:30]!r}, unasked")
        headers = [
            (name, value)
            for name, value in response.headers.raw
            if name.lower() not in (b"content-encoding", b"content-length")
        ]
        stream = _BoundedStream(response, self._bounds, request.url.host)
        return httpx.Response(
            response.status_code, headers=headers, stream=stream, extensions=response.extensions
        )

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()


class _BoundedStream(httpx.SyncByteStream):
    def __init__(self, response: httpx.Response, bounds: Bounds, host: str) -> None:
        self._response, self._bounds, self._host = response, bounds, host

    def __iter__(self) -> Iterator[bytes]:
        size, until = 0, time.monotonic() + self._bounds.seconds
        for piece in self._response.iter_bytes():
            size += len(piece)
            if size > self._bounds.size:
                raise TooLarge(
                    f"an answer of {self._host} is larger than {self._bounds.size >> 20} MB; it was not read"
                )
            if time.monotonic() > until:
                raise Unavailable(
                    f"an answer of {self._host} did not end within {self._bounds.seconds:.0f} seconds"
                )
            yield piece

    def close(self) -> None:
        self._response.close()
