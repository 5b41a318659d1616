"""Which lanes are served when: the database is asked for those that are due, and whoever makes one due tells.

A process serves a lane once at a time, as many as its settings allow, and tenants in turn.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextvars import copy_context
from typing import NamedTuple

from perdure.database import Database
from perdure.errors import Unavailable
from perdure.model.lane import IN, Lane
from perdure.model.ops import Find
from perdure.model.program import ask
from perdure.model.records import Partition
from perdure.runtime.chance import spread
from perdure.runtime.clock import DatabaseClock
from perdure.runtime.fairness import Due, in_turn
from perdure.runtime.observe import Observers
from perdure.runtime.settings import Settings
from perdure.runtime.signals import Signals, Summons

_PAGE = 1000

Serve = Callable[[Partition], Awaitable[bool | None]]
"""Does what is due on a lane of a thread: whether there is more, or ``None`` when there was nothing."""


class _Vain(NamedTuple):
    """How often a lane was due and there was nothing to do for this worker, and until when it is passed
    over."""

    times: int
    until: float


class Dispatch:
    """Serves the due lanes of a database until it is told to stop. Made by ``Worker``, which says how each
    kind of lane is served."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        clock: DatabaseClock,
        observers: Observers,
        signals: Signals,
        tenant: str | None,
    ) -> None:
        self._database = database
        self._settings = settings
        self._clock = clock
        self._observers = observers
        self._signals = signals
        self._tenant = tenant
        self._work: Mapping[str, Serve] = {}
        self._serving: dict[Due, asyncio.Task[None]] = {}
        self._again: set[Due] = set()
        self._vain: dict[Due, _Vain] = {}
        self._timers: set[asyncio.TimerHandle] = set()
        self._wake = asyncio.Event()
        self._context = copy_context()
        self.is_stopping = False
        self.summons = Summons(self._wake.set)

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
            self._wake.set()
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
        if due in self._again and not self.is_stopping:
            self._again.discard(due)
            self._serve(due)
        elif was_full:
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
        limit = _PAGE + len(self._vain)
        found = await self._database.arun(ask(Find("due", self._tenant, until=now, limit=limit)))
        due = [(f.partition, f.record.key[0]) for f in found if f.record is not None]
        self._vain = {item: self._vain[item] for item in due if item in self._vain}
        ready = [
            item
            for item in due
            if item not in self._serving and (item not in self._vain or self._vain[item].until <= time)
        ]
        running = Counter(partition.tenant for partition, _ in self._serving)
        for item in in_turn(ready, running, slots, self._settings.per_tenant):
            if item not in self._serving:
                self._serve(item)
        self.summons.looked(in_vain=not ready)

    # One lane

    async def _served(self, due: Due) -> None:
        partition, name = due
        was_useful = False
        try:
            again = self._work[name]
            while not self.is_stopping and (more := await again(partition)) is not None:
                was_useful = True
                if not more:
                    break
        except Unavailable as error:
            self._observers.event("worker.unavailable", error=type(error).__name__)
        except Exception as error:
            # Whatever it is, other threads go on; this one is due again when its lease is over.
            self._observers.event(
                "worker.error", tenant=partition.tenant, thread=partition.thread, error=type(error).__name__
            )
        self._judge(due, was_useful)

    def _judge(self, due: Due, was_useful: bool) -> None:
        """What is due again and again and is not for this worker must not keep it from what is."""
        if was_useful:
            self._vain.pop(due, None)
            return
        times = self._vain[due].times + 1 if due in self._vain else 0
        pause = self._settings.poll * 2.0 ** min(times, 6)
        self._vain[due] = _Vain(times, asyncio.get_running_loop().time() + pause)
