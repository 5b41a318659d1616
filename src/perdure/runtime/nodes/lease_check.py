"""Check of a run's lease before a side effect, which another process may begin once the lease has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class LeaseCheck:
    """Check of the lease of one run. As long as the lease certainly lasts, the check is one comparison.

    A request that renews the lease may be answered only when the database is available again. By then the
    lease may have ended, and another process may have continued the run.

    Args:
        is_confirmed: Returns False if the lease may have ended.
        renew: Renews the lease, and raises if another process holds it. Called on the event loop on which
            the check is made.
    """

    def __init__(
        self, is_confirmed: Callable[[], bool], renew: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        self._is_confirmed = is_confirmed
        self._renew = renew
        self._loop = asyncio.get_running_loop()

    async def aconfirm(self) -> None:
        """Return when the lease is confirmed.

        Raises:
            Fenced: Another process holds the lease, or the database does not renew it.
        """
        if not self._is_confirmed():
            await self._renew()

    def confirm(self) -> None:
        """See ``aconfirm``. On an event loop, which would itself have to renew the lease, check nothing."""
        if not self._is_confirmed() and not is_on_loop():
            asyncio.run_coroutine_threadsafe(self._renew(), self._loop).result()


def is_on_loop() -> bool:
    """Return True if an event loop runs in this OS thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
