"""Receives the notices of runs that ended, and records them. Now and then it answers that it cannot."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from .http_calls import entries_of
from .recording import OK, Recorder

_UNABLE = 0.15


@asynccontextmanager
async def receive_notices(recorder: Recorder, chance: random.Random) -> AsyncIterator[str]:
    """Listen; the URL to send notices of a tenant's thread below."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            lines = head.split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}
            body = json.loads(await reader.readexactly(int(headers["content-length"])))
            status = "503 Service Unavailable"
            if chance.random() >= _UNABLE:
                _record(recorder, lines[0].split()[1], headers["idempotency-key"], body)
                status = "204 No Content"
            writer.write(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            # The sender was killed in the middle; it, or another, sends again.
            recorder.note_event("a notice was broken off")
        finally:
            writer.close()

    listener = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with listener:
        yield f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"


def _record(recorder: Recorder, path: str, key: str, run: dict[str, object]) -> None:
    _, tenant, thread = path.split("/")
    call_id = recorder.note_call(
        "reply", (tenant, thread), run=run["run_id"], key=key, status=run["status"],
        entries=entries_of(run["values"]),
    )  # fmt: skip
    recorder.note_answer(call_id, OK)
