"""Runs that end with their client: of several requests for one run, at any server, the latest decides."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from tests.backends import EMPTY
from tests.server.acceptance.saying import heard, said
from tests.server.acceptance.serving import eventually
from tests.server.gates import GATES
from tests.server.hosting import run
from tests.server.listening import place

WAYS = ("thread/wait", "thread/stream", "alone/wait", "alone/stream", "join", "join/stream")
NOTICED_S = 0.4
"""Seconds after which a server has noticed that a client has left, and done what follows."""


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    GATES.clear()
    with EMPTY[request.param]() as empty:
        yield empty


class _Clients:
    """Clients of two servers over one database, and a thread."""

    def __init__(self, first: httpx.AsyncClient, second: httpx.AsyncClient, thread_id: str) -> None:
        self.first, self.second, self.thread_id = first, second, thread_id

    async def open(
        self, http: httpx.AsyncClient, way: str, text: str = "gate", **more: Any
    ) -> httpx.Response:
        """Send a run whose client ends it by leaving, under its key, and return the open response."""
        headers = {"Idempotency-Key": f"key of {text}", **more.pop("headers", {})}
        body = {"assistant_id": "slow", "input": said(text), "on_disconnect": "cancel", **more}
        if way.endswith("stream"):
            # The events of other runs need not reach another server that begins to follow them.
            body["stream_resumable"] = True
        path = f"/threads/{self.thread_id}/runs"
        if way.startswith("join"):
            accepted = await http.post(path, json=body, headers=headers)
            path = f"{path}/{accepted.json()['run_id']}/{way.removeprefix('join/')}"
            request = http.build_request("GET", path, params={"cancel_on_disconnect": "true"})
        else:
            place, _, kind = way.partition("/")
            path = f"{path}/{kind}" if place == "thread" else f"/runs/{kind}"
            request = http.build_request("POST", path, json=body, headers=headers)
        opened = await http.send(request, stream=True)
        assert opened.status_code == 200, await opened.aread()
        return opened

    async def status(self, opened: httpx.Response) -> str:
        path = opened.headers["Content-Location"]
        found: str = (await self.first.get(path)).json()["status"]
        return found

    async def ends(self, opened: httpx.Response) -> None:
        async def is_interrupted() -> bool:
            return await self.status(opened) == "interrupted"

        await eventually(is_interrupted)


@asynccontextmanager
async def _clients(url: str) -> AsyncIterator[_Clients]:
    async with place(url) as one, place(url) as other, one.http() as first, other.http() as second:
        made = await first.post("/threads", json={})
        yield _Clients(first, second, made.json()["thread_id"])


async def _texts(opened: httpx.Response) -> list[str]:
    """Return the texts that a response ends with."""
    text = (await opened.aread()).decode()
    if not opened.headers["Content-Type"].startswith("text/event-stream"):
        return heard(json.loads(text))
    assert '"status":"success"' in text
    values = [frame for frame in text.split("\n\n") if "event: values" in frame]
    return heard(json.loads(values[-1].partition("data: ")[2].partition("\n")[0]))


@pytest.mark.parametrize("way", WAYS)
@run
async def test_a_run_goes_on_if_its_request_was_sent_again_before_the_loss_is_noticed(
    url: str, way: str
) -> None:
    async with _clients(url) as clients:
        first = await clients.open(clients.first, way)
        again = await clients.open(clients.second, way)
        assert again.headers["Content-Location"] == first.headers["Content-Location"]
        await first.aclose()
        await asyncio.sleep(NOTICED_S)
        assert await clients.status(again) in ("pending", "running")
        GATES["slow"].set()
        assert await _texts(again) == ["gate", "noted", "rested"]


@pytest.mark.parametrize("way", WAYS)
@run
async def test_a_run_ends_if_its_latest_client_leaves_too(url: str, way: str) -> None:
    async with _clients(url) as clients:
        first = await clients.open(clients.first, way)
        second = await clients.open(clients.second, way)
        third = await clients.open(clients.first, way)
        for left in (first, second):
            await left.aclose()
        await asyncio.sleep(NOTICED_S)
        assert await clients.status(third) in ("pending", "running")
        await third.aclose()
        await clients.ends(third)


@run
async def test_a_run_that_was_cancelled_with_its_first_client_stays_so(url: str) -> None:
    async with _clients(url) as clients:
        first = await clients.open(clients.first, "thread/wait")
        await first.aclose()
        await clients.ends(first)
        again = await clients.open(clients.second, "thread/wait")
        assert again.headers["Content-Location"] == first.headers["Content-Location"]
        assert "rested" not in heard(json.loads(await again.aread()))


@run
async def test_a_run_that_comes_later_is_followed_by_its_latest_request(url: str) -> None:
    async with _clients(url) as clients:
        first = await clients.open(clients.first, "thread/wait", "0.1", after_seconds=1)
        again = await clients.open(clients.second, "thread/wait", "0.1", after_seconds=1)
        await first.aclose()
        assert await _texts(again) == ["0.1", "noted", "rested"]


@run
async def test_inputs_that_wait_to_be_one_run_are_kept_for_the_latest_of_them(url: str) -> None:
    async with _clients(url) as clients:
        how = {"X-Multitask-Strategy": "coalesce"}
        running = await clients.open(clients.first, "thread/wait")
        one = await clients.open(clients.first, "thread/stream", "0.1", headers=how)
        other = await clients.open(clients.second, "thread/stream", "0.2", headers=how)
        assert other.headers["Content-Location"] == one.headers["Content-Location"]
        await one.aclose()
        await asyncio.sleep(NOTICED_S)
        GATES["slow"].set()
        assert await _texts(running) == ["gate", "noted", "rested"]
        assert (await _texts(other))[3:] == ["0.1", "0.2", "noted", "rested"]


@run
async def test_an_input_that_steers_a_run_does_not_end_it_if_it_was_sent_twice(url: str) -> None:
    async with _clients(url) as clients:
        patient = {"assistant_id": "patient"}
        running = await clients.open(clients.first, "thread/wait", "wait", **patient)
        how: dict[str, Any] = {**patient, "headers": {"X-Multitask-Strategy": "steer"}}
        steers = await clients.open(clients.first, "thread/wait", "more", **how)

        async def is_taken_up() -> bool:
            return "taken_up_by" in (await clients.first.get(steers.headers["Content-Location"])).json()

        await eventually(is_taken_up)
        again = await clients.open(clients.second, "thread/wait", "more", **how)
        assert again.headers["Content-Location"] == steers.headers["Content-Location"]
        for left in (steers, again):
            await left.aclose()
        await asyncio.sleep(NOTICED_S)
        assert await clients.status(running) == "running"
        await clients.open(clients.first, "thread/wait", "enough", **how)
        assert await _texts(running) == ["wait", "more", "enough", "at last"]
