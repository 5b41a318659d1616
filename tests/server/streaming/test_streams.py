"""Streams that end when the server closes, without a task for each item, and readers that do not read."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, cast

import pytest
from starlette.requests import Request

from perdure.runtime.events import LAST
from perdure.server.resources import ServerState
from perdure.server.streaming import streams
from perdure.server.streaming.event_stream import Frame
from perdure.server.streaming.streams import iterate_until


async def numbers(count: int, go_on: asyncio.Event, left: list[str]) -> AsyncIterator[int]:
    try:
        for number in range(count):
            yield number
        await go_on.wait()
    finally:
        left.append("closed")


def test_items_are_yielded_to_their_end_in_the_task_that_asks_for_them() -> None:
    async def main() -> None:
        closing, go_on, left = asyncio.Event(), asyncio.Event(), list[str]()
        go_on.set()
        before = asyncio.all_tasks()
        seen = [
            (item, len(asyncio.all_tasks() - before))
            async for item in iterate_until(closing, numbers(3, go_on, left))
        ]
        assert [item for item, _ in seen] == [0, 1, 2]
        assert {tasks for _, tasks in seen} == {1}, "one task a stream, none an item"
        assert left == ["closed"]

    asyncio.run(main())


def test_a_stream_that_waits_ends_when_the_server_closes() -> None:
    async def main() -> None:
        closing, left = asyncio.Event(), list[str]()
        seen: list[int] = []

        async def read() -> None:
            async for item in iterate_until(closing, numbers(2, asyncio.Event(), left)):
                seen.append(item)
                if len(seen) == 2:
                    asyncio.get_running_loop().call_soon(closing.set)
            # The cancellation of the wait is over: whatever is awaited next goes on.
            await asyncio.sleep(0)

        task = asyncio.create_task(read())
        await task
        assert (seen, left, task.cancelling()) == ([0, 1], ["closed"], 0)

    asyncio.run(main())


def test_a_stream_that_is_closed_already_yields_nothing() -> None:
    async def main() -> None:
        closing = asyncio.Event()
        closing.set()
        assert [item async for item in iterate_until(closing, numbers(2, asyncio.Event(), []))] == []

    asyncio.run(main())


@pytest.mark.parametrize("closes", [False, True])
def test_a_reader_that_is_cancelled_stays_cancelled(closes: bool) -> None:
    async def main() -> None:
        closing, left = asyncio.Event(), list[str]()
        waits = asyncio.Event()

        async def read() -> None:
            async for _ in iterate_until(closing, numbers(1, asyncio.Event(), left)):
                asyncio.get_running_loop().call_soon(waits.set)

        task = asyncio.create_task(read())
        await waits.wait()
        task.cancel()
        if closes:
            closing.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()
        assert left == ["closed"]

    asyncio.run(main())


def test_a_reader_that_takes_nothing_is_left(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(streams, "STALLED_S", 0.05)
    made, left, sent = list[int](), list[str](), list[bytes]()

    async def frames() -> AsyncGenerator[Frame, None]:
        try:
            for number in range(1000):
                made.append(number)
                yield Frame("values", str(number))
        finally:
            left.append("closed")

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    async def main() -> None:
        response = streams.stream(cast(ServerState, None), frames(), {})
        await response({"type": "http", "method": "GET"}, receive, send)

    with caplog.at_level(logging.WARNING, "perdure.server"):
        asyncio.run(asyncio.wait_for(main(), 60))
    assert (made, left) == ([0], ["closed"]), "what is not taken is not made"
    assert len(sent) == 2, "and no end of the stream is sent"
    assert "its reader took nothing" in caplog.text


@pytest.mark.parametrize(
    ("given", "after"),
    [
        ("7", 7),
        ("0", 0),
        (str(LAST), LAST),
        ("-1", 0),
        ("", 0),
        ("7.5", 0),
        ("seven", 0),
        ("\u0667", 0),
        (str(LAST + 1), 0),
        ("9" * 19, 0),
        ("9" * 5000, 0),
    ],
)
def test_a_cursor_that_no_event_can_have_is_before_all_of_them(given: str, after: int) -> None:
    request = Request({"type": "http", "headers": []})
    assert streams.cursor_of(request, given) == after
    assert streams.cursor_of(request) is None
