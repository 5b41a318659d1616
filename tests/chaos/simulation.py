"""Simulation of whole deployments in one thread, with a virtual clock and a seeded scheduler.

Real runtimes, savers and graphs run on an event loop whose time is virtual. Every request to storage, and
every call to a channel's provider, waits until the scheduler performs it. A seeded generator chooses the next
request, and the process that is killed, paused or left without an answer. The same seed makes the same
history, so that a failure can be reproduced.
"""

from __future__ import annotations

import asyncio
import random
import selectors
import time
from collections.abc import Callable, Coroutine
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from functools import partial
from typing import Any, Self, TypeVar, cast

from langgraph.checkpoint.base import id as checkpoint_ids

from perdure.database.blocking import SyncDatabase
from perdure.database.opening import make_database
from perdure.errors import Unavailable
from perdure.model.ops import Check, Commit, Committed, Fetch, Get, Now, Put, Refused
from perdure.model.program import Effect
from perdure.model.records import CHECKPOINT, EPOCH, LANE, WRITE
from perdure.model.runs.queue import IN
from perdure.storage.memory import MemoryDriver
from perdure.storage.port import Answers, Capabilities, CommitLimits, Driver

R = TypeVar("R")

_LAST_TIME = "_last_v6_timestamp"
EPOCH_US = 1_700_000_000_000_000
"""Start of a simulation, in microseconds since 1970."""


class Ended(asyncio.CancelledError):
    """Raised into what is left of a process when the simulation is over."""


@dataclass(frozen=True, slots=True)
class Faults:
    """Probabilities, for each request, that its process is killed, paused or left without an answer; and the
    ranges, in virtual seconds, of a pause and of a restart."""

    kill: float = 0.0
    pause: float = 0.0
    lose: float = 0.0
    pause_s: tuple[float, float] = (5.0, 40.0)
    restart_s: tuple[float, float] = (0.1, 5.0)


@dataclass(eq=False)
class Process:
    """A process of the deployment. Once it is dead, none of its requests is performed and it gets no
    answer."""

    name: str
    skew_s: float = 0.0
    is_dead: bool = False
    paused_until: float = 0.0
    main: asyncio.Task[None] | None = None


@dataclass(eq=False)
class _Request:
    process: Process
    action: Callable[[], Any]
    future: asyncio.Future[Any]
    is_write: bool


class _Selector(selectors.SelectSelector):
    """Selector that lets the scheduler act, or the time pass, instead of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.idle: Callable[[float | None], None] = lambda timeout: None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0)
        if not found and (timeout is None or timeout > 0):
            self.idle(timeout)
        return found


class _Loop(asyncio.SelectorEventLoop):
    """Event loop with virtual time."""

    def __init__(self, selector: _Selector) -> None:
        self.now = 1000.0
        super().__init__(selector)

    def time(self) -> float:
        return self.now


_process: ContextVar[Process | None] = ContextVar("process", default=None)


class Simulation:
    """One history, as a context manager.

    ``spawn`` starts processes; ``run`` lets them run until ``until`` is true, or ``limit`` virtual seconds
    have passed. ``trace`` lists the events in order, ``wrong`` the violations found. In
    each second history, by its seed, the storage reads in the round trip of a commit, as PostgreSQL does."""

    def __init__(self, seed: int, faults: Faults | None = None, *, driver: Driver | None = None) -> None:
        self.random = random.Random(seed)
        self.faults = faults or Faults()
        self.driver = driver or MemoryDriver()
        self.reads_with_commits = seed % 2 == 1
        self.trace: list[str] = []
        self.wrong: list[str] = []
        self.counts: dict[str, int] = {
            "requests": 0,
            "kills": 0,
            "pauses": 0,
            "lost answers": 0,
            "stale writes refused": 0,
        }
        self.kill_at: tuple[int, str] | None = None
        self._processes: list[Process] = []  # the loop itself holds on to no task that waits
        self._requests: list[_Request] = []
        self._futures: set[asyncio.Future[Any]] = set()
        selector = _Selector()
        selector.idle = self._idle
        self._loop = _Loop(selector)
        self._until: Callable[[], bool] = lambda: False
        self._deadline = 0.0
        self._is_over = False
        self._made: dict[str, tuple[Callable[[Process], Coroutine[Any, Any, None]], float]] = {}
        self._real_time_ns = time.time_ns

    def __enter__(self) -> Self:
        time.time_ns = self._host_time_ns  # the source of checkpoint ids
        return self

    def __exit__(self, *_: object) -> None:
        time.time_ns = self._real_time_ns
        self.close()

    def _host_time_ns(self) -> int:
        process = _process.get()
        # Ids of one host go up; those of several hosts, which share this memory here, need not.
        setattr(checkpoint_ids, _LAST_TIME, None)
        return self.time_us * 1000 + round(process.skew_s * 1e9 if process is not None else 0)

    @property
    def time_us(self) -> int:
        """Time of the database, in microseconds."""
        return EPOCH_US + round(self._loop.now * 1_000_000)

    def database(self, process: Process, *, tenant: str = "") -> SyncDatabase:
        """Return the database as a process has it open."""
        return make_database(_Driver(self, process), tenant=tenant)

    def spawn(
        self, name: str, main: Callable[[Process], Coroutine[Any, Any, None]], *, skew_s: float = 0.0
    ) -> None:
        """Start a process whose host's clock is ``skew_s`` seconds ahead; if killed, it is started again."""
        self._made[name] = (main, skew_s)
        process = Process(name, skew_s)
        context = copy_context()
        context.run(_process.set, process)
        self._processes.append(process)
        process.main = self._loop.create_task(main(process), name=name, context=context)

    async def happen(self, process: Process, action: Callable[[], R], *, is_write: bool = True) -> R:
        """Perform an action outside of a process when the scheduler chooses it."""
        if self._is_over:
            raise Ended
        future: asyncio.Future[R] = self._loop.create_future()
        self._futures.add(future)
        future.add_done_callback(self._futures.discard)
        if not process.is_dead:  # a dead process gets no answer
            self._requests.append(_Request(process, action, future, is_write))
        return await future

    def run(self, until: Callable[[], bool], *, limit: float) -> bool:
        """Let the processes run; return ``until()`` at the end. ``limit`` is in virtual seconds."""
        self._until, self._deadline = until, self._loop.now + limit
        self._loop.run_until_complete(self._watch())
        return until()

    def calm(self) -> None:
        """Stop the faults; paused processes continue."""
        self.faults, self.kill_at = Faults(), None

    def close(self) -> None:
        """End every process without letting it write anything more."""
        self._is_over = True
        self._requests.clear()
        for future in list(self._futures):
            if not future.done():
                future.set_exception(Ended())
        for _ in range(100):
            left = asyncio.all_tasks(self._loop)
            if not left:
                break
            for task in left:
                task.cancel()
            self._loop.run_until_complete(asyncio.wait(left, timeout=1000))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    async def _watch(self) -> None:
        # The time is virtual: no event could be set.
        while not self._until() and self._loop.now < self._deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.25)

    def performed(self, process: Process, effect: Effect[R]) -> R:
        """Perform an effect and check it: a process that stores data of a run holds the thread, and checks
        the epoch."""
        answer = self.driver.perform(effect)
        if isinstance(effect, Commit) and isinstance(answer, Refused) and answer.kind is EPOCH:
            self.counts["stale writes refused"] += 1
        if (
            isinstance(effect, Commit)
            and isinstance(answer, Committed)
            and any(isinstance(op, Put) and op.kind in (CHECKPOINT, WRITE) for op in effect.ops)
        ):
            epochs, lanes = self.driver.perform(Fetch(effect.partition, (Get(EPOCH, ()), Get(LANE, (IN,)))))
            owner = lanes[0].fields["owner"] if lanes else None
            if owner != process.name:
                self.wrong.append(f"I5 {process.name} stored what is {owner}'s to store")
            if not epochs or Check(EPOCH, (), epochs[0].version) not in effect.ops:
                self.wrong.append(f"I5 {process.name} stored something under no epoch, or a past one")
        return answer

    # The scheduler

    def _idle(self, timeout: float | None) -> None:
        """Perform a request, or advance the time, as all processes wait."""
        if self._is_over:
            self._loop.now += timeout or 0.0
            return
        ready = [r for r in self._requests if r.process.paused_until <= self._loop.now]
        if not ready or (timeout is not None and self.random.random() < 0.1):
            self._loop.now += 0.001 if timeout is None else timeout
            return
        self._loop.now += self.random.random() * 0.002
        self._let(self.random.choice(ready))

    def _let(self, request: _Request) -> None:
        self._requests.remove(request)
        process, faults, draw = request.process, self.faults, self.random.random()
        if process.is_dead or request.future.done():
            return
        self.counts["requests"] += 1
        number = self.counts["requests"]
        if self.kill_at == (number, "before"):
            self._kill(process)
            return
        if draw < faults.kill / 2:
            self._kill(process)
            return
        if draw > 1 - faults.pause:
            # The request has left the process: it is performed, and the answer has to wait.
            process.paused_until = self._loop.now + self.random.uniform(*faults.pause_s)
            self.counts["pauses"] += 1
            self.trace.append(f"{number} {process.name} paused")
        lose = request.is_write and faults.kill <= draw < faults.kill + faults.lose
        if lose and self.random.random() < 0.5:
            self.counts["lost answers"] += 1
            request.future.set_exception(Unavailable("refused before it happened (simulated)"))
            return
        try:
            answer: Any = request.action()
        except Exception as error:
            request.future.set_exception(error)
            return
        self.trace.append(f"{number} {process.name}")
        if draw < faults.kill or self.kill_at == (number, "after"):
            self._kill(process)
        elif lose:
            self.counts["lost answers"] += 1
            request.future.set_exception(Unavailable("its answer was lost (simulated)"))
        elif process.paused_until > self._loop.now:
            self._loop.call_at(process.paused_until, _resolve, request.future, answer)
        else:
            request.future.set_result(answer)

    def _kill(self, process: Process) -> None:
        self.counts["kills"] += 1
        self.trace.append(f"{self.counts['requests']} {process.name} killed")
        process.is_dead = True
        self._requests = [r for r in self._requests if r.process is not process]
        main, skew_s = self._made[process.name]
        delay = self.random.uniform(*self.faults.restart_s)
        self._loop.call_later(delay, partial(self.spawn, process.name, main, skew_s=skew_s))


def _resolve(future: asyncio.Future[Any], answer: Any) -> None:
    if not future.done():
        future.set_result(answer)


class _Driver:
    """The shared storage as one process sees it."""

    def __init__(self, simulation: Simulation, process: Process) -> None:
        self._simulation = simulation
        self._process = process

    @property
    def limits(self) -> CommitLimits:
        return self._simulation.driver.limits

    def perform(self, effect: Effect[R]) -> R:
        raise TypeError("a simulation has one thread; use the async methods")

    async def aperform(self, effect: Effect[R]) -> R:
        simulation = self._simulation
        if isinstance(effect, Now):
            now = await simulation.happen(self._process, lambda: simulation.time_us, is_write=False)
            return cast(R, now)
        return await simulation.happen(
            self._process,
            lambda: simulation.performed(self._process, effect),
            is_write=isinstance(effect, Commit),
        )

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(reads_with_commits=self._simulation.reads_with_commits)

    async def acommit_and_fetch(
        self, commit: Commit, fetch: Fetch
    ) -> tuple[Committed | Refused, Answers | None]:
        outcome = await self.aperform(commit)
        if not self._simulation.reads_with_commits:
            return outcome, None
        # The read is a transaction of its own: others may come in between.
        return outcome, await self.aperform(fetch)

    def close(self) -> None:
        """Leave the storage open: it is the simulation's."""
