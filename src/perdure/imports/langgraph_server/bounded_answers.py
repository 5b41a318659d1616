"""Bounds what an HTTP server may answer: bytes, as they are after decompression, and seconds."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple

import httpx

from perdure.errors import TooLarge, Unavailable

_PACKED = ("", "identity", "gzip", "deflate")
"""Encodings under which a piece of an answer grows by a factor of about a thousand at most."""


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
        found = self._transport.handle_request(request)
        packed = found.headers.get("content-encoding", "").strip().lower()
        if packed not in _PACKED:
            found.close()
            raise Unavailable(f"{request.url.host} packs its answers with {packed[:30]!r}, unasked")
        headers = [
            (name, value)
            for name, value in found.headers.raw
            if name.lower() not in (b"content-encoding", b"content-length")
        ]
        stream = _BoundedStream(found, self._bounds, request.url.host)
        return httpx.Response(found.status_code, headers=headers, stream=stream, extensions=found.extensions)

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()


class _BoundedStream(httpx.SyncByteStream):
    def __init__(self, found: httpx.Response, bounds: Bounds, host: str) -> None:
        self._found, self._bounds, self._host = found, bounds, host

    def __iter__(self) -> Iterator[bytes]:
        size, until = 0, time.monotonic() + self._bounds.seconds
        for piece in self._found.iter_bytes():
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
        self._found.close()
