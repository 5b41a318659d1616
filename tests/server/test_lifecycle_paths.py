"""Every path of a small world: what the engine does, what the tables say and what the server shows are one.

Covers perdure.model.runs.lifecycle.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import time
from collections.abc import Callable, Iterator

import pytest

from perdure.model.runs import lifecycle
from tests.runtime.graphs import Storage, stored
from tests.server.lifecycle_worlds import EVENTS, Event, OnFailure, walk, world

FULL = os.environ.get("PERDURE_CHAOS") == "full"
SECONDS = 1200 if FULL else 25
FEWEST = 4
"""Paths that a test walks on however busy a machine."""
shares = pytest.mark.parametrize("share", [0.4, pytest.param(1.0, marks=pytest.mark.slow)])
"""A test that walks random paths for this share of its time."""
DEPTH = 4 if FULL else 2
COMMITS = 10
"""Commits of a worker to die at: as many as any path of two messages has, and some."""
WORK = next(event for event in EVENTS if event.act == "work")
FAILURES: tuple[OnFailure, ...] = ("rollback", "keep")


def _paths(seed: int | None) -> Iterator[tuple[Event, ...]]:
    """Yield all short paths that begin with a question, in the order of a seed if there is one, then longer
    ones by chance."""
    ask, chance = EVENTS[0], random.Random(seed or 0)
    for length in range(1, DEPTH + 1):
        paths = list(itertools.product(EVENTS, repeat=length))
        if seed is not None:
            chance.shuffle(paths)
        yield from ((ask, WORK, *path) for path in paths)
    while True:
        yield tuple(chance.choices((*EVENTS, WORK, WORK), k=chance.randint(4, 14)))


def _explore(
    seconds: float, shape: str, on_failure: OnFailure, seed: int | None = None
) -> tuple[int, str | None]:
    """Walk paths for some time; return their number, and the first difference."""

    async def main() -> tuple[int, str | None]:
        until, count = time.monotonic() + seconds, 0
        for path in _paths(seed):
            if time.monotonic() > until and count >= FEWEST:
                break
            count += 1
            async with world(Storage("memory", ""), shape, on_failure) as place:
                if (found := await walk(place, path, on_failure)) is not None:
                    return count, found
        return count, None

    return asyncio.run(main())


@shares
@pytest.mark.parametrize("on_failure", ["rollback", "keep"])
@pytest.mark.parametrize("shape", ["flat", "nested"])
def test_every_view_of_a_path_is_what_the_tables_say(shape: str, on_failure: OnFailure, share: float) -> None:
    count, found = _explore(share * SECONDS / 4, shape, on_failure, seed=random.randrange(1 << 30))
    assert found is None, found
    assert count >= FEWEST


@shares
@pytest.mark.parametrize("backend", ["memory", "sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def test_a_path_is_the_same_with_kills(backend: str, share: float) -> None:
    """Workers die before and after any of their commits, and others go on."""
    chance = random.Random(random.randrange(1 << 30))

    def draw_kill() -> tuple[int, str] | None:
        if chance.random() < 0.3:
            return None
        return chance.randint(1, COMMITS), chance.choice(["before", "after"])

    async def main() -> str | None:
        until, count = time.monotonic() + share * SECONDS / 5, 0
        while time.monotonic() < until or count < FEWEST:
            count += 1
            path = tuple(chance.choices((*EVENTS, *[WORK] * 5), k=chance.randint(4, 12)))
            shape, on_failure = chance.choice(["flat", "nested"]), chance.choice(FAILURES)
            with stored(backend) as storage:
                async with world(storage, shape, on_failure, attempts=5) as place:
                    place.kills = iter(draw_kill, object())
                    if (found := await walk(place, path, on_failure)) is not None:
                        return f"{shape}, {on_failure}: {found}"
        return None

    assert (found := asyncio.run(main())) is None, found


def _kills() -> Iterator[tuple[tuple[Event, ...], OnFailure, tuple[int, str]]]:
    """Yield paths that end with work, and the commits of it before or after which a worker may die."""
    ask = EVENTS[0]
    paths = [path for n in range(3) for path in itertools.product(EVENTS, repeat=n)]
    ways = [(ask, *path, WORK) for path in paths] + [(ask, WORK, *path, WORK) for path in paths]
    random.shuffle(ways)
    for path in ways:
        for on_failure in FAILURES:
            for number in range(1, COMMITS + 1):
                yield path, on_failure, (number, "before")
                yield path, on_failure, (number, "after")


@shares
@pytest.mark.parametrize("shape", ["flat", "nested"])
def test_a_path_is_the_same_wherever_its_last_worker_dies(shape: str, share: float) -> None:
    async def main() -> tuple[int, str | None]:
        until, count = time.monotonic() + share * SECONDS / 5, 0
        for path, on_failure, kill in _kills():
            if time.monotonic() > until and count >= FEWEST:
                break
            count += 1
            with stored("memory") as storage:
                async with world(storage, shape, on_failure, attempts=5) as place:
                    place.kills = iter([*[None] * (path.count(WORK) - 1), kill])
                    if (found := await walk(place, path, on_failure)) is not None:
                        return count, f"{shape}, {on_failure}, {kill}: {found}"
        return count, None

    count, found = asyncio.run(main())
    assert found is None, found
    assert count >= FEWEST


def _hides_work(facts: lifecycle.Facts) -> lifecycle.Status:
    return lifecycle.decide_thread_status(facts._replace(is_busy=False))


def _answers_when_nothing_is_asked(facts: lifecycle.Facts) -> lifecycle.QuestionState:
    return lifecycle.QuestionState.OPEN


def _hides_failures(facts: lifecycle.Facts) -> lifecycle.Status:
    return lifecycle.decide_thread_status(facts._replace(has_failed=False))


def _repeats_anything(state: str) -> bool:
    return True


@pytest.mark.parametrize(
    ("place", "mutant"),
    [
        ("perdure.runtime.threads.rows.decide_thread_status", _hides_work),
        ("perdure.engine.queue.questions.decide_question_state", _answers_when_nothing_is_asked),
        ("perdure.runtime.threads.rows.decide_thread_status", _hides_failures),
        ("perdure.engine.queue.retries.may_retry", _repeats_anything),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_a_table_that_is_wrong_is_noticed(
    monkeypatch: pytest.MonkeyPatch, place: str, mutant: Callable[..., object]
) -> None:
    monkeypatch.setattr(place, mutant)
    _, found = _explore(60, "flat", "rollback")
    assert found is not None
