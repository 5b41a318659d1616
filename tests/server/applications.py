"""Applications with Perdure in them, where they keep their threads, and what a process holds of it."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from typing import Any, NamedTuple

import httpx
import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp

from examples.fastapi_app import builder as chat
from perdure.runtime import Settings
from perdure.server import Opened, checkpoint_lifespan
from perdure.storage.url import backend_of
from perdure.web.connections import LimitedConnection
from tests.backends import EMPTY
from tests.servers import postgres

VARIABLES = ("PERDURE_DB", "DATABASE_URL", "LANGGRAPH_DEV", "PERDURE_DEVELOPMENT", "PERDURE_KEYS")
QUICK = Settings(poll=0.2, drain=5)
_PATIENCE_S = 60.0


class Place(NamedTuple):
    """An empty database that nobody else uses, and how many connections it has."""

    url: str
    connections: Callable[[], int]

    def migrated(self) -> Place:
        backend_of(self.url).migrate(self.url)
        return self


@contextmanager
def sqlite() -> Iterator[Place]:
    with EMPTY["sqlite"]() as url:
        yield Place(url, lambda: 0)


@contextmanager
def postgresql() -> Iterator[Place]:
    import psycopg

    server = postgres.shared()
    name = f"lifespan_{uuid.uuid4().hex[:12]}"

    def asked(query: str) -> Any:
        with psycopg.connect(server.url(), autocommit=True) as connection:
            cursor = connection.execute(query.encode())
            return cursor.fetchone() if cursor.description else None

    asked(f"CREATE DATABASE {name}")
    count = f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{name}'"
    yield Place(server.url(name, pool=4), lambda: asked(count)[0])
    asked(f"DROP DATABASE {name} WITH (FORCE)")


PLACES: dict[str, Callable[[], AbstractContextManager[Place]]] = {
    "sqlite": sqlite,
    "postgresql": postgresql,
}


class Held(NamedTuple):
    """What a process holds. Threads of an event loop's executor live as long as the loop: not counted."""

    connections: int
    threads: list[str]
    files: list[str]
    tasks: int


def held(place: Place) -> Held:
    gc.collect()
    # The threads of the loop, and those for Perdure's own work, are kept for the next call.
    kept = ("asyncio_", "perdure-own_")
    threads = sorted(t.name for t in threading.enumerate() if not t.name.startswith(kept))
    files: list[str] = []
    for number in os.listdir("/proc/self/fd"):
        try:
            files.append(os.readlink(f"/proc/self/fd/{number}"))
        except FileNotFoundError:  # the descriptor of the listing itself
            continue
    tasks = len(asyncio.all_tasks())
    # A socket is called by a number that is new each time.
    return Held(place.connections(), threads, sorted(f.partition(":[")[0] for f in files), tasks)


async def at_rest(place: Place) -> Held:
    """What is held once the database has no connection. The server takes note of a connection's end, such as
    that of the migration before this, in its own time."""
    await asyncio.to_thread(gc.collect)
    await _eventually(lambda: place.connections() == 0)
    return held(place)


async def left_over(place: Place, before: Held) -> dict[str, Any]:
    """The connections, and what else is held beyond what was held before, once it had the time to go.

    What others in this process held before and hold no longer is none of it.
    """
    await _eventually(lambda: not _beyond(held(place), before))
    return _beyond(held(place), before)


def _beyond(now: Held, before: Held) -> dict[str, Any]:
    return {
        name: more
        for name, more in {
            "connections": now.connections,
            "threads": sorted((Counter(now.threads) - Counter(before.threads)).elements()),
            "files": sorted((Counter(now.files) - Counter(before.files)).elements()),
            "tasks": max(0, now.tasks - before.tasks),
        }.items()
        if more
    }


async def _eventually(reached: Callable[[], bool]) -> None:
    """Ask until the answer is yes, or for as long as a busy machine can take; what follows tells which."""
    deadline = time.monotonic() + _PATIENCE_S
    while not reached() and time.monotonic() < deadline:  # noqa: ASYNC110 - a state of another process
        await asyncio.sleep(0.05)


def run(work: Any) -> Any:
    return asyncio.run(work)


def app_with(url: str | None, **how: Any) -> FastAPI:
    """An application with nothing of its own but a lifespan."""
    return FastAPI(lifespan=checkpoint_lifespan(url, **{"graphs": {"chat": chat}, **how}))


def started(app: FastAPI) -> Any:
    return app.router.lifespan_context(app)


def client_of(app: ASGIApp) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")


async def turn(opened: Opened, thread_id: str, text: str) -> str:
    config: Any = {"configurable": {"thread_id": thread_id}}
    state = await opened.graph.ainvoke({"messages": [("user", text)]}, config)
    return str(state["messages"][-1].text)


@asynccontextmanager
async def listening(app: FastAPI) -> AsyncIterator[str]:
    """The application behind a real server, started and stopped as one."""
    server = uvicorn.Server(
        uvicorn.Config(app, http=LimitedConnection, port=0, log_level="critical", lifespan="on")
    )
    serving = asyncio.create_task(server.serve())
    while not server.started:
        assert not serving.done(), "the server did not start"
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await serving


async def answers(app: FastAPI, expected: str) -> None:
    async with started(app):
        assert await turn(app.state.perdure, "t", "hi") == expected
