"""Check of a run's lease before something begins that another process may have done by then."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class LeaseCheck:
    """Check of the lease of one run. As long as the lease certainly lasts, it is one comparison.

    A database that is unavailable may perform a request and answer it when it is back. By then the lease may
    have ended, and another process may have continued the run.

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
        """See ``aconfirm``. On the event loop, which would have to renew the lease, nothing is checked."""
        if not self._is_confirmed() and not is_on_loop():
            asyncio.run_coroutine_threadsafe(self._renew(), self._loop).result()


def is_on_loop() -> bool:
    """Return True if an event loop runs in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
