"""A driver that only reads: every write is refused before it reaches the backend."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from perdure.errors import NotAllowed
from perdure.model.ops import Fetch, Find, Now
from perdure.model.program import Effect
from perdure.storage.port import Driver, WrappingDriver
from perdure.storage.url import backend_of, open_driver

R = TypeVar("R")


class ReadOnlyDriver(WrappingDriver):
    """Passes reads on and raises ``NotAllowed`` for writes."""

    def __init__(self, inner: Driver) -> None:
        super().__init__(inner)
        # A search that removes expired records would write.
        self.capabilities = replace(self.capabilities, is_read_only=True, removes_expired=False)

    def perform(self, effect: Effect[R]) -> R:
        _check(effect)
        return self._inner.perform(effect)

    async def aperform(self, effect: Effect[R]) -> R:
        _check(effect)
        return await self._inner.aperform(effect)


def open_read_only(url: str) -> Driver:
    """Open the backend of a URL to read from it; it must have this release's layout.

    A SQLite file is opened without changing a byte of it, so it may be a read-only copy.
    """
    open_backend = getattr(backend_of(url), "open_read_only", open_driver)
    return ReadOnlyDriver(open_backend(url))


def _check(effect: Effect[R]) -> None:
    if not isinstance(effect, Fetch | Find | Now):
        raise NotAllowed("this database is open for reading only; nothing was written")
