"""Messages at random moments of runs, under faults: each is in the state once, in order, by the open run or
the next one; one that was withdrawn is not, and keeps none from its run."""

from __future__ import annotations

import os
import secrets
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import pytest

from perdure.storage.url import open_driver
from tests.backends import EMPTY
from tests.chaos.deployments import Outcome, simulate
from tests.chaos.figures import publish
from tests.chaos.process_faults import Battery, Launcher
from tests.chaos.zygote import ROOT

FULL = os.environ.get("PERDURE_CHAOS") == "full"
FIRST = 40_000_000
SEEDS = 100 if FULL else 8


def refuse(outcome: Outcome) -> None:
    assert not outcome.wrong, (
        f"seed {outcome.seed} broke a promise; simulate({outcome.seed}, steers=True) shows it again: "
        f"{outcome.wrong[:5]}"
    )


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_each_message_is_seen_once_and_in_order() -> None:
    total = Counter(parts=1)
    try:
        for seed in range(FIRST, FIRST + SEEDS):
            outcome = simulate(seed, steers=True, messages=6)
            total.update(outcome.counts, seeds=1, violations=len(outcome.wrong))
            refuse(outcome)
    finally:
        publish("steering", total)
    assert total["taken up"] > total["messages"] / 10
    assert total["kills"] > 0
    assert total["passed over"] > 0


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("backend", ["sqlite", "postgresql"] if FULL else ["sqlite"])
def test_real_processes_are_killed_while_messages_steer(backend: str, tmp_path: Path) -> None:
    seed = secrets.randbits(32)
    wanted = Battery(backend, seed, 24, kills=4, pauses=1, threads=4, interval_s=0.3, steers=True)
    if FULL:
        wanted = Battery(backend, seed, 1000, kills=200, pauses=40, threads=50, steers=True)
    with EMPTY[backend]() as url, Launcher(ROOT) as launcher:
        open_driver(url, migrate=True).close()
        figures, wrong = wanted.run(launcher, url, tmp_path)
    publish("steering battery", asdict(figures))
    assert not wrong, f"seed {seed}: {len(wrong)} promises broken: {wrong[:5]}"
    assert (figures.lost, figures.forks, figures.twice, figures.stuck, figures.stale) == (0, 0, 0, 0, 0)
    assert (figures.kills, figures.pauses) == (wanted.kills, wanted.pauses)
    assert figures.messages >= wanted.messages
    # A message that was withdrawn has a run of its own as well.
    assert figures.runs < figures.messages, "open runs have taken messages up"
