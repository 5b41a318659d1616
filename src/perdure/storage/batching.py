"""Many callers, one trip: requests that arrive while others are under way leave together with the next.

Each worker takes what has gathered and executes it as one group; a group is answered when all of it is done,
each caller with its own answer or error. A write waits while another of its partition is under way: a loop
sends its writes and the next checkpoint so closely that they then share one trip, in the order they came.
It sends that checkpoint when it has the answer to the one before; so where a trip takes long, writes that
have waited wait a moment more, a small part of such a trip, for it to come along. Where trips are short,
most of one is work that a fuller group shares: there requests wait a little for the one under way to end
before another worker sets out beside it. Callers block, or await from any event loop.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from perdure.errors import Unavailable
from perdure.model.ops import Commit, Drop, Stage
from perdure.model.program import Effect
from perdure.model.records import Partition

R = TypeVar("R")
_WRITES = (Commit, Stage, Drop)
_LONG_TRIP_S = 0.001
_MOMENT_MOST_S = 0.02
_UNDER_WAY = _NEVER = float("inf")
_NEAR_S = 0.002
_COMPANY_S = 0.02


class _Process:
    """Counts how often this process came out of a fork; asking the system at every call costs more."""

    def __init__(self) -> None:
        self.generation = 0
        os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        self.generation += 1


_process = _Process()


@dataclass(slots=True, eq=False)
class PendingRequest:
    """A request on its way through a worker. Whoever executes it sets ``answer`` or ``error``."""

    effect: Effect[Any]
    answer: Any = None
    error: Exception | None = None
    future: Future[Any] | None = None
    loop: asyncio.AbstractEventLoop | None = None
    awaited: asyncio.Future[Any] | None = None


def company_at(distance_s: float) -> float:
    """The ``company`` of a gatherer whose shortest trip takes so long: near the server a trip is mostly work;
    over a network it is mostly way, and nobody waits for one."""
    return _COMPANY_S if distance_s < _NEAR_S else 0.0


class Batcher:
    """Worker threads over one queue. ``execute`` gets a group of at most ``most`` jobs and sets each one's
    answer or error; an exception that it lets out is every job's. ``name`` stands in errors and threads.
    Where trips are not ``distant``, on a local disk, one worker takes what there is and waits for nothing.

    ``moment`` is the part of a long trip that writes which had to wait for it wait on for more of theirs. It
    is won back when more comes: without the wait that would have to follow in a trip of its own.
    ``company`` is how many seconds requests wait for a worker that has just set out, before another one takes
    them; one that has been under way for longer is waited for by nobody. Whoever learns how far the server is
    may set it at any time.
    """

    def __init__(
        self,
        execute: Callable[[Sequence[PendingRequest]], None],
        *,
        name: str,
        workers: int = 1,
        most: int = 512,
        distant: bool = True,
        moment: float = 0.25,
    ) -> None:
        if workers > 1 and not distant:
            raise ValueError("several workers have to keep the writes of a partition apart: distant=True")
        self._execute = execute
        self._name = name
        self._most = most
        self._distant = distant
        self._moment = moment
        self._company = 0.0
        # When the workers that are under way set out, the last one last.
        self._begun: list[float] = []
        # Since when requests wait that may go, and until when somebody sleeps who will take them.
        self._since = _NEVER
        self._minded = _NEVER
        self._generation = _process.generation
        self._queue: deque[PendingRequest] = deque()
        # Until when further writes of a partition wait.
        self._held: dict[Partition, float] = {}
        self._wake = threading.Condition()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._work, name=f"perdure-{n}", daemon=True) for n in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def company(self) -> float:
        return self._company

    @company.setter
    def company(self, seconds: float) -> None:
        if seconds != self._company:
            with self._wake:
                self._company = seconds
                self._wake.notify_all()  # who sleeps, sleeps by what was true before

    def perform(self, effect: Effect[R]) -> R:
        """Block until the request is done."""
        future: Future[Any] = Future()
        self._submit(PendingRequest(effect, future=future))
        return cast(R, future.result())

    async def aperform(self, effect: Effect[R]) -> R:
        """Await the request."""
        loop = asyncio.get_running_loop()
        awaited = loop.create_future()
        self._submit(PendingRequest(effect, loop=loop, awaited=awaited))
        return cast(R, await awaited)

    def refuse_when_closed(self) -> None:
        """Raise ``Unavailable`` when closed, or on the far side of a fork."""
        if self.is_inherited:
            raise Unavailable(
                f"{self._name} was opened before this process was forked; a child opens it for itself, "
                "with perdure.connect after the fork"
            )
        if self._closed:
            raise Unavailable(f"{self._name} is closed; open it again with perdure.connect")

    @property
    def is_inherited(self) -> bool:
        """Whether this is a forked child's copy of its parent's."""
        return self._generation != _process.generation

    def close(self) -> None:
        """Finish what was accepted, then stop; repeatable."""
        if self.is_inherited:
            self._closed = True
            return
        with self._wake:
            self._closed = True
            self._wake.notify_all()
        for thread in self._threads:
            thread.join()

    def _submit(self, job: PendingRequest) -> None:
        # Before the lock: in a forked child it may be held for ever by a thread that is not there.
        self.refuse_when_closed()
        with self._wake:
            self.refuse_when_closed()
            if self._distant and isinstance(job.effect, _WRITES):
                if self._held.get(job.effect.partition) == _UNDER_WAY:
                    self._queue.append(job)
                    return  # whoever is under way with that partition takes it up
                # Those that waited for company have it.
                self._held.pop(job.effect.partition, None)
            self._queue.append(job)
            if self._begun:
                # Also where nobody waits for company yet: that may change before this is taken.
                now = time.monotonic()
                self._since = min(self._since, now)
                if self._awaits_company(now) and self._minded <= self._company_until():
                    return
            self._wake.notify()

    def _work(self) -> None:
        while True:
            with self._wake:
                while not (group := self._take(now := time.monotonic())):
                    if self._closed and not self._queue:
                        return
                    self._sleep(now)
                started = time.monotonic()
                self._begun.append(started)
                if self._deadline(started) < self._minded:
                    self._wake.notify()  # somebody else minds the clock
            try:
                self._execute(group)
            except Exception as error:
                for job in group:
                    job.error = error
            took = time.monotonic() - started
            with self._wake:
                self._begun.remove(started)
                if self._distant:
                    moment = min(took * self._moment, _MOMENT_MOST_S)
                    self._release(group, moment if took >= _LONG_TRIP_S else 0.0)
            _answer(group)

    def _take(self, now: float) -> list[PendingRequest]:
        if not self._distant:
            return [self._queue.popleft() for _ in range(min(len(self._queue), self._most))]
        if self._awaits_company(now) and not self._closed:
            return []
        group: list[PendingRequest] = []
        waiting: list[PendingRequest] = []
        while self._queue and len(group) < self._most:
            job = self._queue.popleft()
            held = isinstance(job.effect, _WRITES) and self._held.get(job.effect.partition, 0.0) > now
            (waiting if held else group).append(job)
        self._queue.extendleft(reversed(waiting))
        self._since = now if self._queue else _NEVER
        self._held.update(dict.fromkeys(_written(group), _UNDER_WAY))
        return group

    def _release(self, group: Sequence[PendingRequest], moment: float) -> None:
        """Let the writes of the group's partitions go on: at once, or, where some wait, in a moment."""
        done = _written(group)
        for partition in done:
            del self._held[partition]
        if moment and not self._closed:
            waiting = _written(self._queue) & done
            self._held.update(dict.fromkeys(waiting, time.monotonic() + moment))
        if self._closed:
            self._wake.notify_all()
        elif self._queue:
            if self._begun:
                self._since = min(self._since, time.monotonic())
            self._wake.notify()

    def _company_until(self) -> float:
        """Until when requests wait for a worker that is under way to end."""
        return min(self._since, self._begun[-1]) + self._company

    def _awaits_company(self, now: float) -> bool:
        return bool(self._company and self._begun) and now < self._company_until()

    def _deadline(self, now: float) -> float:
        """When there may be something to take although nothing happens, if there was nothing to take now."""
        if self._awaits_company(now):
            return self._company_until() if self._queue else _NEVER
        return min((until for until in self._held.values() if until != _UNDER_WAY), default=_NEVER)

    def _sleep(self, now: float) -> None:
        """Wait to be woken; until the next deadline unless another worker does. By another time than the one
        by which there was nothing to take, the deadline of what there is now would be none."""
        deadline = self._deadline(now)
        if deadline >= self._minded:
            self._wake.wait()
            return
        self._minded = deadline
        self._wake.wait(max(0.0, deadline - time.monotonic()))
        if self._minded == deadline:
            self._minded = _NEVER


def _written(group: Iterable[PendingRequest]) -> set[Partition]:
    return {job.effect.partition for job in group if isinstance(job.effect, _WRITES)}


def _answer(group: Sequence[PendingRequest]) -> None:
    """Wake every caller; those of one event loop together."""
    loops: dict[asyncio.AbstractEventLoop, list[PendingRequest]] = {}
    for job in group:
        if job.future is not None:
            if job.error is not None:
                job.future.set_exception(job.error)
            else:
                job.future.set_result(job.answer)
        elif job.loop is not None:
            loops.setdefault(job.loop, []).append(job)
    for loop, jobs in loops.items():
        # A loop that was closed meanwhile has nobody left to tell.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(_answer_awaited, jobs)


def _answer_awaited(jobs: Sequence[PendingRequest]) -> None:
    for job in jobs:
        if job.awaited is None or job.awaited.done():
            continue
        if job.error is not None:
            job.awaited.set_exception(job.error)
        else:
            job.awaited.set_result(job.answer)
