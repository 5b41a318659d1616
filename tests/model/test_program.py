"""Programs are started, moved on and resumed: each answer and each error arrives where it was asked for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from perdure.model.ops import Commit, Expect, Fetch, Get, Now, Put
from perdure.model.program import Effect, Program, ProgramResult, advance, ask, resume
from perdure.model.records import DOCUMENT, Partition
from perdure.storage.memory import MemoryDriver
from perdure.storage.port import arun, run


class Failing(Effect[int]):
    """A request that a driver refuses."""


def counted(effects: list[Effect[int]]) -> Program[list[int | str]]:
    out: list[int | str] = []
    for effect in effects:
        try:
            out.append((yield from ask(effect)))
        except TypeError as error:
            out.append(type(error).__name__)
    return out


def in_threads(program: Program[Any], driver: MemoryDriver) -> Any:
    return asyncio.run(arun(program, driver, in_threads=True))


def awaited(program: Program[Any], driver: MemoryDriver) -> Any:
    return asyncio.run(arun(program, driver))


@pytest.mark.parametrize("drive", [run, awaited, in_threads])
def test_every_runner_brings_answers_and_errors_to_the_place_that_asked(
    drive: Callable[[Program[Any], MemoryDriver], Any],
) -> None:
    out = drive(counted([Now(), Failing(), Now()]), MemoryDriver())
    assert [type(each) for each in out] == [int, str, int]
    assert out[1] == "TypeError"
    assert drive(counted([]), MemoryDriver()) == []


def test_a_program_that_was_started_is_resumed_at_the_request_it_waits_for() -> None:
    program = counted([Now(), Failing()])
    step = advance(program)
    assert step == Now()
    assert [type(each) for each in run(resume(program, step), MemoryDriver())] == [int, str]


def test_the_first_answer_or_error_may_come_from_the_starter() -> None:
    answered, failed = counted([Now(), Now()]), counted([Now(), Now()])
    advance(answered)
    advance(failed)
    assert run(resume(answered, advance(answered, 7)), MemoryDriver())[0] == 7
    rest = resume(failed, advance(failed, error=TypeError("away")))
    assert run(rest, MemoryDriver())[0] == "TypeError"


def test_the_end_has_the_result_and_what_is_raised_passes_through() -> None:
    program = counted([Now()])
    advance(program)
    assert advance(program, 1) == ProgramResult([1])
    program = counted([Now()])
    advance(program)
    with pytest.raises(ValueError, match="not caught"):
        advance(program, error=ValueError("not caught"))


def test_requests_of_a_part_are_performed_by_the_program_around_it() -> None:
    asked: list[Effect[Any]] = []

    def twice(effect: Effect[Any]) -> Program[int]:
        asked.append(effect)
        first = yield from ask(Now())
        second = yield from ask(Now())
        return second - first

    program = counted([Failing(), Failing()])
    (one, two) = run(resume(program, advance(program), twice), MemoryDriver())
    assert isinstance(one, int)
    assert isinstance(two, int)
    assert min(one, two) >= 0
    assert len(asked) == 2


def test_in_threads_the_program_computes_beside_the_event_loop() -> None:
    met: list[bool] = []

    def program() -> Program[None]:
        for _ in range(2):
            yield from ask(Now())
            met.append(threading.current_thread() is threading.main_thread())

    asyncio.run(arun(program(), MemoryDriver(), in_threads=True))
    assert met == [False, False]
    asyncio.run(arun(program(), MemoryDriver()))
    assert met[2:] == [True, True]


def test_with_a_size_it_computes_there_after_large_answers_only() -> None:
    met: list[bool] = []
    at = Partition("", "t")
    driver = MemoryDriver()
    for name, size in (("small", 10), ("large", 1000)):
        put = Put(DOCUMENT, ("c", name), {"updated_at": 0}, b" " * size, Expect.ABSENT, 1)
        driver.perform(Commit(at, (put,)))

    def program() -> Program[None]:
        for name in ("small", "large", "small"):
            yield from ask(Fetch(at, (Get(DOCUMENT, ("c", name)),)))
            met.append(threading.current_thread() is threading.main_thread())

    asyncio.run(arun(program(), driver, in_threads=True, thread_bytes=100))
    assert met == [True, False, True]
