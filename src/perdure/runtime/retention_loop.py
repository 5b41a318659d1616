"""Decides when a process sweeps: as soon as the last sweep by any process is long enough ago."""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict, replace
from types import TracebackType
from typing import Self

from perdure.database.asynchronous import Database
from perdure.database.base import DatabaseBase, handle_of
from perdure.engine.retention import sweep
from perdure.engine.retention.sweep import RetentionResult
from perdure.model.ops import Now
from perdure.model.program import ask
from perdure.retention.sweeper import RetentionOptions
from perdure.runtime.observers import Observers

_POLL_S = 60.0
"""Longest time between two looks at the state of the database's sweep."""


class RetentionLoop:
    """Sweeps a database whenever the last sweep by any process is ``every`` seconds ago. An async context
    manager.

    Args:
        database: the database, with its policies.
        observers: receive ``sweep.finished`` with the counts of a sweep of this process, ``sweep.failed``,
            and ``sweep.seen`` with the time of the last sweep of any process.
        every: seconds between two sweeps.
        options: how a sweep is done.
        store: database of the store if it is another one; its expired items are removed after a sweep.
    """

    def __init__(
        self,
        database: DatabaseBase,
        observers: Observers,
        *,
        every: float,
        options: RetentionOptions,
        store: DatabaseBase | None = None,
    ) -> None:
        self._database = database
        self._handle = handle_of(database)
        self._observers = observers
        self._every = every
        self._options = options
        self._store = None if store is None else handle_of(store)
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

    async def sweep_if_due(self) -> float:
        """Sweep if it is time, and return the seconds until the next look."""
        left = await self.count_seconds_left()
        if left > 0:
            return min(left, _POLL_S)
        await self.sweep()
        return min(self._every, _POLL_S)

    async def count_seconds_left(self) -> float:
        """Return the seconds until a sweep is due; 0 or less if it is due, or if one was left unfinished."""
        tenant = None
        if not self._options.all_tenants:
            tenant = self._database.tenant
        state, _ = await self._handle.arun(sweep.read_progress(tenant))
        now, left = await self._handle.arun(ask(Now())), 0.0
        if state.is_over and state.finished_at is not None:
            left = (state.finished_at - now) / 1_000_000 + self._every
        if left > 0:
            self._note_sweep(state.finished_at)
        return left

    async def sweep(self, *, share: float | None = None) -> RetentionResult | None:
        """Sweep now, and return the result; ``None`` if another process sweeps.

        Args:
            share: the share of its time for which this sweep works, instead of that of the options.
        """
        began = time.monotonic()
        options = self._options
        if share is not None:
            options = replace(options, share=share)
        swept = await Database(self._handle).apply_retention(options)
        if swept is None:
            return None
        if self._store is not None:
            sweeper = self._store.sweeper(options)
            swept = replace(swept, items=swept.items + await sweeper.arun(sweeper.remove_items()))
        took = round((time.monotonic() - began) * 1_000_000)
        self._observers.event("sweep.finished", **asdict(swept), took=took)
        self._note_sweep(await self._handle.arun(ask(Now())))
        return swept

    def _note_sweep(self, finished_at: int | None) -> None:
        if finished_at is not None:
            self._observers.event("sweep.seen", finished_at=finished_at, every=round(self._every * 1_000_000))

    async def _sweep_for_ever(self) -> None:
        # Pause first: a process that lives for one request, as in a serverless container, has no time to
        # sweep.
        pause = min(self._every, _POLL_S)
        while True:
            await asyncio.sleep(pause)
            try:
                pause = await self.sweep_if_due()
            except Exception as error:
                # The next sweep may succeed; a loop that ended here would stop without a notice.
                self._observers.event("sweep.failed", error=type(error).__name__)
                pause = _POLL_S
