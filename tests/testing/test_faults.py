"""The faulty driver does what it is told, when it is told, and is invisible otherwise."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import pytest
from langgraph.checkpoint.base import empty_checkpoint

import perdure
from perdure.model.ops import Commit, Committed, Fetch, Get, Put
from perdure.model.records import GC, Partition
from perdure.storage.memory import MemoryDriver
from perdure.testing.faults import WRITES, Fault, FaultyDriver, fail, faulty, kill, refuse

THREAD = Partition("", "thread")
READ = Fetch(THREAD, (Get(GC, ()),))


def write(version: int) -> Commit:
    return Commit(THREAD, (Put(GC, (), version=version),))


def version(driver: Any) -> int:
    ((record,),) = driver.perform(READ)
    return int(record.version)


def test_without_faults_it_counts_and_passes_everything_on() -> None:
    met: list[tuple[int, str]] = []
    driver = FaultyDriver(
        MemoryDriver(), on_effect=lambda at, effect: met.append((at, type(effect).__name__))
    )
    assert driver.perform(write(1)) == Committed()
    assert version(driver) == 1
    assert driver.count == 2
    assert met == [(1, "Commit"), (2, "Fetch")]
    assert driver.limits == MemoryDriver().limits


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("unavailable", perdure.Unavailable),
        ("conflict", perdure.HeadConflict),
        ("fenced", perdure.Fenced),
        ("contention", perdure.Conflict),
        (OSError("mine"), OSError),
    ],
)
def test_an_error_is_raised_by_name_or_as_it_is(name: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        FaultyDriver(MemoryDriver(), Fault(1, fail(name))).perform(READ)


@pytest.mark.parametrize(("when", "stored"), [("before", 1), ("after", 2)])
def test_an_error_before_an_effect_prevents_it_and_one_after_does_not(when: Any, stored: int) -> None:
    inner = MemoryDriver()
    driver = FaultyDriver(inner, Fault(2, fail("unavailable"), when))
    driver.perform(write(1))
    with pytest.raises(perdure.Unavailable):
        driver.perform(write(2))
    assert version(inner) == stored
    driver.perform(write(3))
    assert version(inner) == 3


def test_only_the_named_kinds_of_effect_count() -> None:
    driver = FaultyDriver(MemoryDriver(), Fault(1, fail("conflict")), counts=WRITES)
    driver.perform(READ)
    with pytest.raises(perdure.HeadConflict):
        driver.perform(write(1))
    assert driver.count == 1


def test_a_refused_commit_writes_nothing_and_is_planned_again() -> None:
    config: Any = {"configurable": {"thread_id": "thread", "checkpoint_ns": ""}}
    with faulty("memory://", Fault(1, refuse), counts=WRITES) as (database, driver):
        saver = database.checkpointer()
        saver.put(config, empty_checkpoint(), {}, {})
        assert saver.get_tuple(config) is not None
        assert driver.count == 2
        assert database.fsck() == []


def test_only_a_commit_can_be_refused_and_effects_are_counted_from_one() -> None:
    with pytest.raises(TypeError, match="only a commit"):
        FaultyDriver(MemoryDriver(), Fault(1, refuse)).perform(READ)
    with pytest.raises(ValueError, match="from 1"):
        Fault(0, kill)


def test_an_awaited_effect_meets_the_same_faults() -> None:
    inner = MemoryDriver()
    driver = FaultyDriver(inner, Fault(1, fail("unavailable"), "after"), Fault(2, refuse))
    with pytest.raises(perdure.Unavailable):
        asyncio.run(driver.aperform(write(1)))
    assert version(inner) == 1
    assert asyncio.run(driver.aperform(write(2))) != Committed()
    assert version(inner) == 1


@pytest.mark.parametrize(("when", "stored"), [("before", 1), ("after", 2)])
def test_kill_ends_the_process_at_the_effect(tmp_path: Any, when: Any, stored: int) -> None:
    url = f"sqlite:///{tmp_path / 'threads.db'}"
    child = os.fork()
    if child == 0:
        try:
            with faulty(url, Fault(2, kill, when), migrate=True) as (_, driver):
                driver.perform(write(1))
                driver.perform(write(2))
        finally:
            os._exit(7)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    with faulty(url) as (_, driver):
        assert version(driver) == stored
