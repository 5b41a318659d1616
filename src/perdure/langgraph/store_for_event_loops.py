"""The store of a database that was opened for an event loop."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future

from perdure.langgraph.store import PerdureStore
from perdure.langgraph.store_arguments import read_interval
from perdure.storage.own_threads import run_in_own_thread


class AsyncPerdureStore(PerdureStore):
    """A ``PerdureStore`` whose removal of expired items is awaited, as in LangGraph's asynchronous stores.

    ``Database.store`` makes it; ``SyncDatabase.store`` makes a ``PerdureStore``, whose removal blocks.
    """

    async def sweep_ttl(self) -> int:  # type: ignore[override]
        """Remove the tenant's expired items and return their number, as ``asweep_ttl``."""
        return await self.asweep_ttl()

    async def start_ttl_sweeper(  # type: ignore[override]
        self, sweep_interval_minutes: float | None = None
    ) -> asyncio.Task[None]:
        """Remove expired items every ``sweep_interval_minutes``, as ``PerdureStore`` does; return a task that
        ends with the sweeper. Cancelling it stops the sweeper, and so does the end of the event loop."""
        seconds = read_interval(sweep_interval_minutes, self.ttl_config)
        await self.stop_ttl_sweeper()
        return asyncio.create_task(_wait_for(self._start_sweeper(seconds)))

    async def stop_ttl_sweeper(  # type: ignore[override]
        self,
        timeout: float | None = None,  # noqa: ASYNC109 - LangGraph's argument
    ) -> bool:
        """Stop the sweeper; return True if its OS thread ended within ``timeout`` seconds. Repeatable."""
        return await run_in_own_thread(self._stop_sweeper, timeout)


async def _wait_for(ended: Future[None]) -> None:
    await asyncio.wrap_future(ended)
