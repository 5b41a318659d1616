"""Clients that follow a thread at one server while its runs are made and worked on at another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from langgraph_sdk.client import LangGraphClient

from perdure.database.base import handle_of
from perdure.database.opening import open_database
from perdure.engine.queue import subscribers
from perdure.model.ops import Fetch, Range
from perdure.model.program import ask
from perdure.model.records import EVENT, LANE, Kind, Partition, Record
from perdure.model.runs.queue import FOLLOWED
from tests.server import listening
from tests.server.acceptance.saying import new, parts, rests, said
from tests.server.acceptance.serving import Server, eventually, run
from tests.server.acceptance.test_failing_over import second
from tests.server.listening import phase


async def _joined(client: LangGraphClient, http: httpx.AsyncClient, thread_id: str) -> AsyncIterator[str]:
    async for part in await client.threads.join_stream(thread_id):
        yield part.event


async def _phases(client: LangGraphClient, http: httpx.AsyncClient, thread_id: str) -> AsyncIterator[str]:
    async for event in listening.heard(http, thread_id, channels=["lifecycle", "values"]):
        if (said_so := phase(event)) is not None and not event["params"]["namespace"]:
            yield {"running": "metadata", "completed": "end"}.get(said_so, said_so)
        elif event.get("method") == "values":
            yield "values"


async def _ends(events: AsyncIterator[str], ends: int) -> list[str]:
    heard: list[str] = []
    async for name in events:
        heard.append(name)
        ends -= name == "end"
        if not ends:
            return heard
    raise AssertionError("the stream ended before the run")


FOLLOWS = pytest.mark.parametrize("follow", [_joined, _phases], ids=["join_stream", "events"])


def _stored(server: Server, thread_id: str, kind: Kind) -> tuple[Record, ...]:
    database = open_database(server.database)
    try:
        (found,) = handle_of(database).run(ask(Fetch(Partition("", thread_id), (Range(kind),))))
        return found
    finally:
        database.close()


def _lasts(server: Server, thread_id: str) -> list[int]:
    """Until when the thread is recorded as followed."""
    lanes = _stored(server, thread_id, LANE)
    return [lane.fields["due_at"] for lane in lanes if lane.key == (FOLLOWED,)]


def _is_followed(server: Server, thread_id: str) -> bool:
    return bool(_lasts(server, thread_id))


@FOLLOWS
@run
async def test_runs_that_keep_nothing_are_heard_at_another_server(server: Server, follow: Any) -> None:
    with second(server) as other:
        async with server.client() as client, other.client() as there, other.http() as http:
            thread_id = await new(client)
            ear = asyncio.create_task(_ends(follow(there, http, thread_id), 2))
            await eventually(lambda: asyncio.to_thread(_is_followed, server, thread_id))
            await client.runs.wait(thread_id, "chat", input=said("one"))
            await parts(client.runs.stream(thread_id, "chat", input=said("two"), stream_mode="values"))
            heard = await ear
    assert [name for name in heard if name != "values"] == ["metadata", "end"] * 2
    assert "values" in heard[: heard.index("end")]


@pytest.mark.slow
@FOLLOWS
@run
async def test_who_comes_in_the_middle_of_such_a_run_hears_its_end(server: Server, follow: Any) -> None:
    with second(server) as other:
        async with server.client() as client, other.client() as there, other.http() as http:
            thread_id = await new(client)
            waiting = asyncio.create_task(client.runs.wait(thread_id, "slow", input=said("2")))
            await rests(client, thread_id)
            assert (await _ends(follow(there, http, thread_id), 1))[-1] == "end"
            await waiting


@pytest.mark.slow
@run
async def test_nobody_renews_the_record_of_a_follower_whose_server_was_killed(server: Server) -> None:
    with second(server) as doomed:
        async with server.client() as client, doomed.client() as there, doomed.http() as http:
            thread_id = await new(client)
            ear = asyncio.create_task(_ends(_joined(there, http, thread_id), 1))
            await eventually(lambda: asyncio.to_thread(_is_followed, server, thread_id))
            doomed.kill()
            with pytest.raises((httpx.HTTPError, AssertionError)):
                await ear
            lasts = await asyncio.to_thread(_lasts, server, thread_id)
            await client.runs.wait(thread_id, "chat", input=said("one"))
            # It is taken for a follower until then.
            assert await asyncio.to_thread(_stored, server, thread_id, EVENT)
            assert await asyncio.to_thread(_lasts, server, thread_id) == lasts
    database = open_database(server.database)
    handle_of(database).run(subscribers.forget(Partition("", thread_id), lasts[0]))
    database.close()
    assert not _is_followed(server, thread_id)
