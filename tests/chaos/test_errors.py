"""The database fails a call, or another writer comes first, at every storage effect of a run that lives on.

Unlike a killed client, this one goes on with everything that it had in memory: what it believes to be
stored must not have run ahead of what is.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import Literal

import pytest

from tests.chaos.audit import final_state, violations
from tests.chaos.client import Job, Journal, placed, work

FULL = os.environ.get("PERDURE_CHAOS") == "full"
pytestmark = pytest.mark.timeout(900 if FULL else 240)


def undisturbed(job: Job) -> tuple[str, int]:
    with placed(job) as job:
        work(job)
        state = final_state(job)
        assert violations(job, state) == []
        return state, json.loads(job.result.read_text())["effects"]


def outcome(job: Job, state: str) -> tuple[bool, list[str]]:
    """Whether the client was told of a failure, and which promises were broken."""
    with placed(job) as job:
        work(job)
        told = any(line[0] == "failed" for line in Journal(job.journal).lines())
        return told, [f"{job.fault} {job.when} effect {job.at}: {what}" for what in violations(job, state)]


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("durability", ["sync", "async"])
@pytest.mark.parametrize("shape", ["graph", "flow"])
def test_a_call_that_failed_is_repeated_by_its_run_id_and_loses_nothing(
    shape: Literal["graph", "flow"],
    durability: Literal["sync", "async"],
    when: Literal["before", "after"],
) -> None:
    job = Job("", shape, durability, fault="unavailable", when=when)
    state, effects = undisturbed(job)
    noticed = 0
    broken: list[str] = []
    for at in range(1, effects + 1, 1 if FULL else 3):
        told, found = outcome(replace(job, at=at), state)
        noticed += told
        broken += found
    assert not broken, "\n".join(broken)
    assert noticed > 0


@pytest.mark.parametrize(
    ("shape", "durability"),
    [
        ("graph", "sync"),
        ("flow", "async"),
        pytest.param("graph", "async", marks=pytest.mark.slow),
        pytest.param("flow", "sync", marks=pytest.mark.slow),
    ],
)
def test_a_refused_commit_is_planned_again_and_nobody_notices(
    shape: Literal["graph", "flow"], durability: Literal["sync", "async"]
) -> None:
    job = Job("", shape, durability, fault="refuse")
    state, effects = undisturbed(job)
    for at in range(1, effects + 1, 1 if FULL else 3):
        told, broken = outcome(replace(job, at=at), state)
        assert not broken, "\n".join(broken)
        assert not told
