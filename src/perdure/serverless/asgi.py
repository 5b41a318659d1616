"""Lifespan of an ASGI application that no server runs, and the runtime that it has opened."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

from perdure.runtime import Runtime

Message = MutableMapping[str, Any]
AsgiApp = Callable[..., Any]
"""An ASGI application: ``(scope, receive, send)``."""


@asynccontextmanager
async def lifespan_of(app: AsgiApp) -> AsyncIterator[dict[str, Any]]:
    """Run an application's start, yield the state for its requests, and run its stop at the end of the block.

    An application without a lifespan is used as it is.

    Raises:
        RuntimeError: The application reports that its start failed, without a reason.
        Exception: The application's start raised it.
    """
    state: dict[str, Any] = {}
    inward: asyncio.Queue[Message] = asyncio.Queue()
    outward: asyncio.Queue[Message] = asyncio.Queue()
    scope: Message = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}, "state": state}
    running: asyncio.Future[None] = asyncio.ensure_future(app(scope, inward.get, outward.put))
    await inward.put({"type": "lifespan.startup"})
    answer = await _receive_answer(outward, running)
    if answer is not None and answer["type"] == "lifespan.startup.failed":
        # Frameworks report the failure before they raise its cause: wait for the cause.
        await asyncio.wait([running], timeout=1)
        if running.done() and not running.cancelled() and (error := running.exception()) is not None:
            raise error
        running.cancel()
        raise RuntimeError("the application's start failed; it gave no reason")
    if answer is None and not running.cancelled():
        # By the ASGI specification, an application that raises or returns here does not support lifespans.
        running.exception()
    try:
        yield state
    finally:
        if not running.done():
            await inward.put({"type": "lifespan.shutdown"})
            await _receive_answer(outward, running)
            running.cancel()


async def _receive_answer(outward: asyncio.Queue[Message], running: asyncio.Future[None]) -> Message | None:
    """Return the application's next message, ``None`` if it has ended without one."""
    receiving = asyncio.ensure_future(outward.get())
    both: list[asyncio.Future[Any]] = [receiving, running]
    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    if receiving.done():
        return receiving.result()
    receiving.cancel()
    return None


def find_opened(app: object) -> Any:
    """Return the state that ``checkpoint_lifespan`` or Perdure's server has opened for an application: an
    object with the runtime; ``None`` if neither has."""
    found = getattr(getattr(app, "state", None), "perdure", None)
    return getattr(found, "host", None) or found


def runtime_of(app: object) -> Runtime | None:
    """Return the runtime that an application has opened, if it has one."""
    runtime = getattr(find_opened(app), "runtime", None)
    if isinstance(runtime, Runtime):
        return runtime
    return None
