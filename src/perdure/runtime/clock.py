"""Clock of the database, which all processes that use the database share.

The database is asked once a minute; in between the monotonic clock continues from its answer. So a host whose
clock is an hour off, or is set while it runs, takes no lease too early and lets no message wait too long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

_REFRESH_S = 60.0

Ask = Callable[[], Awaitable[int]]


class DatabaseClock:
    """Database time in microseconds."""

    def __init__(self, ask: Ask, *, refresh_s: float = _REFRESH_S) -> None:
        self._ask = ask
        self._refresh_us = round(refresh_s * 1_000_000)
        self._asked_at: int | None = None
        self._offset_us = 0
        self._lock = asyncio.Lock()

    async def now(self) -> int:
        """Return the time; ask the database if the last answer is too old."""
        if not self._is_fresh():
            await self._refresh()
        return self.estimate()

    def forget(self) -> None:
        """Ask the database at the next ``now``: while a process is frozen, its monotonic clock may stop."""
        self._asked_at = None

    def estimate(self) -> int:
        """Return the time by the last answer, without asking."""
        return _read_monotonic() + self._offset_us

    async def _refresh(self) -> None:
        async with self._lock:
            if self._is_fresh():
                return
            began = _read_monotonic()
            answer = await self._ask()
            ended = _read_monotonic()
            self._offset_us = answer - (began + ended) // 2
            self._asked_at = ended

    def _is_fresh(self) -> bool:
        return self._asked_at is not None and _read_monotonic() - self._asked_at <= self._refresh_us


def _read_monotonic() -> int:
    return round(asyncio.get_running_loop().time() * 1_000_000)
