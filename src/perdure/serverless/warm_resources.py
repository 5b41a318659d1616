"""Resources of a container: opened in its first call, checked after a pause, and used by an event loop that
runs during calls only."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Generic, TypeVar

from perdure.errors import Unavailable

R = TypeVar("R")
T = TypeVar("T")

THAWED_AFTER_S = 1.0
"""Seconds since the last call after which the resource is checked."""


class Container(Generic[R]):
    """Resources that a process keeps from call to call. Calls come one after another, as on Lambda.

    Args:
        opening: Makes the context manager of the resource, for each time that it is opened.
        check: Queries the resource; raises ``Unavailable`` if it has to be opened again.
    """

    def __init__(
        self,
        opening: Callable[[], AbstractAsyncContextManager[R]],
        check: Callable[[R], Awaitable[None]] | None = None,
    ) -> None:
        self._opening = opening
        self._check = check
        self._loop: asyncio.AbstractEventLoop | None = None
        self._open: AbstractAsyncContextManager[R] | None = None
        self._resource: R
        self._ended_at = 0.0

    def call(self, work: Callable[[R], Awaitable[T]]) -> T:
        """Return the result of ``work`` with the open resource. If it cannot be opened, its error is raised,
        and the next call tries again."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self._loop)
        return self._loop.run_until_complete(self._call(work))

    async def _call(self, work: Callable[[R], Awaitable[T]]) -> T:
        resource = await self._prepare()
        try:
            return await work(resource)
        finally:
            self._ended_at = time.time()

    async def _prepare(self) -> R:
        # By the wall clock: the monotonic one may stand still while the process is frozen.
        if self._open is not None and abs(time.time() - self._ended_at) > THAWED_AFTER_S:
            try:
                if self._check is not None:
                    await self._check(self._resource)
            except Unavailable:
                await self._close()
        if self._open is None:
            opening = self._opening()
            self._resource = await opening.__aenter__()
            self._open = opening
        return self._resource

    async def _close(self) -> None:
        if self._open is not None:
            opened, self._open = self._open, None
            await opened.__aexit__(None, None, None)

    def close(self) -> None:
        """Close the resource and the event loop; the next call opens them again."""
        if self._loop is not None:
            loop, self._loop = self._loop, None
            loop.run_until_complete(self._close())
            loop.close()
            asyncio.set_event_loop(None)
