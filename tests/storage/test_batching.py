"""Requests that gather leave together; those of one partition in the order they came, never side by side."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

import pytest

from perdure.errors import Unavailable
from perdure.model.ops import Commit, Committed, Fetch, Get
from perdure.model.program import Effect
from perdure.model.records import GC, Partition
from perdure.storage import batching
from perdure.storage.batching import Batcher, PendingRequest

PATIENCE = 60


class Gate:
    """Executes groups one at a time as it is told to, and remembers them."""

    def __init__(self) -> None:
        self.groups: list[list[str]] = []
        self.begun = threading.Semaphore(0)
        self.go = threading.Semaphore(0)

    def __call__(self, jobs: Sequence[PendingRequest]) -> None:
        self.groups.append([_thread(job.effect) for job in jobs])
        self.begun.release()
        assert self.go.acquire(timeout=PATIENCE)
        for job in jobs:
            if _thread(job.effect) == "bad":
                raise ValueError("this group fails")
            job.answer = Committed()


def _thread(effect: Effect[object]) -> str:
    assert isinstance(effect, Commit | Fetch)
    return effect.partition.thread


def commit(thread: str) -> Commit:
    return Commit(Partition("", thread), ())


def test_writes_of_a_partition_that_has_one_under_way_share_the_next_trip() -> None:
    gate = Gate()
    gatherer = Batcher(gate, name="gate", workers=2)
    with ThreadPoolExecutor(8) as pool:
        calls = [pool.submit(gatherer.perform, commit("a"))]
        assert gate.begun.acquire(timeout=PATIENCE)
        calls += [pool.submit(gatherer.perform, commit("a")) for _ in range(3)]
        while len(gatherer._queue) < 3:
            threading.Event().wait(0.001)
        # The other worker is free: who has nothing under way goes at once, a read in any case.
        calls.append(pool.submit(gatherer.perform, commit("b")))
        assert gate.begun.acquire(timeout=PATIENCE)
        assert gate.groups == [["a"], ["b"]]
        gate.go.release(3)
        assert [call.result(PATIENCE) for call in calls] == [Committed()] * 5
        assert gate.groups == [["a"], ["b"], ["a", "a", "a"]]
        read = pool.submit(gatherer.perform, Fetch(Partition("", "a"), (Get(GC, ()),)))
        write = pool.submit(gatherer.perform, commit("a"))
        gate.go.release(2)
        read.result(PATIENCE), write.result(PATIENCE)
    gatherer.close()


def test_a_lone_caller_is_always_served_by_the_worker_that_served_last() -> None:
    """So that one connection is opened, and stays warm, where one is enough."""
    seen: list[str] = []

    def execute(jobs: Sequence[PendingRequest]) -> None:
        seen.append(threading.current_thread().name)

    batcher = Batcher(execute, name="lone", workers=5)
    for _ in range(20):
        batcher.perform(commit("a"))
        while len(batcher._idle) < 5:
            threading.Event().wait(0.001)
    batcher.close()
    assert len(set(seen)) == 1


@pytest.mark.parametrize("is_woken", [True, False])
def test_a_caller_that_a_signal_interrupts_loses_no_worker(
    monkeypatch: pytest.MonkeyPatch, is_woken: bool
) -> None:
    def execute(jobs: Sequence[PendingRequest]) -> None:
        for job in jobs:
            job.answer = Committed()

    batcher, notify = Batcher(execute, name="interrupted"), threading.Condition.notify

    def interrupt(self: threading.Condition, n: int = 1) -> None:
        monkeypatch.undo()
        if is_woken:
            notify(self, n)
        raise KeyboardInterrupt

    for _ in range(3):
        while len(batcher._idle) < 1:
            threading.Event().wait(0.001)
        monkeypatch.setattr(threading.Condition, "notify", interrupt)
        with pytest.raises(KeyboardInterrupt):
            batcher._submit(PendingRequest(commit("a"), future=Future()))
        later: Future[Any] = Future()
        batcher._submit(PendingRequest(commit("a"), future=later))
        assert later.result(PATIENCE) == Committed()
    batcher.close()


def test_an_error_is_everybody_s_who_shared_the_trip_and_nobody_else_s() -> None:
    gate = Gate()
    gate.go.release(10)
    gatherer = Batcher(gate, name="gate")
    with pytest.raises(ValueError, match="this group fails"):
        gatherer.perform(commit("bad"))
    assert gatherer.perform(commit("good")) == Committed()
    assert asyncio.run(gatherer.aperform(commit("bad too"))) == Committed()
    with pytest.raises(ValueError, match="this group fails"):
        asyncio.run(gatherer.aperform(commit("bad")))
    gatherer.close()


def test_closing_finishes_what_was_accepted_and_takes_no_more() -> None:
    gate = Gate()
    gatherer = Batcher(gate, name="the gate", workers=3)
    with ThreadPoolExecutor(8) as pool:
        first = pool.submit(gatherer.perform, commit("a"))
        assert gate.begun.acquire(timeout=PATIENCE)
        second = pool.submit(gatherer.perform, commit("a"))
        while not gatherer._queue:
            threading.Event().wait(0.001)
        closing = pool.submit(gatherer.close)
        gate.go.release(2)
        assert first.result(PATIENCE) == second.result(PATIENCE) == Committed()
        closing.result(PATIENCE)
    gatherer.close()
    with pytest.raises(Unavailable, match="the gate is closed"):
        gatherer.perform(commit("a"))


class Slow:
    """Takes longer than a trip that another worker is worth waiting for."""

    def __init__(self) -> None:
        self.groups: list[list[str]] = []
        self.begun = threading.Event()

    def __call__(self, jobs: Sequence[PendingRequest]) -> None:
        self.groups.append([_thread(job.effect) for job in jobs])
        self.begun.set()
        threading.Event().wait(0.1)
        for job in jobs:
            job.answer = Committed()


def test_after_a_long_trip_writes_that_waited_go_with_the_one_that_its_answer_calls_forth(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # On a busy machine the moment must not be over before the loop has heard its answer.
    monkeypatch.setattr(batching, "_MOMENT_MOST_S", PATIENCE)
    slow = Slow()
    gatherer = Batcher(slow, name="slow", workers=4, moment=100.0)

    async def loop() -> None:
        first = asyncio.ensure_future(gatherer.aperform(commit("a")))
        await asyncio.to_thread(slow.begun.wait, PATIENCE)
        writes = asyncio.ensure_future(gatherer.aperform(commit("a")))
        await first
        await asyncio.gather(writes, gatherer.aperform(commit("a")))

    asyncio.run(loop())
    assert slow.groups == [["a"], ["a", "a"]]
    gatherer.close()
    assert gatherer._held == {}


def test_after_a_long_trip_writes_that_get_no_company_go_alone() -> None:
    slow = Slow()
    gatherer = Batcher(slow, name="slow", workers=4)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(gatherer.perform, commit("a"))
        assert slow.begun.wait(PATIENCE)
        second = pool.submit(gatherer.perform, commit("a"))
        assert first.result(PATIENCE) == second.result(PATIENCE) == Committed()
    assert slow.groups == [["a"], ["a"]]
    gatherer.close()


def test_where_trips_are_short_requests_wait_for_the_one_under_way() -> None:
    gate = Gate()
    gatherer = Batcher(gate, name="gate", workers=4)
    gatherer.wait_s = PATIENCE
    with ThreadPoolExecutor(8) as pool:
        calls = [pool.submit(gatherer.perform, commit("a"))]
        assert gate.begun.acquire(timeout=PATIENCE)
        calls += [pool.submit(gatherer.perform, commit(name)) for name in "bcd"]
        while len(gatherer._queue) < 3:
            threading.Event().wait(0.001)
        gate.go.release(2)
        assert [call.result(PATIENCE) for call in calls] == [Committed()] * 4
        assert [sorted(group) for group in gate.groups] == [["a"], ["b", "c", "d"]]
    gatherer.close()


def test_a_trip_that_takes_long_is_not_waited_for_for_ever() -> None:
    gate = Gate()
    gatherer = Batcher(gate, name="gate", workers=4)
    gatherer.wait_s = 0.05
    with ThreadPoolExecutor(8) as pool:
        calls = [pool.submit(gatherer.perform, commit("a"))]
        assert gate.begun.acquire(timeout=PATIENCE)
        calls += submitted(gatherer, *"bac")
        # "a" is under way all the while; the others set out beside it.
        assert gate.begun.acquire(timeout=PATIENCE)
        assert sorted(gate.groups[1]) == ["b", "c"]
        gate.go.release(3)
        assert [call.result(PATIENCE) for call in calls] == [Committed()] * 4
        assert gate.groups[2:] == [["a"]]
    gatherer.close()


def test_who_is_under_way_for_long_is_waited_for_by_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    real, later = time.monotonic, [0.0]
    monkeypatch.setattr(batching, "time", SimpleNamespace(monotonic=lambda: real() + later[0]))
    gate = Gate()
    gatherer = Batcher(gate, name="gate", workers=4)
    gatherer.wait_s = PATIENCE * 10
    calls = submitted(gatherer, "a")
    assert gate.begun.acquire(timeout=PATIENCE)
    later[0] = gatherer.wait_s
    calls += submitted(gatherer, "b")
    assert gate.begun.acquire(timeout=PATIENCE), "waits for what began long ago"
    calls += submitted(gatherer, "c")
    assert not gate.begun.acquire(timeout=0.1), "sets out beside one that has just begun"
    gate.go.release(3)
    assert [call.result(PATIENCE) for call in calls] == [Committed()] * 3
    gatherer.close()


@pytest.mark.parametrize("wait_s", [n / 10 for n in range(15, 65, 5)])
def test_time_that_passes_between_a_look_and_the_sleep_after_it_is_slept_for_by_nobody(
    monkeypatch: pytest.MonkeyPatch, wait_s: float
) -> None:
    """A clock on which every reading takes a second: wherever the wait for a worker ends, it is noticed."""
    readings = itertools.count()
    monkeypatch.setattr(batching, "time", SimpleNamespace(monotonic=lambda: float(next(readings))))
    gate = Gate()
    gatherer = Batcher(gate, name="gate", workers=2)
    gatherer.wait_s = wait_s
    calls = submitted(gatherer, "a")
    assert gate.begun.acquire(timeout=PATIENCE)
    threading.Event().wait(0.05)  # until the other worker sleeps
    calls += submitted(gatherer, "b")
    assert gate.begun.acquire(timeout=PATIENCE), "sleeps until the one that is under way has ended"
    gate.go.release(2)
    assert [call.result(PATIENCE) for call in calls] == [Committed()] * 2
    gatherer.close()


def submitted(gatherer: Batcher, *threads: str) -> list[Future[Any]]:
    """Writes that come at once, before anybody takes the first."""
    futures: list[Future[Any]] = [Future() for _ in threads]
    with gatherer._lock:
        for thread, future in zip(threads, futures, strict=True):
            gatherer._submit(PendingRequest(commit(thread), future=future))
    return futures


def test_what_one_trip_cannot_carry_does_not_wait_for_that_of_others_to_end() -> None:
    gate = Gate()
    gatherer = Batcher(gate, name="gate", workers=4, most=2)
    gatherer.wait_s = 0.005
    calls = submitted(gatherer, "a")
    assert gate.begun.acquire(timeout=PATIENCE)
    calls += submitted(gatherer, *"bcdef")
    for _ in range(3):
        assert gate.begun.acquire(timeout=PATIENCE), f"waits for {gate.groups}"
    assert gate.groups == [["a"], ["b", "c"], ["d", "e"], ["f"]]
    gate.go.release(4)
    assert [call.result(PATIENCE) for call in calls] == [Committed()] * 6
    gatherer.close()


def test_who_came_before_it_was_known_that_trips_are_short_waits_no_longer_than_who_came_after() -> None:
    gate = Gate()
    gatherer = Batcher(gate, name="gate", workers=4)
    calls = submitted(gatherer, "a")
    assert gate.begun.acquire(timeout=PATIENCE)
    with gatherer._lock:
        calls += submitted(gatherer, "b")
        gatherer.wait_s = 0.005
    assert gate.begun.acquire(timeout=PATIENCE), "waits for a whole trip of another partition"
    gate.go.release(2)
    assert [call.result(PATIENCE) for call in calls] == [Committed()] * 2
    gatherer.close()


def test_a_request_that_names_no_partition_fails_alone() -> None:
    gate = Gate()
    gate.go.release()
    gatherer = Batcher(gate, name="gate")
    with pytest.raises(TypeError):
        gatherer.perform(Commit(Partition(cast(str, []), "a"), ()))
    assert not gatherer._queue
    assert submitted(gatherer, "a")[0].result(PATIENCE) == Committed()
    gatherer.close()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_hears_at_once_that_it_has_to_open_for_itself() -> None:
    """Also when, at the fork, a thread that is not there afterwards holds the lock."""
    gate = Gate()
    gatherer = Batcher(gate, name="the gate")
    taken, go = threading.Event(), threading.Event()

    def hold() -> None:
        with gatherer._lock:
            taken.set()
            go.wait(PATIENCE)

    holder = threading.Thread(target=hold)
    holder.start()
    assert taken.wait(PATIENCE)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(PATIENCE)  # ends the child should it hang
            with pytest.raises(Unavailable, match="opened before this process was forked"):
                gatherer.perform(commit("a"))
            gatherer.close()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    go.set()
    holder.join()
    assert not os.WIFSIGNALED(status), "the child waits for ever"
    assert os.waitstatus_to_exitcode(status) == 0
    gatherer.close()


@pytest.mark.parametrize("wait_s", [0.0, 0.0005, 0.004])
def test_nobody_is_forgotten_in_a_crowd(wait_s: float) -> None:
    """Many callers, few partitions, trips of any length: everyone is answered, each partition in order."""
    under_way: set[str] = set()
    beside: list[str] = []

    def brief(jobs: Sequence[PendingRequest]) -> None:
        names = {_thread(job.effect) for job in jobs}
        beside.extend(under_way & names)
        under_way.update(names)
        threading.Event().wait(random.choice((0, 0.0004, 0.0015, 0.006)))
        under_way.difference_update(names)
        for job in jobs:
            job.answer = Committed()

    looks = itertools.count()

    class Counted(Batcher):
        def _take(self, now: float) -> list[PendingRequest]:
            next(looks)
            return super()._take(now)

    gatherer = Counted(brief, name="brief", workers=4)
    gatherer.wait_s = wait_s

    async def caller(number: int) -> None:
        for step in range(30):
            await gatherer.aperform(commit(f"{(number + step) % 5}"))

    async def crowd() -> None:
        await asyncio.wait_for(asyncio.gather(*map(caller, range(12))), 60)

    asyncio.run(crowd())
    gatherer.close()
    assert beside == []
    assert gatherer._held == {}
    assert next(looks) < 6 * 12 * 30, "workers spin"
