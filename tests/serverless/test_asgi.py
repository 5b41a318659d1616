"""The lifespan of an application is run as a server would run it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fastapi import FastAPI

from perdure.errors import Unavailable
from perdure.serverless.asgi import find_opened, lifespan_of, runtime_of


def run(app: Any) -> list[Any]:
    async def main() -> list[Any]:
        async with lifespan_of(app) as state:
            return [state, runtime_of(app), find_opened(app)]

    return asyncio.run(main())


def test_an_application_starts_and_stops_and_has_a_state() -> None:
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "lifespan"
        seen.append((await receive())["type"])
        scope["state"]["x"] = 1
        await send({"type": "lifespan.startup.complete"})
        seen.append((await receive())["type"])
        await send({"type": "lifespan.shutdown.complete"})

    assert run(app) == [{"x": 1}, None, None]
    assert seen == ["lifespan.startup", "lifespan.shutdown"]


def test_an_application_without_a_lifespan_is_used_as_it_is() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise ValueError("http only")

    assert run(app) == [{}, None, None]


def test_a_failed_start_raises_its_cause() -> None:
    async def failing(_: Any) -> Any:
        raise Unavailable("the database is away")
        yield

    with pytest.raises(Unavailable, match="away"):
        run(FastAPI(lifespan=failing))


def test_a_failed_start_without_a_cause_is_an_error() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "lifespan.startup.failed"})

    with pytest.raises(RuntimeError, match="start failed"):
        run(app)
