"""Whoever is told the end of a run: a receiver on this machine, and runtimes that tell it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from perdure.model.runs.messages import Reply
from perdure.runtime import Options, Runtime
from perdure.runtime.options import WEBHOOK
from perdure.server.runs.outbound_policy import OutboundPolicy
from perdure.server.runs.webhooks import Webhooks
from tests.runtime.graphs import Storage, eventually, eventually_stored, settings
from tests.server.graphs import graphs

SECRET = "token=s3cret"
NEAR = OutboundPolicy.of((), loopback=True)


@dataclass
class Call:
    """A request that a receiver got."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    said: str


@dataclass
class Receiver:
    """Whoever is told, on this machine. It answers with the statuses in turn, the last of them again and
    again; ``None`` hangs up without a word."""

    port: int
    answers: list[int | None]
    calls: list[Call] = field(default_factory=list[Call])
    taken: Callable[[], None] = lambda: None
    more: bytes = b""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook?{SECRET}"

    @property
    def keys(self) -> list[str]:
        return [call.headers["idempotency-key"] for call in self.calls]

    async def told(self, count: int = 1) -> list[dict[str, Any]]:
        await eventually(lambda: len(self.calls) >= count)
        return [call.body for call in self.calls]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.strip().split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        body = await reader.readexactly(int(headers["content-length"]))
        method, path, _ = first.split(" ")
        self.calls.append(Call(path, headers, json.loads(body), body.decode()))
        assert method == "POST"
        self.taken()
        status = self.answers[min(len(self.calls), len(self.answers)) - 1]
        if status is not None:
            location = f"Location: http://127.0.0.1:{self.port}/elsewhere\r\n" if status // 100 == 3 else ""
            writer.write(f"HTTP/1.1 {status} So\r\n{location}Content-Length: 1000000000\r\n\r\n".encode())
            writer.write(self.more)
        writer.close()


@asynccontextmanager
async def receiving(*answers: int | None) -> AsyncIterator[Receiver]:
    receiver = Receiver(0, list(answers or (200,)))
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0)
    receiver.port = server.sockets[0].getsockname()[1]
    async with server:
        yield receiver


def made(storage: Storage, reach: OutboundPolicy = NEAR, **options: Any) -> Runtime:
    """A runtime that tells webhooks."""
    return opened(storage.database(), reach, **options)


def opened(database: Any, reach: OutboundPolicy = NEAR, **options: Any) -> Runtime:
    hooks = Webhooks(reach, options.pop("secrets", ()))
    served = options.pop("graphs", None) or graphs()
    quick = options.pop("settings", settings(shared_threads=True))
    more: dict[str, Any] = {"observers": [], "channels": hooks.channels(quick), **options}
    runtime = Runtime(database, served, settings=quick, **more)
    hooks.serve(runtime)
    return runtime


async def begun(runtime: Runtime, url: str, graph: str, said: Any, thread: str = "ada", **more: Any) -> str:
    """A run with a webhook, as the server makes it; its id."""
    given = said if isinstance(said, dict) else {"messages": [{"role": "user", "content": said}]}
    options = Options(webhook=url, attempts=1, on_failure="keep", **more)
    ticket = await runtime.submit(thread, given, graph=graph, channel=WEBHOOK, options=options)
    return ticket.id


async def notices(runtime: Runtime, *states: str, thread: str = "ada") -> list[Reply]:
    """The thread's replies, oldest first, once they are in these states."""

    async def settled() -> bool:
        return [r.state for r in reversed(await runtime.replies(thread))] == list(states)

    await eventually_stored(settled)
    return list(reversed(await runtime.replies(thread)))


def texts(told: dict[str, Any]) -> list[str]:
    return [message["content"] for message in told["values"]["messages"]]


def said(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}
