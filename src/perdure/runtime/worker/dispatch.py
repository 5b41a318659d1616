"""Which lanes are served when: the database is asked for those that are due, and whoever makes one due tells.

A process serves a lane once at a time, as many as its settings allow, and tenants in turn.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextvars import copy_context
from typing import Any

from perdure.database import Database
from perdure.errors import Unavailable
from perdure.model.queue import IN, Lane
from perdure.model.records import Partition
from perdure.runtime.clock import DatabaseClock
from perdure.runtime.jitter import spread
from perdure.runtime.notifications import Notifications, PollDelay
from perdure.runtime.observe import Observers
from perdure.runtime.settings import Settings
from perdure.runtime.worker.backlog import Backlog, Failing, Foreign, Reason
from perdure.runtime.worker.fairness import Due

_STALE_S = 1.0
"""For how long what a look found is served without another look."""
_REPORTED_EVERY_S = 60.0
"""How often at most a worker warns of the same graph, channel or error."""

Serve = Callable[[Partition], Awaitable[bool | Foreign | None]]
"""Does what is due on a lane of a thread: whether there is more, ``None`` when there was nothing, or why it
is for another worker."""


class Dispatch:
    """Serves the due lanes of a database until it is told to stop. Made by ``Worker``, which says how each
    kind of lane is served."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        clock: DatabaseClock,
        observers: Observers,
        signals: Notifications,
        tenant: str | None,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._observers = observers
        self._signals = signals
        self._backlog = Backlog(database, tenant, settings.poll)
        self._reported: dict[Reason, int] = {}
        self._logged: dict[Reason, tuple[float, int]] = {}
        self._work: Mapping[str, Serve] = {}
        self._serving: dict[Due, asyncio.Task[None]] = {}
        self._again: set[Due] = set()
        self._timers: set[asyncio.TimerHandle] = set()
        self._wake = asyncio.Event()
        self._context = copy_context()
        self.is_stopping = False
        self.summons = PollDelay(self._wake.set)

    def start(self, work: Mapping[str, Serve]) -> None:
        """Serve lanes by their name from now on, in the context of the caller."""
        self._work = work
        self._context = copy_context()

    def stop(self) -> None:
        """Serve no lane that is not served now."""
        self.is_stopping = True
        self.summons.cancel()
        self._wake.set()
        for timer in self._timers:
            timer.cancel()

    async def idle(self, within: float) -> int:
        """Wait until no lane is served, for ``within`` seconds at most; how many still are."""
        if not (serving := set(self._serving.values())):
            return 0
        _, left = await asyncio.wait(serving, timeout=within)
        return len(left)

    def told(self, partition: Partition, lane: Lane, now: int) -> None:
        """A lane of which this process knows when it is due: no need to ask the database."""
        if self.is_stopping or lane.due_at is None or lane.owner is not None:
            return
        due = (partition, lane.name)
        delay = (lane.due_at - now) / 1_000_000
        if delay <= 0:
            self.soon(due)
            return
        loop = asyncio.get_running_loop()
        self._timers = {t for t in self._timers if not t.cancelled() and t.when() > loop.time()}
        self._timers.add(loop.call_later(delay, self.soon, due))

    def serves(self, partition: Partition) -> bool:
        """Whether this process is at work on a thread's inbox now."""
        return (partition, IN) in self._serving

    def soon(self, due: Due) -> None:
        """Serve a lane as soon as there is room for it."""
        if self.is_stopping:
            return
        if due in self._serving:
            self._again.add(due)
        elif len(self._serving) < self._settings.concurrency and self._may_run(due[0].tenant):
            self._serve(due)
        else:
            self._backlog.add(due)
            self._signals.due(due[0])

    def _may_run(self, tenant: str) -> bool:
        most = self._settings.per_tenant
        return most is None or sum(partition.tenant == tenant for partition, _ in self._serving) < most

    def _serve(self, due: Due) -> None:
        # Whoever accepted a message may stand in a request or in another run: none of that is this run's.
        task = asyncio.create_task(self._served(due), context=self._context.copy())
        self._serving[due] = task
        task.add_done_callback(lambda _: self._done(due))

    def _done(self, due: Due) -> None:
        was_full = len(self._serving) >= self._settings.concurrency
        del self._serving[due]
        if self.is_stopping:
            return
        if due in self._again:
            self._again.discard(due)
            self._backlog.add(due)
        if asyncio.get_running_loop().time() - self._backlog.looked_at < _STALE_S:
            self._fill()
        if was_full and len(self._serving) < self._settings.concurrency:
            self._wake.set()

    async def run(self) -> None:
        """Look for what is due, again and again, until it is cancelled or told to stop."""
        while not self.is_stopping:
            self._wake.clear()
            pause = self._settings.poll * (0.75 + 0.5 * spread())
            try:
                await self._look()
            except Unavailable as error:
                self._observers.event("worker.unavailable", error=type(error).__name__)
            except Exception as error:
                # Whatever it is, the next look may succeed; a worker that looks no more would be silent.
                self._observers.event("worker.error", error=type(error).__name__)
            try:
                async with asyncio.timeout(pause):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _look(self) -> None:
        slots = self._settings.concurrency - len(self._serving)
        if slots <= 0:
            return
        now, time = await self._clock.now(), asyncio.get_running_loop().time()
        ready = await self._backlog.look(now, time, self._serving, slots)
        self._report(time)
        self._fill()
        self.summons.looked(in_vain=not ready)

    def _fill(self) -> None:
        """Serve as much of what is known to be due as there is room for, tenants in turn."""
        slots = self._settings.concurrency - len(self._serving)
        if self.is_stopping or slots <= 0 or not self._backlog:
            return
        running = Counter(partition.tenant for partition, _ in self._serving)
        for item in self._backlog.take(running, slots, self._settings.per_tenant):
            if item not in self._serving:
                self._serve(item)
            else:
                self._again.add(item)

    def _report(self, time: float) -> None:
        """Tell for which graphs and channels threads wait that this worker does not serve, and which lanes
        fail with which error: how many whenever that changes, as a warning by its name at most once in
        ``_REPORTED_EVERY_S``."""
        for reason, threads in self._backlog.counts.items():
            fields: dict[str, Any]
            if isinstance(reason, Foreign):
                warning, count = "worker.unserved", "worker.unserved_threads"
                fields = {reason.what: reason.name, "threads": threads}
            else:
                warning, count = "worker.failing", "worker.failing_threads"
                fields = {"lane": reason.lane, "error": reason.error, "threads": threads}
            if threads != self._reported.get(reason, 0):
                self._reported[reason] = threads
                self._observers.event(count, **fields)
            logged_at, logged = self._logged.get(reason, (-math.inf, 0))
            if threads not in (0, logged) and time >= logged_at + _REPORTED_EVERY_S:
                self._logged[reason] = time, threads
                self._observers.event(warning, **fields)

    # One lane

    async def _served(self, due: Due) -> None:
        partition, name = due
        time = asyncio.get_running_loop().time
        try:
            more = await self._work[name](partition)
            was_useful = isinstance(more, bool)
            while more is True and not self.is_stopping:
                if self._backlog:
                    # Others have waited: this lane takes its turn again.
                    self._again.add(due)
                    break
                more = await self._work[name](partition)
        except Unavailable as error:
            self._observers.event("worker.unavailable", error=type(error).__name__)
            self._backlog.in_vain(due, time(), failed=True)
        except Exception as error:
            # Whatever it is, other threads go on; this one is tried again later, each time later still.
            self._observers.event(
                "worker.error", tenant=partition.tenant, thread=partition.thread, error=type(error).__name__
            )
            self._backlog.in_vain(due, time(), Failing(name, type(error).__name__), failed=True)
        else:
            if was_useful:
                self._backlog.served(due)
            else:
                self._backlog.in_vain(due, time(), more if isinstance(more, Foreign) else None)
