"""Calls of one turn of an event loop are one batch; what goes wrong with one is no other's matter."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from langgraph.store.base import GetOp, Op, Result

from perdure.errors import TooLarge, Unavailable
from perdure.langgraph.call_batching import CallBatcher
from tests.server.acceptance.serving import run


def op(key: str) -> Op:
    return GetOp(("n",), key)


class Runs:
    """Answers each operation with its key; keeps the batches that it ran."""

    def __init__(self, bad: frozenset[str] = frozenset(), error: Exception | None = None) -> None:
        self.batches: list[list[str]] = []
        self.bad = bad
        self.error = error or TooLarge("too large")
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, ops: list[Op]) -> list[Result]:
        keys = [str(each.key) for each in ops if isinstance(each, GetOp)]
        self.batches.append(keys)
        await self.gate.wait()
        if self.bad.intersection(keys):
            raise self.error
        answers: list[Any] = keys
        return answers


@run
async def test_calls_of_one_turn_are_one_batch() -> None:
    runs = Runs()
    batched = CallBatcher(runs)
    asked = [[op(f"{n}a"), op(f"{n}b")] for n in range(100)]
    found = await asyncio.gather(*map(batched, asked))
    assert found == [[f"{n}a", f"{n}b"] for n in range(100)]
    assert len(runs.batches) == 1
    assert await batched([op("later")]) == ["later"]
    assert runs.batches[1:] == [["later"]]


@run
async def test_a_batch_that_is_under_way_holds_up_no_other() -> None:
    runs = Runs()
    batched = CallBatcher(runs)
    runs.gate.clear()
    first = asyncio.create_task(batched([op("a")]))
    for _ in range(5):
        await asyncio.sleep(0)
    second = asyncio.create_task(batched([op("b")]))
    for _ in range(5):
        await asyncio.sleep(0)
    assert runs.batches == [["a"], ["b"]]
    runs.gate.set()
    assert [await first, await second] == [["a"], ["b"]]


@run
async def test_an_error_reaches_the_call_that_it_belongs_to() -> None:
    runs = Runs(bad=frozenset({"7", "61"}))
    batched = CallBatcher(runs)
    calls = (batched([op(str(n))]) for n in range(100))
    found: list[Any] = await asyncio.gather(*calls, return_exceptions=True)
    assert [n for n, each in enumerate(found) if isinstance(each, TooLarge)] == [7, 61]
    assert [each for n, each in enumerate(found) if n not in (7, 61)] == [
        [str(n)] for n in range(100) if n not in (7, 61)
    ]
    assert len(runs.batches) < 40, "in halves, not one by one"


@run
async def test_a_database_that_is_away_is_asked_once() -> None:
    runs = Runs(bad=frozenset({"0"}), error=Unavailable("away"))
    batched = CallBatcher(runs)
    found = await asyncio.gather(*(batched([op(str(n))]) for n in range(50)), return_exceptions=True)
    assert all(isinstance(each, Unavailable) for each in found)
    assert len(runs.batches) == 1


@pytest.mark.parametrize("cancelled", [0, 3])
@pytest.mark.parametrize("turns", [0, 1, 3])
@run
async def test_who_is_cancelled_takes_nobody_along(cancelled: int, turns: int) -> None:
    runs = Runs()
    runs.gate.clear()
    batched = CallBatcher(runs)
    tasks = [asyncio.create_task(batched([op(str(n))])) for n in range(5)]
    for _ in range(turns):
        await asyncio.sleep(0)
    tasks[cancelled].cancel()
    runs.gate.set()
    found: list[Any] = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(found.pop(cancelled), asyncio.CancelledError)
    assert found == [[str(n)] for n in range(5) if n != cancelled]


def test_loops_in_threads_do_not_meet() -> None:
    batches: list[int] = []

    async def answered(ops: list[Op]) -> list[Result]:
        batches.append(len(ops))
        await asyncio.sleep(0)
        return [None] * len(ops)

    batched = CallBatcher(answered)

    async def asked() -> int:
        found = await asyncio.gather(*(batched([op(str(n))]) for n in range(50)))
        return len(found)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda _: asyncio.run(asked()), range(40))) == [50] * 40
    assert batches == [50] * 40
