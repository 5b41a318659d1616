"""A body that follows later: blank lines before it, and what a client that leaves does to its work."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from starlette.types import Message

from perdure.errors import Unavailable
from perdure.server.streaming import late_response
from perdure.server.streaming.late_response import LateResponse


class Client:
    """The other end of a response: what it was sent, and when it leaves."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.came = asyncio.Event()
        self.leaves = asyncio.Event()
        self.left = 0

    async def send(self, message: Message) -> None:
        self.sent.append(message)
        self.came.set()

    async def receive(self) -> Message:
        await self.leaves.wait()
        return {"type": "http.disconnect"}

    def note(self) -> None:
        self.left += 1

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)

    @property
    def is_whole(self) -> bool:
        last = self.sent[-1]
        return last["type"] == "http.response.body" and not last.get("more_body")

    async def ask(self, work: Any) -> None:
        await LateResponse(work, self.note, {"Location": "/here"})({"type": "http"}, self.receive, self.send)


def test_the_headers_are_sent_at_once_and_the_body_with_its_end() -> None:
    async def main() -> None:
        client, go_on = Client(), asyncio.Event()
        before = asyncio.all_tasks()

        async def work() -> bytes:
            await go_on.wait()
            return b'{"a": 1}'

        asked = asyncio.create_task(client.ask(work()))
        await client.came.wait()
        (start,) = client.sent
        assert (start["status"], dict(start["headers"])[b"location"]) == (200, b"/here")
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks() - before - {asked}) == 2, "the work, and the wait for the client's end"
        go_on.set()
        await asked
        assert client.sent[1:] == [{"type": "http.response.body", "body": b'{"a": 1}'}]
        assert client.left == 0
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == before

    asyncio.run(main())


def test_blank_lines_come_before_a_body_that_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late_response, "HEARTBEAT_S", 0.01)

    async def main() -> None:
        client = Client()

        async def work() -> bytes:
            while client.body != b"\n\n":
                client.came.clear()
                await client.came.wait()
            return b"[]"

        await client.ask(work())
        assert client.body == b"\n\n[]"
        assert json.loads(client.body) == []
        assert client.is_whole

    asyncio.run(main())


def test_a_client_that_leaves_cancels_the_work() -> None:
    async def main() -> None:
        client, cancelled = Client(), asyncio.Event()

        async def work() -> bytes:
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()
            return b""

        asked = asyncio.create_task(client.ask(work()))
        await client.came.wait()
        client.leaves.set()
        await asked
        await cancelled.wait()
        assert (client.left, client.is_whole) == (1, False)

    asyncio.run(main())


def test_a_server_that_stops_aborts_the_body() -> None:
    async def main() -> None:
        client = Client()

        async def work() -> bytes:
            raise Unavailable("the server is stopping")

        await client.ask(work())
        assert (client.body, client.is_whole, client.left) == (b"", False, 0)

    asyncio.run(main())


def test_an_error_is_not_an_end_of_the_body() -> None:
    async def main() -> None:
        client = Client()

        async def work() -> bytes:
            raise LookupError("there is none")

        with pytest.raises(LookupError):
            await client.ask(work())
        assert not client.is_whole

    asyncio.run(main())
