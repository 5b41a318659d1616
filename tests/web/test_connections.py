"""Heads and trailers without an end, and requests that do not arrive, end their connection; long heads and
long bodies are taken."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import cast

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from perdure.web import connections
from perdure.web.connections import LimitedConnection

PIECE = b"a" * 16_384
ENDLESS = 200
"""Pieces that are sent at most: fifty times what may arrive."""


class Counting:
    """Application that answers with the length of the body, and counts the requests that were cut off."""

    def __init__(self) -> None:
        self.asked = 0
        self.cut_off = asyncio.Event()
        self.state = ServerState()

    @property
    def connections(self) -> set[LimitedConnection]:
        """The open connections."""
        return cast(set[LimitedConnection], self.state.connections)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.asked += 1
        try:
            body = await Request(scope, receive).body()
        except ClientDisconnect:
            self.cut_off.set()
            return
        await PlainTextResponse(str(len(body)))(scope, receive, send)


@asynccontextmanager
async def served(app: Counting) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    config = uvicorn.Config(app, lifespan="off", log_level="critical")
    config.load()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: LimitedConnection(config, app.state, {}), "127.0.0.1", 0)
    async with server, asyncio.timeout(60):
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        try:
            yield reader, writer
        finally:
            writer.close()


async def is_cut_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, between: bytes) -> bool:
    """Return True if the connection ended before every piece was sent and answered."""
    with suppress(ConnectionError):
        for _ in range(ENDLESS):
            writer.write(between + PIECE)
            await writer.drain()
        await reader.read()
    return True


@pytest.mark.parametrize(
    ("start", "between"),
    [
        (b"GET /", b""),
        (b"GET / HTTP/1.1\r\nHost: x\r\nx-a: ", b""),
        (b"GET / HTTP/1.1\r\nHost: x", b"\r\nx-a: "),
    ],
    ids=["address", "header", "headers"],
)
def test_a_head_without_an_end_is_cut_off(start: bytes, between: bytes) -> None:
    async def body() -> None:
        app = Counting()
        async with served(app) as (reader, writer):
            writer.write(start)
            assert await is_cut_off(reader, writer, between)
        assert app.asked == 0

    asyncio.run(body())


def test_a_trailer_without_an_end_is_cut_off() -> None:
    async def body() -> None:
        app = Counting()
        async with served(app) as (reader, writer):
            writer.write(
                b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nx-a: "
            )
            assert await is_cut_off(reader, writer, b"")
            await app.cut_off.wait()

    asyncio.run(body())


def test_a_long_head_and_a_long_body_arrive_in_any_pieces() -> None:
    async def body() -> None:
        app = Counting()
        async with served(app) as (reader, writer):
            for n in range(3):
                writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nx-a: ")
                for _ in range(3):
                    writer.write(PIECE)
                    await writer.drain()
                writer.write(b"\r\nContent-Length: %d\r\n\r\n" % (20 * len(PIECE)))
                for _ in range(20):
                    writer.write(PIECE)
                    await writer.drain()
                answer = await reader.readuntil(b"\r\n\r\n")
                assert answer.startswith(b"HTTP/1.1 200")
                length = str(20 * len(PIECE)).encode()
                assert await reader.readexactly(len(length)) == length
                assert app.asked == n + 1

    asyncio.run(body())


GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


async def answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(GET)
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
    assert await reader.readexactly(1) == b"0"


def test_a_client_ends_an_idle_connection_before_the_server_does(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = httpx.Limits().keepalive_expiry
    assert kept is not None
    assert max(kept, 60) < connections.KEEP_ALIVE_S

    async def body() -> None:
        async with served(Counting()) as (reader, writer):
            await answered(reader, writer)
            await asyncio.sleep(kept + 1)
            await answered(reader, writer)
        monkeypatch.setattr(connections, "KEEP_ALIVE_S", 0)
        async with served(Counting()) as (reader, writer):
            await answered(reader, writer)
            assert await reader.read() == b""

    asyncio.run(body())


POST = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n"


@pytest.mark.parametrize(
    ("sent", "asked"),
    [(b"", 0), (b"GET / HT", 0), (b"GET / HTTP/1.1\r\nHost: x\r\n", 0), (POST, 1), (POST + b"half", 1)],
    ids=["nothing", "line", "head", "body", "half a body"],
)
def test_a_request_that_does_not_arrive_is_cut_off(
    sent: bytes, asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "REQUEST_S", 1.0)

    async def body() -> None:
        app = Counting()
        async with served(app) as (reader, writer):
            writer.write(sent)
            with suppress(ConnectionError):
                assert await reader.read() == b""
            if asked:
                await app.cut_off.wait()
        assert app.asked == asked

    asyncio.run(body())


def test_a_connection_that_is_used_again_is_cut_off_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "REQUEST_S", 1.0)

    async def body() -> None:
        app = Counting()
        async with served(app) as (reader, writer):
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
            assert await reader.readexactly(1) == b"0"
            writer.write(b"\r\n")  # is not a request, and no silence either
            with suppress(ConnectionError):
                assert await reader.read() == b""

    asyncio.run(body())


def test_a_body_that_arrives_slowly_and_an_answer_that_takes_longer_are_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "REQUEST_S", 1.0)
    monkeypatch.setattr(connections, "BYTES_PER_S", 100)

    class Slow(Counting):
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            body = await Request(scope, receive).body()
            looks = 0
            look = LimitedConnection._close_if_slow

            def counted(connection: LimitedConnection) -> None:
                nonlocal looks
                looks += 1
                look(connection)

            monkeypatch.setattr(LimitedConnection, "_close_if_slow", counted)
            while not looks:  # noqa: ASYNC110 - the timer of the request that is behind this one
                await asyncio.sleep(0.01)
            await PlainTextResponse(str(len(body)))(scope, receive, send)

    async def body() -> None:
        app = Slow()
        async with served(app) as (reader, writer):
            writer.write(POST)
            for _ in range(10):
                writer.write(b"a" * 100)
                await asyncio.sleep(0.15)
            writer.write(b"GET / HTTP/1.1\r\n")
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
            assert await reader.readexactly(4) == b"1000"

    asyncio.run(body())


def test_a_websocket_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "REQUEST_S", 0.5)

    class Echo(Counting):
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            await receive()
            await send({"type": "websocket.accept"})
            # The times of several requests.
            await asyncio.sleep(1.5)
            await send({"type": "websocket.send", "text": "still"})
            await receive()

    async def body() -> None:
        async with served(Echo()) as (reader, writer):
            writer.write(
                b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
                b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
            )
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101")
            assert await reader.readexactly(7) == b"\x81\x05still"

    asyncio.run(body())


def test_a_client_of_http_1_0_gets_no_chunks() -> None:
    class InParts(Counting):
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for part in (b'{"a":', b"", b"1}"):
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b""})

    async def body() -> None:
        async with served(InParts()) as (reader, writer):
            writer.write(b"GET / HTTP/1.0\r\n\r\n")
            head, _, sent = (await reader.read()).partition(b"\r\n\r\n")
            assert b"connection: close" in head
            assert b"chunked" not in head
            assert sent == b'{"a":1}'
        async with served(Counting()) as (reader, writer):
            writer.write(b"GET / HTTP/1.0\r\n\r\n")
            head, _, sent = (await reader.read()).partition(b"\r\n\r\n")
            assert b"content-length: 1" in head
            assert sent == b"0"

    asyncio.run(body())


class _Ending(Counting):
    """Application that answers without reading, or streams until its client is gone."""

    def __init__(self) -> None:
        super().__init__()
        self.left = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.asked += 1
        if scope["path"] != "/stream":
            await PlainTextResponse("0")(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"first", "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass
        self.left.set()


def test_a_request_that_is_answered_before_its_body_arrives_leaves_an_idle_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "KEEP_ALIVE_S", 0.2)

    async def body() -> None:
        async with served(_Ending()) as (reader, writer):
            writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n")
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
            writer.write(b"late")
            assert await reader.read() == b"0"

    asyncio.run(body())


def test_requests_that_wait_are_limited_and_the_response_under_way_is_whole() -> None:
    started: list[int] = []

    class Slow(Counting):
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            started.append(len(started))
            await receive()
            await asyncio.sleep(0.01)
            await PlainTextResponse("0")(scope, receive, send)

    async def body() -> None:
        most = connections.PIPELINED_MAX
        async with served(Slow()) as (reader, writer):
            writer.write(GET * (most + 1))
            for _ in range(most + 1):
                assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
                assert await reader.readexactly(1) == b"0"
            writer.write(GET * (most + 50))
            head, _, rest = (await reader.read()).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200")
            assert rest == b"0"
        assert len(started) == most + 2

    asyncio.run(body())


def test_requests_that_wait_are_not_collected_without_a_limit() -> None:
    most = 0

    class Looking(Counting):
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            nonlocal most
            await receive()
            most = max([most, *(len(each.pipeline) for each in self.connections)])
            await PlainTextResponse("0")(scope, receive, send)

    async def body() -> None:
        async with served(Looking()) as (reader, writer):

            async def read() -> None:
                while await reader.read(65_536):
                    pass

            reading = asyncio.create_task(read())
            with suppress(ConnectionError):
                for _ in range(400):
                    writer.write(GET * 50)
                    await writer.drain()
                writer.write(GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
                await reading

    asyncio.run(body())
    assert most <= connections.PIPELINED_MAX


def test_what_is_no_request_does_not_interrupt_the_response_under_way() -> None:
    class Parts(Counting):
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
            await send({"type": "http.response.body", "body": b"on", "more_body": True})
            await asyncio.sleep(0.2)
            await send({"type": "http.response.body", "body": b"ce"})

    async def body() -> None:
        async with served(Parts()) as (reader, writer):
            writer.write(GET)
            await reader.readuntil(b"\r\n\r\non")
            writer.write(b"\x00 nonsense \r\n\r\n")
            assert await reader.read() == b"ce"

    asyncio.run(body())


@pytest.mark.parametrize(
    "behind", [b"", GET, b"GET / HTTP/1.1\r\n"], ids=["nothing", "a request", "half of one"]
)
def test_a_stream_ends_with_its_connection_whatever_was_sent_behind_it(behind: bytes) -> None:
    async def body() -> None:
        app = _Ending()
        async with served(app) as (reader, writer):
            writer.write(b"GET /stream HTTP/1.1\r\nHost: x\r\n\r\n" + behind)
            await reader.readuntil(b"first")
            connection = next(iter(app.connections))
            connection.transport.abort()
            await asyncio.wait_for(app.left.wait(), 60)

    asyncio.run(body())


def test_a_connection_that_is_reset_leaves_no_timer() -> None:
    async def body() -> None:
        app = _Ending()
        async with served(app) as (reader, writer):
            await answered(reader, writer)
            (connection,) = app.connections
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.transport.abort()
            while app.connections:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            assert connection.timeout_keep_alive_task is None

    asyncio.run(body())


@pytest.mark.parametrize("closes", [False, True], ids=["kept", "closed"])
@pytest.mark.parametrize("size", [64 * 1024 * 1024, 0], ids=["long", "short"])
def test_a_client_that_takes_nothing_of_a_response_is_left(
    monkeypatch: pytest.MonkeyPatch, size: int, *, closes: bool
) -> None:
    monkeypatch.setattr(connections, "STALLED_S", 0.3)
    monkeypatch.setattr(connections, "KEEP_ALIVE_S", 0.3)

    class Long(Counting):
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            headers = [(b"connection", b"close")] if closes else []
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            if size:
                await send({"type": "http.response.body", "body": bytes(size), "more_body": True})
            else:
                # Little is left over, so that no more than a warning of the transport's is missing.
                (connection,) = self.connections
                while not connection.transport.get_write_buffer_size():
                    await send({"type": "http.response.body", "body": bytes(10_000), "more_body": True})
            await send({"type": "http.response.body", "body": b""})

    async def body() -> None:
        app = Long()
        async with served(app) as (_, writer):
            cast(asyncio.Transport, writer.transport).pause_reading()
            writer.write(GET)
            while not app.connections:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            while app.connections:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    asyncio.run(body())


def test_a_client_that_reads_slowly_gets_all_of_a_response(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "STALLED_S", 0.5)
    size = 8 * 1024 * 1024

    class Long(Counting):
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            await PlainTextResponse(bytes(size))(scope, receive, send)

    async def body() -> None:
        async with served(Long()) as (reader, writer):
            writer.write(GET)
            await reader.readuntil(b"\r\n\r\n")
            left = size
            while left:
                left -= len(await reader.read(256 * 1024))
                await asyncio.sleep(0.1)

    asyncio.run(body())


@pytest.mark.parametrize("way", ["one after the other", "pipelined"])
def test_after_a_500_the_connection_goes_on(way: str, caplog: pytest.LogCaptureFixture) -> None:
    """Starlette raises the error again after its response."""

    async def boom(request: Request) -> PlainTextResponse:
        raise RuntimeError("what a client sent")

    async def fine(request: Request) -> PlainTextResponse:
        return PlainTextResponse("fine")

    app = Starlette(routes=[Route("/boom", boom, methods=["GET", "POST"]), Route("/fine", fine)])

    async def scenario() -> None:
        config = uvicorn.Config(app, lifespan="off", log_level="warning")
        config.load()
        state, loop = ServerState(), asyncio.get_running_loop()
        server = await loop.create_server(lambda: LimitedConnection(config, state, {}), "127.0.0.1", 0)
        asked = [
            b"GET /boom HTTP/1.1\r\nHost: x\r\n\r\n",
            b"POST /boom HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc",
            b"GET /fine HTTP/1.1\r\nHost: x\r\n\r\n",
        ]
        async with server, asyncio.timeout(60):
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            if way == "pipelined":
                writer.write(b"".join(asked))
            statuses = []
            for request in asked:
                if way != "pipelined":
                    writer.write(request)
                head = await reader.readuntil(b"\r\n\r\n")
                assert b"connection: close" not in head.lower()
                statuses.append(int(head.split()[1]))
                (length,) = (
                    line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")
                )
                await reader.readexactly(int(length.partition(b":")[2]))
            assert statuses == [500, 500, 200]
            writer.close()

    asyncio.run(scenario())
    assert "what a client sent" not in caplog.text


def test_a_500_that_the_connection_itself_answers_says_that_it_closes() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise RuntimeError("nothing was sent")

    async def scenario() -> None:
        config = uvicorn.Config(app, lifespan="off", log_level="critical")
        config.load()
        state, loop = ServerState(), asyncio.get_running_loop()
        server = await loop.create_server(lambda: LimitedConnection(config, state, {}), "127.0.0.1", 0)
        async with server, asyncio.timeout(60):
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            answer = await reader.read()
            assert answer.startswith(b"HTTP/1.1 500")
            assert b"connection: close" in answer.lower()
            writer.close()

    asyncio.run(scenario())
