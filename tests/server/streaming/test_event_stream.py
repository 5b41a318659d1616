"""Sending of a stream of events: others have their turns meanwhile, and it ends with its client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from perdure.server.streaming.event_stream import EventStream, Frame
from tests.server.hosting import run

MANY = 200_000


class Frames:
    """Frames that are there at once, as those of a stored stream are."""

    def __init__(self) -> None:
        self.made = 0

    async def __call__(self) -> AsyncGenerator[Frame, None]:
        for _ in range(MANY):
            self.made += 1
            yield Frame("values", '{"messages":[]}')


@run
async def test_a_stored_stream_leaves_turns_to_others_and_ends_with_its_client() -> None:
    frames, left = Frames(), asyncio.Event()

    async def send(message: Any) -> None:
        """Take all at once, as a closed connection does."""

    async def receive() -> Any:
        await left.wait()
        return {"type": "http.disconnect"}

    stream = EventStream(frames(), ("end",), has_end=True, send_timeout=30.0, ping=30)
    sending = asyncio.ensure_future(stream({"type": "http", "method": "GET"}, receive, send))
    # The first frame is asked for within a few turns.
    for _ in range(20):
        await asyncio.sleep(0)
    assert frames.made
    left.set()
    async with asyncio.timeout(30):
        await sending
    assert frames.made < MANY
