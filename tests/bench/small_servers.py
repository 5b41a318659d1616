"""Servers that answer what a test says, and servers that take no time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import SimpleNamespace
from typing import Any

Reply = Callable[[str, dict[str, Any]], list[bytes]]


def plain(body: Any, status: str = "200 OK", more: str = "") -> list[bytes]:
    said = json.dumps(body).encode()
    return [f"HTTP/1.1 {status}\r\nContent-Length: {len(said)}\r\n{more}\r\n".encode() + said]


def chunked(*pieces: bytes) -> list[bytes]:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    return [head, *(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces), b"0\r\n\r\n"]


@asynccontextmanager
async def answering(reply: Reply) -> AsyncIterator[tuple[int, list[int]]]:
    """A port whose server answers what `reply` says, and how many requests each of its connections had."""
    had: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        mine = len(had)
        had.append(0)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = int(head.lower().split("content-length:")[1].split("\r\n")[0])
                body = json.loads(await reader.readexactly(length))
                had[mine] += 1
                written = reply(head.split(" ")[1], body)
                for piece in written:
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0)
                if b"Connection: close" in written[0]:
                    break
        except asyncio.IncompleteReadError:  # the client is gone
            pass
        finally:
            writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listener:
        yield listener.sockets[0].getsockname()[1], had


def asked(reply: Reply, work: Callable[[int], Awaitable[Any]]) -> tuple[Any, list[int]]:
    async def main() -> tuple[Any, list[int]]:
        async with answering(reply) as (port, had):
            return await work(port), had

    return asyncio.run(main())


def told(tokens: int, *more: bytes) -> list[bytes]:
    token = b'event: messages\r\ndata: ["word"]\r\n\r\n'
    return chunked(b"event: metadata\r\n\r\neve", token[3:], *([token] * (tokens - 1)), *more)


class Easy:
    """A server that has been asked all it can be."""

    def __init__(self, *_: object) -> None:
        self.left = 0

    @contextmanager
    def awake(self) -> Iterator[int]:
        yield 1

    def weight(self) -> int:
        return 1

    def cpu_s(self) -> float:
        return 1.0

    def leave(self) -> None:
        self.left += 1

    def __enter__(self) -> Easy:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()


@contextmanager
def databases() -> Iterator[Any]:
    yield SimpleNamespace(settings="a server", variants=(), empty=lambda name: f"it://{name}")
