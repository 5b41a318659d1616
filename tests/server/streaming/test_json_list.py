"""A long list of a server: sent while it is read, at its reader's pace, broken off when an entry fails."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import pytest
from starlette.responses import Response

from perdure.server.streaming.json_list import json_list
from tests.backends import EMPTY
from tests.server.hosting import run, serving

LONG = json.dumps("x" * 100_000)
WIDE = 20


class Entries:
    """Entries that are made when they are asked for."""

    def __init__(self, count: int, *, fails_at: int | None = None) -> None:
        self.made = 0
        self.is_closed = False
        self._count, self._fails_at = count, fails_at

    async def __call__(self) -> AsyncGenerator[str, None]:
        try:
            for number in range(self._count):
                if number == self._fails_at:
                    raise ValueError("secret text")
                self.made += 1
                yield LONG
        finally:
            self.is_closed = True


class Sent:
    """What a response sends to a client, which leaves after some parts."""

    def __init__(self, *, leaves_after: int | None = None) -> None:
        self.messages: list[Any] = []
        self._leaves_after = leaves_after
        self._left = asyncio.Event()

    async def __call__(self, message: Any) -> None:
        self.messages.append(message)
        if len(self.messages) == self._leaves_after:
            self._left.set()
        await asyncio.sleep(0)

    async def receive(self) -> Any:
        await self._left.wait()
        return {"type": "http.disconnect"}

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.messages)

    @property
    def is_whole(self) -> bool:
        return not self.messages[-1].get("more_body", False)


async def sent(response: Response, client: Sent) -> Sent:
    await response({"type": "http", "asgi": {"spec_version": "2.3"}}, client.receive, client)
    return client


@run
async def test_a_short_list_has_a_length_and_a_long_one_is_sent_as_it_is_read() -> None:
    entries = Entries(2)
    short = await json_list(entries(), {"X-Count": "2"})
    assert entries.is_closed
    assert short.headers["content-length"] == str(len(LONG) * 2 + 3)
    entries = Entries(WIDE)
    response = await json_list(entries(), {"X-Count": str(WIDE)})
    assert entries.made == 3
    client = await sent(response, Sent())
    assert json.loads(client.body) == [json.loads(LONG)] * WIDE
    assert client.is_whole
    assert entries.is_closed
    assert {response.headers["x-count"], short.headers["x-count"]} == {str(WIDE), "2"}


@run
async def test_a_client_that_leaves_ends_the_reading() -> None:
    entries = Entries(1000)
    await sent(await json_list(entries()), Sent(leaves_after=3))
    assert entries.is_closed
    assert entries.made < 20


@run
async def test_an_error_has_a_status_in_a_short_list_and_breaks_off_a_long_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    entries = Entries(5, fails_at=1)
    with pytest.raises(ValueError, match="secret"):
        await json_list(entries())
    assert entries.is_closed
    entries = Entries(10, fails_at=6)
    client = await sent(await json_list(entries()), Sent())
    assert entries.is_closed
    assert not client.is_whole
    assert "a list was aborted: ValueError" in caplog.text
    assert "secret" not in caplog.text


@run
async def test_a_reader_that_takes_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.server.streaming.json_list.STALLED_S", 0.05)
    entries = Entries(10)

    class Slow(Sent):
        async def __call__(self, message: Any) -> None:
            await super().__call__(message)
            if len(self.messages) == 3:
                await asyncio.sleep(60)

    client = await sent(await json_list(entries()), Slow())
    assert entries.is_closed
    assert not client.is_whole
    assert entries.made < 10


@pytest.fixture
def url() -> Iterator[str]:
    with EMPTY["sqlite"]() as url:
        yield url


@run
async def test_a_history_and_a_listing_longer_than_is_sent_whole_are_read_in_full(url: str) -> None:
    async with serving(url) as server:
        http = await server.http()
        await http.post("/threads", json={"thread_id": "t", "metadata": {"graph_id": "aware"}})
        for number in range(4):
            values = {"messages": [{"role": "user", "content": str(number) * 150_000}]}
            answer = await http.post("/threads/t/state", json={"values": values, "as_node": "answer"})
            assert answer.status_code == 200
        for answer in (
            await http.post("/threads/t/history", json={"limit": 100}),
            await http.get("/threads/t/history", params={"limit": 100}),
        ):
            assert "content-length" not in answer.headers
            assert [len(state["values"].get("messages", ())) for state in answer.json()][:4] == [4, 3, 2, 1]
        found = await http.post("/threads/search", json={"ids": ["t"]})
        assert len(found.json()[0]["values"]["messages"]) == 4
        assert found.headers["x-pagination-total"] == "1"
