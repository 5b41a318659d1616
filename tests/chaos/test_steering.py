"""Messages at random moments of runs, under faults: each is in the state once, in order, by the open run or
the next one."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from tests.chaos.deployments import Outcome, simulate
from tests.chaos.figures import publish

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
