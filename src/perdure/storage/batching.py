"""Batches requests of many callers: those that arrive while others are under way share the next round trip.

Each worker takes the pending requests and executes them as one group; a group is answered when all of it is
done, each caller with its own answer or error. Callers block, or await from any event loop.

For a server (``distant``) there are two further waits. A local file has one worker and none of these waits.

1. One write of a partition is under way at a time; later writes of the partition wait for its end. After a
   long round trip they wait for a part of its duration more: a loop that now got its answer is about to send
   its next checkpoint, which can share their round trip.
2. Near the server a round trip is mostly work, which a larger group shares. So requests wait a little for the
   round trip under way to end before another worker takes them.
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
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from perdure.errors import Unavailable
from perdure.model.ops import Commit, Drop, Fetch, Stage
from perdure.model.program import Effect
from perdure.model.records import Partition, Record

R = TypeVar("R")
_WRITES = (Commit, Stage, Drop)
_LONG_TRIP_S = 0.001
_MOMENT_MOST_S = 0.02
_UNDER_WAY = _NEVER = float("inf")
_NEAR_S = 0.002
_WAIT_S = 0.02


class _Process:
    """Counts the forks that led to this process, as asking the system for its id at every call costs more."""

    def __init__(self) -> None:
        self.generation = 0
        os.register_at_fork(after_in_child=self._note_fork)

    def _note_fork(self) -> None:
        self.generation += 1


_process = _Process()


@dataclass(slots=True, eq=False)
class PendingRequest:
    """A request that a worker executes. The executor sets ``answer`` or ``error``.

    ``then`` is a fetch to make after a write, in the same round trip; if the executor makes it, it sets the
    answer as ``read``. ``asked_at`` is the time (``time.monotonic``) since which the caller waits."""

    effect: Effect[Any]
    answer: Any = None
    error: Exception | None = None
    future: Future[Any] | None = None
    loop: asyncio.AbstractEventLoop | None = None
    awaited: asyncio.Future[Any] | None = None
    then: Fetch | None = None
    read: tuple[tuple[Record, ...], ...] | None = None
    asked_at: float = field(default_factory=time.monotonic)


def wait_at(distance_s: float) -> float:
    """Return the ``wait_s`` of a batcher whose shortest round trip takes ``distance_s`` seconds: near the
    server a round trip is mostly work; over a network it is mostly latency, so that waiting does not pay."""
    if distance_s < _NEAR_S:
        return _WAIT_S
    return 0.0


class Batcher:
    """Worker threads over one queue.

    Args:
        execute: Gets a group of at most ``most`` requests and sets the answer or error of each; an exception
            that it raises becomes the error of all.
        name: Used in errors.
        workers: The number of threads.
        most: Maximum number of requests of a group.
        distant: False for a local disk: one worker takes all pending requests and never waits for more.
        moment: The part of a long round trip's duration for which the writes that had to wait for it wait
            longer, so that later writes of their partitions can share the next round trip.

    ``wait_s`` is the time in seconds for which requests wait for a worker that has just started, before
    another one takes them; a worker that has been under way for longer is not waited for. It may be set at
    any time, e.g. once the distance to the server is known.
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
        self._wait_s = 0.0
        # The start times of the workers that are under way, the latest last.
        self._begun: list[float] = []
        # The time since which a request that may be taken waits, and the deadline of the worker to take it.
        self._waiting_since = _NEVER
        self._next_deadline = _NEVER
        self._generation = _process.generation
        self._queue: deque[PendingRequest] = deque()
        # The time until which further writes of a partition wait.
        self._held: dict[Partition, float] = {}
        self._lock = threading.RLock()
        # The workers that wait, each with a condition of its own; the last one worked most recently.
        self._idle: list[threading.Condition] = []
        self._closed = False
        self._threads = [
            threading.Thread(target=self._work, name=f"perdure-{n}", daemon=True) for n in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def wait_s(self) -> float:
        return self._wait_s

    @wait_s.setter
    def wait_s(self, seconds: float) -> None:
        if seconds != self._wait_s:
            with self._lock:
                self._wait_s = seconds
                self._wake_all()  # their deadlines were computed with the previous value

    def perform(self, effect: Effect[R]) -> R:
        """Block until the request is done, and return its answer."""
        future: Future[Any] = Future()
        self._submit(PendingRequest(effect, future=future))
        return cast(R, future.result())

    async def aperform(self, effect: Effect[R]) -> R:
        """Await the request, and return its answer."""
        loop = asyncio.get_running_loop()
        awaited = loop.create_future()
        self._submit(PendingRequest(effect, loop=loop, awaited=awaited))
        return cast(R, await awaited)

    async def aperform_then(
        self, effect: Effect[R], then: Fetch
    ) -> tuple[R, tuple[tuple[Record, ...], ...] | None]:
        """Await a write, and return its answer with what was read after it."""
        loop = asyncio.get_running_loop()
        job = PendingRequest(effect, loop=loop, awaited=loop.create_future(), then=then)
        self._submit(job)
        answer = await cast("asyncio.Future[R]", job.awaited)
        return answer, job.read

    def refuse_when_closed(self) -> None:
        """Raise ``Unavailable`` if this is closed, or was inherited by a fork."""
        if self.is_inherited:
            raise Unavailable(
                f"{self._name} was opened before this process was forked; a child opens it for itself, "
                "with perdure.connect after the fork"
            )
        if self._closed:
            raise Unavailable(f"{self._name} is closed; open it again with perdure.connect")

    @property
    def is_inherited(self) -> bool:
        """True if this is a forked child's copy of its parent's batcher."""
        return self._generation != _process.generation

    def close(self) -> None:
        """Finish the accepted requests, then stop; repeatable."""
        if self.is_inherited:
            self._closed = True
            return
        with self._lock:
            self._closed = True
            self._wake_all()
        for thread in self._threads:
            thread.join()

    def _submit(self, job: PendingRequest) -> None:
        # Checked before locking: in a forked child a thread of the parent may hold the lock for ever.
        self.refuse_when_closed()
        with self._lock:
            self.refuse_when_closed()
            if self._distant and isinstance(job.effect, _WRITES):
                if self._held.get(job.effect.partition) == _UNDER_WAY:
                    self._queue.append(job)
                    return  # the worker that is under way with that partition releases it
                # The held writes of the partition need not wait longer: this one has joined them.
                self._held.pop(job.effect.partition, None)
            self._queue.append(job)
            if self._begun:
                # Set even if requests need not wait for a worker now: ``wait_s`` may change before this is
                # taken.
                now = time.monotonic()
                self._waiting_since = min(self._waiting_since, now)
                if self._is_waiting(now) and self._next_deadline <= self._find_wait_end():
                    return
            self._wake_one()

    def _wake_one(self) -> None:
        """Wake the worker that worked most recently: its connection is open; others may never need one."""
        if self._idle:
            # In this order: an exception of a signal handler that comes in between loses no worker.
            self._idle[-1].notify()
            self._idle.pop()

    def _wake_all(self) -> None:
        while self._idle:
            self._wake_one()

    def _work(self) -> None:
        condition = threading.Condition(self._lock)
        while True:
            with self._lock:
                while not (group := self._take(now := time.monotonic())):
                    if self._closed and not self._queue:
                        return
                    self._sleep(now, condition)
                started = time.monotonic()
                self._begun.append(started)
                if self._find_deadline(started) < self._next_deadline:
                    self._wake_one()  # another worker has to wait for the deadline
            try:
                self._execute(group)
            except Exception as error:
                for job in group:
                    job.error = error
            took = time.monotonic() - started
            with self._lock:
                self._begun.remove(started)
                if self._distant:
                    moment = min(took * self._moment, _MOMENT_MOST_S)
                    if took < _LONG_TRIP_S:
                        moment = 0.0
                    self._release(group, moment)
            _answer(group)

    def _take(self, now: float) -> list[PendingRequest]:
        if not self._distant:
            return [self._queue.popleft() for _ in range(min(len(self._queue), self._most))]
        if self._is_waiting(now) and not self._closed:
            return []
        group: list[PendingRequest] = []
        postponed: list[PendingRequest] = []
        while self._queue and len(group) < self._most:
            job = self._queue.popleft()
            must_wait = isinstance(job.effect, _WRITES) and self._held.get(job.effect.partition, 0.0) > now
            (postponed if must_wait else group).append(job)
        self._queue.extendleft(reversed(postponed))
        self._waiting_since = now if self._queue else _NEVER
        self._held.update(dict.fromkeys(_find_written_partitions(group), _UNDER_WAY))
        return group

    def _release(self, group: Sequence[PendingRequest], moment: float) -> None:
        """Release the writes of the group's partitions: at once, or after ``moment`` seconds if some wait."""
        done = _find_written_partitions(group)
        for partition in done:
            del self._held[partition]
        if moment and not self._closed:
            waiting = _find_written_partitions(self._queue) & done
            self._held.update(dict.fromkeys(waiting, time.monotonic() + moment))
        if self._closed:
            self._wake_all()
        elif self._queue:
            if self._begun:
                self._waiting_since = min(self._waiting_since, time.monotonic())
            self._wake_one()

    def _find_wait_end(self) -> float:
        """Return the end of the time for which requests wait for a worker that is under way."""
        return min(self._waiting_since, self._begun[-1]) + self._wait_s

    def _is_waiting(self, now: float) -> bool:
        return bool(self._wait_s and self._begun) and now < self._find_wait_end()

    def _find_deadline(self, now: float) -> float:
        """Return the time from which a worker may take a request without being woken, given that it can take
        none now."""
        if self._is_waiting(now):
            if self._queue:
                return self._find_wait_end()
            return _NEVER
        return min((until for until in self._held.values() if until != _UNDER_WAY), default=_NEVER)

    def _sleep(self, now: float, condition: threading.Condition) -> None:
        """Wait to be woken, or until the next deadline unless another worker waits for it. ``now`` has to be
        the time at which nothing could be taken: after a later one, a deadline between both would be
        missed."""
        deadline = self._find_deadline(now)
        self._idle.append(condition)
        if deadline >= self._next_deadline:
            condition.wait()
        else:
            self._next_deadline = deadline
            condition.wait(max(0.0, deadline - time.monotonic()))
            if self._next_deadline == deadline:
                self._next_deadline = _NEVER
        if condition in self._idle:
            self._idle.remove(condition)


def _find_written_partitions(group: Iterable[PendingRequest]) -> set[Partition]:
    return {job.effect.partition for job in group if isinstance(job.effect, _WRITES)}


def _answer(group: Sequence[PendingRequest]) -> None:
    """Answer every caller; the callers of one event loop are woken together."""
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
        # A loop that was closed meanwhile has no callers left.
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
