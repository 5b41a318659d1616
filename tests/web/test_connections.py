"""Heads and trailers without an end end their connection; long ones and long bodies are taken."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
import uvicorn
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from perdure.web.connections import LimitedConnection

PIECE = b"a" * 16_384
ENDLESS = 200
"""Pieces that are sent at most: fifty times what may arrive."""


class Counting:
    """Application that answers with the length of the body, and counts the requests that were cut off."""

    def __init__(self) -> None:
        self.asked = 0
        self.cut_off = asyncio.Event()

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
    loop, state = asyncio.get_running_loop(), ServerState()
    server = await loop.create_server(lambda: LimitedConnection(config, state, {}), "127.0.0.1", 0)
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
