"""Servers for those who listen to threads, in the test's own loop, and an ear for what they tell."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import httpx
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient
from starlette.requests import HTTPConnection

import perdure
from perdure.runtime import Runtime, Settings
from perdure.server.app import create_app
from perdure.server.auth.filters import Filter
from perdure.server.auth.identity import Gate, OpenGate, Refusal, User
from perdure.server.config import RequestLimits
from perdure.server.resources import ServerState
from tests.server.graphs import graphs
from tests.server.ports import served

Told = dict[str, Any]
T = TypeVar("T")

_TIMEOUT = (60.0, 60.0, 60.0, 60.0)
"""Seconds to connect, to read, to write and to wait for a connection of the pool."""


class Place:
    """A server that listens, and how to get there. A user's token is the user's name."""

    def __init__(self, url: str, host: ServerState) -> None:
        self.url, self.host = url, host

    def client(self, user: str = "") -> LangGraphClient:
        return get_client(url=self.url, api_key=None, headers=_as(user), timeout=_TIMEOUT)

    def http(self, user: str = "") -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.url, headers=_as(user), timeout=_TIMEOUT, trust_env=False)

    async def begun(self, thread_id: str, listening: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begin to listen to a thread, and come back once the server tells what happens there from now on."""
        before = self._followers(thread_id)
        known = {id(one) for one in before}
        task = asyncio.create_task(listening)
        async with asyncio.timeout(60):
            while not (task.done() or {id(one) for one in self._followers(thread_id)} - known):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        return task

    def _followers(self, thread_id: str) -> list[list[Any]]:
        subscriptions = self.host.runtime._context.subscriptions
        return [
            one
            for partition, followers in subscriptions._waiting.items()
            # Other processes know of it by then.
            if partition.thread == thread_id and partition in subscriptions._noted
            for one in followers
        ]


def _as(user: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {user}"} if user else {}


class Revocable:
    """A gate whose answer changes while a connection is open."""

    def __init__(self) -> None:
        self.user: User | None = User("ada", "")
        self.conditions: Filter | None = None

    async def authenticate(self, request: HTTPConnection) -> User:
        if self.user is None:
            raise Refusal(401, "this token has expired")
        return self.user

    async def authorize(self, user: User, resource: str, action: str, value: Told) -> Filter | None:
        return self.conditions


@asynccontextmanager
async def place(
    url: str, *, works: bool = True, gate: Gate | None = None, limits: RequestLimits | None = None
) -> AsyncIterator[Place]:
    """A server over a database, for as long as the block lasts; another may be over the same."""
    async with (
        perdure.connect(url, migrate=True) as db,
        Runtime(
            db, graphs(), settings=Settings(poll=0.1, shared_threads=True), works=works, all_tenants=True
        ) as runtime,
    ):
        host = ServerState.over(runtime, gate or OpenGate(), limits=limits)
        async with served(create_app(None), host) as address:
            yield Place(address, host)


async def heard(http: httpx.AsyncClient, thread_id: str, **asked: Any) -> AsyncGenerator[Told, None]:
    """What is told on a thread, frame by frame, until the server ends the stream."""
    body = {"channels": ["lifecycle"], **asked}
    async with http.stream("POST", f"/threads/{thread_id}/stream/events", json=body) as answer:
        assert answer.status_code == 200, await answer.aread()
        assert answer.headers["content-type"].startswith("text/event-stream")
        async for line in answer.aiter_lines():
            if line.startswith("data:"):
                yield json.loads(line.removeprefix("data:"))


def lines_of(answer: httpx.Response) -> AsyncGenerator[str, None]:
    """Return the lines of an answer that is streamed; they can be closed before its end."""
    lines = answer.aiter_lines()
    assert isinstance(lines, AsyncGenerator)
    return lines


async def until_ended(events: AsyncIterator[Told], ends: int = 1) -> list[Told]:
    """What is told until so many runs have ended, or wait."""
    told: list[Told] = []
    async for event in events:
        told.append(event)
        if phase(event) in ("completed", "failed", "interrupted") and not event["params"]["namespace"]:
            ends -= 1
            if not ends:
                return told
    raise AssertionError("the stream ended before the run")


def phase(event: Told) -> str | None:
    """What a lifecycle event says."""
    return event["params"]["data"]["event"] if event.get("method") == "lifecycle" else None


async def command(http: httpx.AsyncClient, thread_id: str, method: str, **params: Any) -> Told:
    said = {"id": 7, "method": method, "params": params}
    answer = await http.post(f"/threads/{thread_id}/commands", json=said)
    assert answer.status_code == 200, answer.text
    told: Told = answer.json()
    assert told["id"] == 7
    return told


async def start(http: httpx.AsyncClient, thread_id: str, graph: str, given: Any, **more: Any) -> Told:
    told = await command(http, thread_id, "run.start", assistant_id=graph, input=given, **more)
    assert told["type"] == "success", told
    return told
