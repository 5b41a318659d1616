"""HTTP as the load needs it: requests of JSON over connections that stay open, answers whole or as they come.

A client library would spend more on a request than some of the servers do, on the processors that they share.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Self

_LINE_MAX = 1 << 20


class Refused(Exception):
    """The server said no, or broke off; the message has its status and how its answer begins.

    `status` is that of an answer that says no, 0 for everything else."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class Connection:
    """One request at a time. Opened by the first one, and again after an answer that says it is closed."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, path: str, body: dict[str, Any]) -> Any:
        """The whole answer, as JSON."""
        pieces = [piece async for piece in self.follow(path, body)]
        return json.loads(b"".join(pieces))

    async def follow(self, path: str, body: dict[str, Any]) -> AsyncIterator[bytes]:
        """The answer's pieces as they come. One that is not taken to its end closes the connection."""
        done = False
        try:
            reader, headers = await self.begin(path, body)
            async for piece in _pieces(reader, headers):
                yield piece
            done = headers.get("connection", "").lower() != "close"
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise Refused(f"{path} broke off: {error!r}") from error
        finally:
            if not done:
                self.close()

    async def begin(self, path: str, body: dict[str, Any]) -> tuple[asyncio.StreamReader, dict[str, str]]:
        """The answer's headers; what follows is left unread."""
        reader, writer = await self._open()
        said = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(said)}\r\n\r\n"
        )
        writer.write(head.encode() + said)
        status, headers = _head(await reader.readuntil(b"\r\n\r\n"))
        if status >= 300:
            wrong = b"".join([piece async for piece in _pieces(reader, headers)])
            shown = wrong[:200].decode(errors="replace")
            raise Refused(f"{path} was answered with {status}: {shown}", status)
        return reader, headers

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port, limit=_LINE_MAX)
        return self._streams

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _head(raw: bytes) -> tuple[int, dict[str, str]]:
    first, *lines = raw.decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines if line)
    return int(first.split(" ", 2)[1]), {name.lower(): value.strip() for name, _, value in pairs}


async def _pieces(reader: asyncio.StreamReader, headers: dict[str, str]) -> AsyncIterator[bytes]:
    if headers.get("transfer-encoding", "").lower() != "chunked":
        yield await reader.readexactly(int(headers.get("content-length", 0)))
        return
    while size := int((await reader.readline()).partition(b";")[0] or b"0", 16):
        yield (await reader.readexactly(size + 2))[:-2]
    await reader.readuntil(b"\r\n")
