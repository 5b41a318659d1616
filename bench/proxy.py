"""A network between a client and its server, on one machine: latency that is asked for, and a count of trips.

Each direction is delayed by half the round-trip time. What arrives is stamped and leaves when its time has
come, in order; a second chunk does not wait for the first one's delay to end before its own begins, so
bandwidth is that of the loopback. Trips are counted where the client stands: a client that speaks after it
has been spoken to has waited for that answer.
"""

from __future__ import annotations

import asyncio
import re
import selectors
import socket
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, fields
from types import TracebackType
from typing import Any, Self, cast

_HELD_MOST = 64 * 1024 * 1024
_REQUEST_LINE = re.compile(rb"(?:GET|HEAD|POST|PUT|PATCH|DELETE|OPTIONS) \S+ HTTP/1\.[01]\r\n")
_STARTING_S = 10.0


@dataclass
class Counts:
    """`round_trips` is the number of times that the client spoke first or spoke again after an answer, summed
    over its connections; `requests` are those of HTTP/1. `up` and `down` are bytes, seen from the client.
    """

    connections: int = 0
    round_trips: int = 0
    requests: int = 0
    up: int = 0
    down: int = 0

    def __sub__(self, other: Counts) -> Counts:
        names = [field.name for field in fields(self)]
        return Counts(**{name: getattr(self, name) - getattr(other, name) for name in names})


class Proxy:
    """Listens on 127.0.0.1 from its making until `close`, in a thread of its own."""

    def __init__(self, host: str, port: int, *, round_trip_s: float = 0.0) -> None:
        self.host = host
        self.upstream = port
        self.round_trip_s = round_trip_s
        self.port = 0
        self._counts = Counts()
        self._sockets: set[asyncio.BaseTransport] = set()
        # The default selector rounds a wait up to whole milliseconds, which is the delay itself here.
        self._loop = asyncio.SelectorEventLoop(selectors.SelectSelector())
        self._started = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._serve, name="bench-proxy", daemon=True)
        self._thread.start()
        if not self._started.wait(_STARTING_S):
            raise TimeoutError("the proxy did not start")
        if self._failure is not None:
            raise self._failure

    def through(self, url: str) -> str:
        """The same URL by way of this proxy, wherever in it the server's address stands."""
        address = re.compile(
            rf"(?:{re.escape(self.host)}|localhost)(:|%3A){self.upstream}(?!\d)", re.IGNORECASE
        )
        passed, found = address.subn(rf"127.0.0.1\g<1>{self.port}", url)
        if not found:
            raise ValueError(
                f"the URL does not name {self.host}:{self.upstream}, which this proxy stands before"
            )
        return passed

    def counts(self) -> Counts:
        """What has passed so far."""
        return self._counts - Counts()

    def close(self) -> None:
        """Drops every connection; repeatable."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            listening = self._loop.create_server(lambda: _Near(self), "127.0.0.1", 0, backlog=256)
            server = self._loop.run_until_complete(listening)
            self.port = server.sockets[0].getsockname()[1]
            self._started.set()
            self._loop.run_forever()
            server.close()
            for transport in list(self._sockets):
                cast(asyncio.Transport, transport).abort()
            self._loop.run_until_complete(asyncio.sleep(0))
        except BaseException as error:
            self._failure = error
            self._started.set()
        finally:
            self._loop.close()

    def note_connected(self, transport: asyncio.BaseTransport) -> None:
        self._sockets.add(transport)
        opened = transport.get_extra_info("socket")
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def note_gone(self, transport: asyncio.BaseTransport | None) -> None:
        if transport is not None:
            self._sockets.discard(transport)

    def connect(self, near: _Near) -> asyncio.Task[Any]:
        connecting = self._loop.create_connection(lambda: _Far(self, near), self.host, self.upstream)
        return self._loop.create_task(_or_drop(connecting, near))


async def _or_drop(connecting: Any, near: _Near) -> None:
    """A server that cannot be reached is, to the client, a connection that is closed at once."""
    try:
        await connecting
    except OSError:
        near.drop()


class _Lane:
    """One direction: chunks with the time at which each is due, and one timer for the first of them."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[float, bytes | None]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._held = 0
        self._ready = False
        self.source: asyncio.Transport | None = None
        self.target: asyncio.Transport | None = None
        self.on_delivery: Callable[[], None] = lambda: None

    def open(self, target: asyncio.Transport) -> None:
        self.target = target
        self._release()

    def add(self, chunk: bytes | None) -> None:
        """`None` is the end of the stream, which travels as far as the bytes do."""
        self._waiting.append((self._loop.time() + self._proxy.round_trip_s / 2, chunk))
        self._held += len(chunk or b"")
        if self._held > _HELD_MOST and self.source is not None:
            self.source.pause_reading()
        if self._timer is None:
            self._release()

    def _release(self) -> None:
        self._timer = None
        if self.target is None:
            return
        while self._waiting and self._waiting[0][0] <= self._loop.time():
            _, chunk = self._waiting.popleft()
            if self.target.is_closing():
                continue
            if chunk is None:
                self.target.close()
                continue
            self._held -= len(chunk)
            self.target.write(chunk)
            self.on_delivery()
        if self._waiting:
            self._timer = self._loop.call_at(self._waiting[0][0], self._release)
        if self._held <= _HELD_MOST // 2 and self.source is not None and not self.source.is_closing():
            self.source.resume_reading()


class _Side(asyncio.Protocol):
    """One end of a connection. Reads go into `outward`; `inward` writes here."""

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy
        self.transport: asyncio.Transport | None = None
        self.outward: _Lane | None = None
        self.inward: _Lane | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.proxy.note_connected(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.proxy.note_gone(self.transport)
        if self.outward is not None:
            self.outward.add(None)

    def drop(self) -> None:
        if self.transport is not None:
            self.transport.abort()


class _Near(_Side):
    """The client's end, where trips are counted."""

    def __init__(self, proxy: Proxy) -> None:
        super().__init__(proxy)
        self._spoke = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.proxy._counts.connections += 1
        self.outward, self.inward = _Lane(self.proxy), _Lane(self.proxy)
        self.outward.source = self.inward.target = self.transport
        self.inward.on_delivery = self._note_answer
        self._connecting = self.proxy.connect(self)

    def data_received(self, data: bytes) -> None:
        counts = self.proxy._counts
        counts.up += len(data)
        if not self._spoke:
            self._spoke = True
            counts.round_trips += 1
            counts.requests += _REQUEST_LINE.match(data) is not None
        if self.outward is not None:
            self.outward.add(data)

    def _note_answer(self) -> None:
        self._spoke = False


class _Far(_Side):
    """The server's end."""

    def __init__(self, proxy: Proxy, near: _Near) -> None:
        super().__init__(proxy)
        self._near = near

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.outward, self.inward = self._near.inward, self._near.outward
        if self.outward is None or self.inward is None or self.transport is None:
            return
        self.outward.source = self.transport
        self.inward.open(self.transport)

    def data_received(self, data: bytes) -> None:
        self.proxy._counts.down += len(data)
        if self.outward is not None:
            self.outward.add(data)
