"""Work on demand: for processes without a running worker, and for those that are frozen between two calls.

The methods are the runtime's; a process calls them when it has time to work, and holds no lease afterwards.
"""

from __future__ import annotations

import asyncio

from perdure.runtime.runtime_context import RuntimeContext
from perdure.runtime.worker.worker import Worker


class OnDemand:
    """Methods of ``Runtime`` for work on demand."""

    _context: RuntimeContext
    _worker: Worker

    async def pause(self, within: float) -> bool:
        """End the work that this process has begun, before the process is frozen: wait at most ``within``
        seconds for it, summaries included, then release the rest, which is due for other workers at once.
        Nothing is claimed until ``resume``.

        Returns:
            True if nothing was released.
        """
        if not self._context.works:
            return True
        loop = asyncio.get_running_loop()
        until = loop.time() + within
        is_done = await self._worker.dispatch.wait_until_served(within)
        # A summary that is cancelled here would be begun again after each reply, and never be finished.
        await self._worker.runner.conversations.wait_for_summaries(max(0.0, until - loop.time()))
        await self._worker.drain(0)
        return is_done

    async def resume(self, *, polls: bool = False) -> None:
        """Work again after ``pause``: on messages that this process accepts, or with ``polls`` on everything
        that is due.

        The database is asked for its time first; raises ``Unavailable`` if it does not answer.
        """
        self._context.clock.forget()
        await self._context.clock.now()
        if self._context.works:
            self._worker.start(polls=polls)
            self._worker.is_resumed = not polls

    async def work_off(self, within: float) -> bool:
        """Work on everything that is due in the database for at most ``within`` seconds. Return True if
        nothing is left to try now."""
        if not self._context.works:
            raise RuntimeError("this runtime leaves the work to others; open it with works=True")
        return await self._worker.dispatch.serve_all(within)
