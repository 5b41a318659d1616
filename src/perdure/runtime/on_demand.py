"""Work on demand: for processes without a running worker, and for those that are frozen between two calls.

The methods are the runtime's; a process calls them when it has time to work, and holds no lease afterwards.
"""

from __future__ import annotations

from abc import abstractmethod

from perdure.model.records import Partition
from perdure.runtime.clock import DatabaseClock
from perdure.runtime.worker.worker import Worker


class OnDemand:
    """Part of ``Runtime``."""

    _worker: Worker
    _works: bool
    _clock: DatabaseClock
    _is_resumed: bool = False

    @abstractmethod
    def _partition(self, thread_id: str, tenant: str | None) -> Partition: ...

    async def run_until_idle(
        self, thread_id: str, *, within: float | None = None, tenant: str | None = None
    ) -> float | None:
        """Work on a thread in this call until nothing of it is due: its runs, its replies, its scheduled
        messages. For a runtime with ``works=False`` in a process that has no worker.

        When it returns or raises, this process holds no lease of the thread.

        Args:
            thread_id: The thread.
            within: Seconds for the work. It also waits for what becomes due in that time, such as another
                attempt, the end of a debounce, or the expiry of another process's lease.
            tenant: The owner of the thread; the database's tenant by default.

        Returns:
            The seconds after which something of the thread is due; ``None`` if nothing waits.

        Raises:
            TimeoutError: The work took longer than ``within``. What was under way is released, and due for
                the next call or worker at once.
            NotFound: The next run or reply needs a graph or channel that this runtime does not have.
            RuntimeError: This runtime has a worker, which does the work.
        """
        if self._works:
            raise RuntimeError("this runtime has a worker, which does the work; open it with works=False")
        later = await self._worker.until_idle(self._partition(thread_id, tenant), within)
        return None if later is None else max(0.0, (later - await self._clock.now()) / 1_000_000)

    async def pause(self, within: float) -> bool:
        """End the work that this process has begun, before the process is frozen: wait ``within`` seconds for
        it, then release the rest, which is due for other workers at once. Nothing is claimed until
        ``resume``.

        Returns:
            True if nothing was released.
        """
        if not self._works:
            return True
        is_done = await self._worker.dispatch.settled(within)
        await self._worker.drain(0)
        return is_done

    async def resume(self, *, polls: bool = False) -> None:
        """Work again after ``pause``, on what this process accepts, or with ``polls`` on all that is due.

        The database is asked for its time first; raises ``Unavailable`` if it does not answer.
        """
        self._clock.forget()
        await self._clock.now()
        if self._works:
            self._worker.start(polls=polls)
            self._is_resumed = not polls

    async def work_off(self, within: float) -> bool:
        """Work on everything that is due in the database for at most ``within`` seconds. Return True if
        nothing is left to try now."""
        if not self._works:
            raise RuntimeError("this runtime leaves the work to others; open it with works=True")
        return await self._worker.dispatch.exhausted(within)
