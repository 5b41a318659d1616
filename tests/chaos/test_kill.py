"""Kill -9 before and after every storage effect, and at random moments; then resume and compare.

A part of the kill points is visited by default, all of them with ``PERDURE_CHAOS=full``.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import Literal

import pytest

from perdure.storage.sqlite.driver import file_of
from tests.backends import BACKENDS, EMPTY
from tests.chaos.audit import final_state, violations
from tests.chaos.client import Job, placed
from tests.chaos.zygote import Zygote

FULL = os.environ.get("PERDURE_CHAOS") == "full"
ZYGOTES = 2
LIVES = 3
"""Undisturbed runs that are looked at for how many storage effects a run has."""
DURABILITY: tuple[Literal["sync", "async"], ...] = ("sync", "async")
DURABILITIES: tuple[tuple[Literal["sync", "async"], bool], ...] = (("sync", True), ("async", False))

pytestmark = pytest.mark.timeout(1800 if FULL else 300)

ELSEWHERE = [name for name in BACKENDS if name not in ("memory", "sqlite")]
"""Backends whose server lives on when a client dies."""

WORKLOADS = [
    pytest.param(Job("", "graph", "sync"), 1 if FULL else 6, id="graph-sync", marks=pytest.mark.slow),
    pytest.param(Job("", "graph", "async"), 1 if FULL else 17, id="graph-async"),
    pytest.param(
        Job("", "graph", "sync", asynchronous=True),
        1 if FULL else 13,
        id="graph-sync-ainvoke",
        marks=pytest.mark.slow,
    ),
    pytest.param(
        Job("", "graph", "async", asynchronous=True),
        1 if FULL else 13,
        id="graph-async-ainvoke",
        marks=pytest.mark.slow,
    ),
    pytest.param(Job("", "flow", "sync"), 1 if FULL else 3, id="flow-sync"),
    pytest.param(Job("", "flow", "async"), 1 if FULL else 3, id="flow-async", marks=pytest.mark.slow),
    *(
        pytest.param(
            Job("", "graph", durability, asynchronous, backend=backend),
            3 if FULL else 61,
            id=f"graph-{durability}-{backend}",
            marks=pytest.mark.slow,
        )
        for backend in ELSEWHERE
        for durability, asynchronous in DURABILITIES
    ),
]


@pytest.fixture(scope="module")
def zygotes() -> Iterator[list[Zygote]]:
    """Clients to be; they are made when every server is up, whose settings they inherit."""
    with ExitStack() as stack:
        for backend in ELSEWHERE:
            stack.enter_context(EMPTY[backend]())
        yield [stack.enter_context(Zygote()) for _ in range(ZYGOTES)]


def undisturbed(zygote: Zygote, job: Job) -> tuple[str, int, float]:
    """The state that a run ends in when nobody kills it, its storage effects, and how long it takes."""
    with placed(job) as job:
        ended = zygote.live(job)
        assert (ended.signal, ended.code) == (0, 0), ended.error
        state = final_state(job)
        assert violations(job, state) == []
        return state, json.loads(job.result.read_text())["effects"], ended.seconds


@dataclass(frozen=True)
class Death:
    """How the clients before the last one die: at the job's effect, or each after some seconds."""

    job: Job
    moments: tuple[float, ...] = ()

    def __str__(self) -> str:
        return f"{self.job.when} effect {self.job.at}" if self.job.at else f"after {self.moments} s"


def kill_and_resume(death: Death, zygote: Zygote, state: str) -> tuple[int, list[str]]:
    """How many clients were killed, and which promises were broken when the last one had finished."""
    killed = 0
    with placed(death.job) as job:
        for moment in death.moments or (None,):
            ended = zygote.live(job, kill_after=moment)
            killed += ended.signal == signal.SIGKILL
            if ended.error:
                return killed, [f"a client failed: {ended.error}"]
        last = zygote.live(replace(job, at=0))
        if (last.signal, last.code) != (0, 0):
            return killed, [f"the last client did not finish: {last.error}"]
        return killed, violations(job, state)


def visit(zygotes: list[Zygote], deaths: list[Death], state: str) -> tuple[int, dict[str, list[str]]]:
    """How many clients were killed, and the broken promises by kill point."""
    free: SimpleQueue[Zygote] = SimpleQueue()
    for zygote in zygotes:
        free.put(zygote)

    def one(death: Death) -> tuple[str, int, list[str]]:
        zygote = free.get()
        try:
            return str(death), *kill_and_resume(death, zygote, state)
        finally:
            free.put(zygote)

    with ThreadPoolExecutor(len(zygotes)) as pool:
        found = list(pool.map(one, deaths))
    return sum(killed for _, killed, _ in found), {where: broken for where, _, broken in found if broken}


def report(broken: dict[str, list[str]]) -> str:
    return "\n".join(f"killed {where}: {what}" for where, found in broken.items() for what in found)


@pytest.mark.parametrize(("job", "stride"), WORKLOADS)
def test_nothing_acknowledged_is_lost_or_repeated_wherever_a_client_is_killed(
    zygotes: list[Zygote], job: Job, stride: int, request: pytest.FixtureRequest
) -> None:
    lives = [undisturbed(zygotes[0], job) for _ in range(LIVES)]
    state = lives[0][0]
    effects = [effects for _, effects, _ in lives]
    points = [
        replace(job, at=at, when=when) for at in range(1, max(effects) + 1) for when in ("before", "after")
    ]
    visited = points[::stride]
    killed, broken = visit(zygotes, [Death(point) for point in visited], state)
    request.node.user_properties.append(("killed", killed))
    assert not broken, report(broken)
    # Writes that come together share a commit, so lives differ in length: only the points that every life
    # has must be reached, and of those a few may be missed by a life shorter than all that were seen.
    reached_by_all = sum(point.at <= min(effects) for point in visited)
    assert killed >= max(1, reached_by_all * 0.9 - 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "job",
    [
        pytest.param(Job("", "graph", durability, asynchronous), id=f"{durability}-{asynchronous}")
        for durability in DURABILITY
        for asynchronous in (False, True)
    ]
    + [
        pytest.param(
            Job("", "graph", durability, asynchronous, backend=backend), id=f"{durability}-{backend}"
        )
        for backend in ELSEWHERE
        for durability, asynchronous in DURABILITIES
    ],
)
def test_nothing_acknowledged_is_lost_or_repeated_whenever_clients_are_killed(
    zygotes: list[Zygote], job: Job, request: pytest.FixtureRequest
) -> None:
    """Two clients are killed at random moments, one after the other; the third finishes."""
    state, _, seconds = undisturbed(zygotes[0], job)
    rng = random.Random(f"{job.durability} {job.asynchronous}")
    wanted = (250 if FULL else 10) // (1 if job.backend == "sqlite" else 5)
    killed = 0
    broken: dict[str, list[str]] = {}
    # A client may finish before its moment comes, on a machine that is faster than a moment ago: go on until
    # enough of them were killed.
    for _ in range(8):
        deaths = [Death(job, (rng.uniform(0, seconds), rng.uniform(0, seconds))) for _ in range(wanted)]
        more, broken = visit(zygotes, deaths, state)
        killed += more
        if broken or killed >= wanted:
            break
    request.node.user_properties.append(("killed", killed))
    assert not broken, report(broken)
    assert killed >= wanted


def test_the_audit_sees_a_lost_checkpoint_a_lost_write_and_a_task_that_ran_twice(
    zygotes: list[Zygote],
) -> None:
    with placed(Job("", "graph", "sync")) as job:
        assert zygotes[0].live(job).code == 0
        state = final_state(job)
        assert violations(job, state) == []
        with closing(sqlite3.connect(file_of(job.url))) as connection:
            connection.execute("DELETE FROM perdure_checkpoint WHERE step = 3 AND namespace = ''")
            connection.execute("DELETE FROM perdure_write WHERE idx = 0")
            connection.commit()
        lines = job.journal.read_text().splitlines()
        first = next(line for line in lines if '"left question"' in line)
        with job.journal.open("a") as journal:
            journal.write(first + "\n")
        found = "\n".join(violations(job, state.replace("last:", "lost:")))
        assert "the acknowledged checkpoint" in found
        assert "acknowledged writes" in found
        assert "left question (task" in found
        assert "hole" in found
        assert "the state is" in found
