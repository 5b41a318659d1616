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
        renew: Renews the lease on the event loop on which this object is made. Raises ``Fenced`` if another
            process holds it; if that is known before, at its call, in any OS thread.
        renew_here: The same, blocking, for a call on that event loop.
    """

    def __init__(
        self,
        is_confirmed: Callable[[], bool],
        renew: Callable[[], Coroutine[Any, Any, None]],
        renew_here: Callable[[], None],
    ) -> None:
        self._is_confirmed = is_confirmed
        self._renew = renew
        self._renew_here = renew_here
        self._loop = asyncio.get_running_loop()

    async def aconfirm(self) -> None:
        """Return when the lease is confirmed.

        Raises:
            Fenced: Another process holds the lease, or the attempt at the run is over.
        """
        if not self._is_confirmed():
            await self._renew()

    def confirm(self) -> None:
        """See ``aconfirm``."""
        if self._is_confirmed():
            return
        if is_on_loop():
            self._renew_here()
        else:
            asyncio.run_coroutine_threadsafe(self._renew(), self._loop).result()


def is_on_loop() -> bool:
    """Return True if an event loop runs in this OS thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
