"""Whole deployments under seeded faults: every history keeps every promise, and every break is noticed."""

from __future__ import annotations

import os
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from perdure.runtime.jitter import spread
from perdure.storage.memory import MemoryDriver
from tests.chaos.deployments import Outcome, simulate
from tests.chaos.figures import publish
from tests.chaos.simulation import Faults
from tests.mutants.runtime import BREAKS, Break

FULL = os.environ.get("PERDURE_CHAOS") == "full"
SEEDS = 20_000 if FULL else 120
CHUNK = 500 if FULL else 30
TRIES = 400
"""How many seeds a break is given to show itself."""

BROKEN_S = 300.0
"""Virtual seconds of faults in a broken deployment, where messages may be at work forever."""

CALM = Faults()


def refuse(outcome: Outcome) -> None:
    assert not outcome.wrong, (
        f"seed {outcome.seed} broke a promise; tests.chaos.deployments.simulate({outcome.seed}) shows it "
        f"again: {outcome.wrong[:5]}"
    )


@pytest.mark.timeout(3000)
@pytest.mark.parametrize(
    "first",
    [pytest.param(first, marks=[pytest.mark.slow] if first else []) for first in range(0, SEEDS, CHUNK)],
)
def test_kills_pauses_and_lost_answers_break_no_promise(first: int) -> None:
    total = Counter(parts=1)
    try:
        for seed in range(first, first + CHUNK):
            outcome = simulate(seed)
            total.update(outcome.counts, seeds=1, violations=len(outcome.wrong))
            refuse(outcome)
    finally:
        publish("simulation", total)
    assert min(total[what] for what in ("kills", "pauses", "lost answers", "stale writes refused")) > 0


@pytest.mark.timeout(3000)
@pytest.mark.parametrize(
    # What is stored at a kill before a request is what was stored after the one before.
    "when",
    [pytest.param("before", marks=pytest.mark.slow), "after"],
)
@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(seed, marks=[pytest.mark.slow] if seed > 10_000_000 else [])
        for seed in range(10_000_000, 10_000_010 if FULL else 10_000_002)
    ],
)
def test_a_kill_at_any_moment_breaks_no_promise(seed: int, when: str) -> None:
    """Every request of a quiet history is, once, the last that its process made."""
    quiet = simulate(seed, faults=CALM, threads=1, messages=2)
    refuse(quiet)
    requests = quiet.counts["requests"]
    assert requests > 20
    total = Counter(points=0, violations=0, parts=1)
    try:
        for number in range(1, requests + 1):
            outcome = simulate(seed, faults=CALM, threads=1, messages=2, kill_at=(number, when))
            total.update(points=outcome.counts["kills"], violations=len(outcome.wrong))
            refuse(outcome)
    finally:
        publish("kill points", total)
    assert total["points"] == requests


def test_a_seed_makes_the_same_history_again() -> None:
    """Whatever other threads of the process do meanwhile, as servers of other tests do."""
    over = Event()

    def meddle() -> None:
        while not over.wait(0.001):
            spread()
            random.random()

    with ThreadPoolExecutor(1) as beside:
        meddling = beside.submit(meddle)
        try:
            for seed in range(5):
                once, again = simulate(seed), simulate(seed)
                assert once.trace
                assert once == again
        finally:
            over.set()
        meddling.result()


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("broken", BREAKS, ids=lambda b: b.name)
def test_a_break_is_noticed(broken: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    broken.apply(monkeypatch)
    for seed in range(TRIES):
        try:
            driver, count = broken.driver(MemoryDriver()), 6 if broken.steers else 3
            outcome = simulate(seed, driver=driver, steers=broken.steers, messages=count, busy_s=BROKEN_S)
        except (AttributeError, NameError, TypeError):
            raise
        except Exception as error:
            print(f"{type(error).__name__}: {error}")
            publish("break", {"name": broken.name, "seed": seed})
            return
        if outcome.wrong:
            print(outcome.wrong[0][:300])
            publish("break", {"name": broken.name, "seed": seed})
            return
    pytest.fail(f"{TRIES} histories without {broken.promise!r} looked right")
