"""Periodic removal of expired threads and store items."""

from __future__ import annotations

import asyncio
import logging
from types import TracebackType
from typing import Self

from perdure.errors import Conflict, Corrupt
from perdure.runtime import Runtime
from perdure.runtime.threads.rows import ThreadRow
from perdure.runtime.threads.threads import Threads

_log = logging.getLogger("perdure.server")
_EVERY_MINUTES = 5.0
_MOST = 1000


class Sweeper:
    """Checks all tenants' threads every few minutes. An async context manager. Any number of servers may
    sweep one database: a thread that one has removed is skipped by the others."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        ttl = runtime.thread_ttl
        self._every = 60.0 * (_EVERY_MINUTES if ttl is None else ttl.sweep_interval_minutes)
        self._most = _MOST if ttl is None else ttl.sweep_limit
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._sweep_for_ever())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def sweep(self) -> int:
        """Remove expired threads, or prune them to their latest state, and return their number. Expired
        store items are removed, too."""
        now = await self._runtime.now()
        swept = 0
        for tenant in await self._runtime.tenants_with_items():
            await self._runtime.for_tenant(tenant).store().asweep_ttl()
        for tenant in await self._runtime.tenants():
            threads = self._runtime.for_tenant(tenant).threads
            async for row in threads.index.expired(now):
                if swept >= self._most:
                    return swept
                try:
                    swept += await self._remove(threads, row, now)
                except (Conflict, Corrupt) as error:
                    # A thread that cannot be read, or is written to all the time, must not block the others.
                    _log.warning("thread %r was not swept: %s", row.thread_id, type(error).__name__)
        if swept:
            _log.info("%d expired threads were swept", swept)
        return swept

    async def _remove(self, threads: Threads, row: ThreadRow, now: int) -> bool:
        """Return True if the thread was removed or pruned. A thread with a message accepted since it was
        read, or with a reply still to be sent, stays."""
        if (row.ttl or {}).get("strategy") == "keep_latest":
            await threads.keep_latest(row.thread_id)
            if not row.has_document:
                # From now on its time to live counts from its last sweep.
                await threads.adopt(row)
            await threads.touched(row.thread_id)
            return True
        return await threads.remove_resting(row.thread_id, expired_at=now)

    async def _sweep_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._every)
            try:
                await self.sweep()
            except Exception as error:
                # The next sweep may succeed; a sweeper that ended here would stop without a notice.
                _log.warning("threads were not swept: %s", type(error).__name__)
