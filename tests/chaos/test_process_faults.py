"""Real processes, killed and paused: no acknowledged message is lost, no step is committed twice.

A short battery runs by default, hundreds of kills and pauses with ``PERDURE_CHAOS=full``. What a battery came
to is appended, a line of JSON each, to the file that ``PERDURE_FIGURES`` names.
"""

from __future__ import annotations

import json
import os
import secrets
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import cycle, islice
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Literal

import pytest

from perdure.database.base import handle_of
from perdure.database.blocking import SyncDatabase
from perdure.database.opening import open_database
from perdure.engine.queue import inbox, outbox, runs
from perdure.model.ops import Fetch, Get
from perdure.model.program import ask
from perdure.model.records import LANE, Partition
from perdure.model.runs.queue import IN, OUT, Lane
from perdure.runtime.nodes.lease_check import LeaseCheck
from perdure.storage.url import open_driver
from tests.backends import BACKENDS, EMPTY
from tests.chaos.child_processes import SCENARIOS, JsonLines, ProcessJob, messages_of
from tests.chaos.figures import publish
from tests.chaos.history import Expected, audit
from tests.chaos.process_faults import Battery, Launcher, forks, repetitions
from tests.chaos.zygote import ROOT
from tests.mutants import breaks
from tests.mutants.runtime import BREAKS
from tests.servers import dynamodb

FULL = os.environ.get("PERDURE_CHAOS") == "full"
MEMORY = Path("/dev/shm")
PROCESSES = [name for name in BACKENDS if name != "memory"]
"""Backends that several processes can share."""
LOCAL = ("sqlite", "postgresql")
"""Backends that answer within a millisecond; the others are visited a tenth as often."""
LIVES_S = 60.0
LAUNCHERS = 2

pytestmark = pytest.mark.timeout(3000 if FULL else 180)


@contextmanager
def folder() -> Iterator[Path]:
    path = tempfile.mkdtemp(prefix="perdure-faults-", dir=MEMORY if MEMORY.is_dir() else None)
    try:
        yield Path(path)
    finally:
        shutil.rmtree(path)


@contextmanager
def migrated(backend: str) -> Iterator[str]:
    with EMPTY[backend]() as url:
        open_driver(url, migrate=True).close()
        yield url


@pytest.fixture(scope="module")
def launchers() -> Iterator[list[Launcher]]:
    with ExitStack() as stack:
        # Set once for both threads of a visit: the first to leave would take them from the other.
        stack.enter_context(dynamodb.credentials())
        yield [stack.enter_context(Launcher(ROOT)) for _ in range(LAUNCHERS)]


# At random moments


def battery(backend: str, seed: int) -> Battery:
    if FULL:
        n = 1 if backend in LOCAL else 10
        return Battery(backend, seed, 3000 // n, kills=500 // n, pauses=500 // n, threads=150 // n)
    n = 1 if backend in LOCAL else 2
    return Battery(backend, seed, 60 // n, kills=10 // n, pauses=6 // n, threads=12 // n, interval_s=0.35)


@pytest.mark.parametrize(
    "backend",
    [pytest.param(name, marks=[] if name == "sqlite" else [pytest.mark.slow]) for name in PROCESSES],
)
def test_kills_and_pauses_at_random_moments_break_no_promise(launchers: list[Launcher], backend: str) -> None:
    seed = secrets.randbits(32)
    with migrated(backend) as url, folder() as path:
        figures, wrong = battery(backend, seed).run(launchers[0], url, path)
    publish("battery", asdict(figures))
    assert not wrong, f"seed {seed}: {len(wrong)} promises broken: {wrong[:5]}"
    assert (figures.lost, figures.forks, figures.twice, figures.stuck, figures.stale) == (0, 0, 0, 0, 0)
    wanted = battery(backend, seed)
    assert (figures.kills, figures.pauses) == (wanted.kills, wanted.pauses)
    assert figures.messages >= wanted.messages
    if FULL:
        # Few of them write: a process that was paused checks its lease first (see test_a_missing_fence_…).
        assert figures.losses > 0


# At every moment


@dataclass(frozen=True)
class Point:
    """Where a lone process is killed: before or after its ``at``-th storage effect; nowhere at 0."""

    scenario: str
    at: int = 0
    when: Literal["before", "after"] = "before"
    breaks: str = ""


@dataclass(frozen=True)
class Lived:
    """What was left of a scenario: whether its process was killed, the effects that the last one had, all
    that is wrong, and what is stored, in the same words however often processes were killed."""

    killed: bool
    effects: int
    wrong: tuple[str, ...]
    stored: str


def live(launcher: Launcher, backend: str, point: Point) -> Lived:
    """Kill one process at a point, let another one finish, and look."""
    with migrated(backend) as url, folder() as path:
        # The first one is told of all that is due: it need not ask, and its effects are the scenario's.
        job = ProcessJob(
            "lone",
            "first",
            url,
            str(path),
            lease=0.6,
            scenario=point.scenario,
            poll=30.0,
            breaks=point.breaks,
        )
        killed = False
        if point.at:
            killed = end_of(launcher, replace(job, at=point.at, when=point.when)) == -signal.SIGKILL
            job = replace(job, name="second", poll=0.05)
        code = end_of(launcher, job)
        error = path / f"error of {job.name}"
        if code:
            said = error.read_text()[-2000:] if error.exists() else "nothing"
            return Lived(killed, 0, (f"the last process ended with {code} and said {said}",), "")
        journal = JsonLines.lines(str(path), "journal")
        database = open_database(url)
        try:
            wrong = [*violations(database, point.scenario, journal), *map(str, database.fsck())]
            stored = json.dumps([described(database, thread) for thread in threads_of(point.scenario)])
        finally:
            database.close()
        return Lived(killed, int((path / "effects").read_text()), tuple(wrong), stored)


def end_of(launcher: Launcher, job: ProcessJob) -> int:
    """Let a process come to its end; its exit code. One that does not is killed, and the test fails."""
    child = launcher.start(job)
    poll = select.poll()
    poll.register(child.gone, select.POLLIN)
    if not poll.poll(LIVES_S * 1000):
        launcher.kill(child)
        return 99
    return launcher.reap(child)


def threads_of(scenario: str) -> list[str]:
    return sorted({thread for thread, _ in messages_of(scenario)})


def violations(database: SyncDatabase, scenario: str, journal: list[list[Any]]) -> list[str]:
    """What is wrong by what is stored and by what processes have seen."""
    expected = Expected({thread: [] for thread in threads_of(scenario)})
    for thread, text in messages_of(scenario):
        expected.acknowledged[thread].append(text)
    delivered = [line[1] for line in journal if line[0] == "delivered"]
    expected.delivered.update(delivered)
    wrong = repetitions(journal)
    if scenario != "interrupt":
        return wrong + audit(database, expected)
    # Its log is not the logging graph's: what is stored is compared with an undisturbed run's.
    for thread in threads_of(scenario):
        at = Partition("", thread)
        wrong += forks(database, at)
        replies = handle_of(database).run(outbox.read_replies(at, 100))
        wrong += [f"reply {r.id} never reached its channel" for r in replies if r.id not in delivered]
        wrong += [f"{key} is not a reply's key" for key in set(delivered) - {r.id for r in replies}]
    return wrong


def described(database: SyncDatabase, thread: str) -> list[Any]:
    """A thread in words that do not depend on time or chance; of messages that may share a run, or not, only
    what was said."""
    at = Partition("", thread)
    found = database.checkpointer().get_tuple({"configurable": {"thread_id": thread}})
    assert found is not None
    lanes = handle_of(database).run(ask(Fetch(at, (Get(LANE, (IN,)), Get(LANE, (OUT,))))))
    ready = [Lane.read(name, lane) for name, lane in zip((IN, OUT), lanes, strict=True)]
    messages = handle_of(database).run(inbox.read_latest(at, 100))
    return [
        found.checkpoint["channel_values"]["log"],
        [[standing.message.seq, standing.message.payload] for standing in messages],
        [[run.first, run.last, run.state] for run in handle_of(database).run(runs.read_latest(at, 100))],
        [
            [reply.ord, reply.state, reply.payload]
            for reply in handle_of(database).run(outbox.read_replies(at, 100))
        ],
        [[lane.pending, lane.due_at, lane.run_id, lane.waiting] for lane in ready],
    ]


def visit(
    launchers: list[Launcher], backend: str, points: list[Point], undisturbed: str
) -> tuple[int, list[str]]:
    """How many processes were killed, and what was wrong then."""
    free: SimpleQueue[Launcher] = SimpleQueue()
    for launcher in launchers:
        free.put(launcher)

    def one(point: Point) -> tuple[Point, Lived]:
        launcher = free.get()
        try:
            return point, live(launcher, backend, point)
        finally:
            free.put(launcher)

    with ThreadPoolExecutor(len(launchers)) as pool:
        lived = list(pool.map(one, points))
    wrong = [f"{point}: {what}" for point, found in lived for what in found.wrong]
    wrong += [
        f"{point}: stored is {found.stored}, and undisturbed {undisturbed}"
        for point, found in lived
        if point.scenario == "interrupt" and not found.wrong and found.stored != undisturbed
    ]
    return sum(found.killed for _, found in lived), wrong


def visited(backend: str, scenario: str, effects: int) -> list[Point]:
    """The points of a scenario that are visited: all of them at full size, and again until there are enough;
    otherwise a few that lie evenly, from one that chance chooses."""
    every = [Point(scenario, at, when) for at in range(1, effects + 1) for when in ("before", "after")]
    if FULL and backend in LOCAL:
        return list(islice(cycle(every), max(len(every), 105)))
    share = 11 if FULL else 3 if backend in LOCAL else 1
    first = secrets.randbelow(len(every))
    return [every[(first + n * len(every) // share) % len(every)] for n in range(share)]


@pytest.mark.parametrize(
    ("backend", "scenario"),
    [
        pytest.param(backend, scenario, marks=[] if backend == "sqlite" else [pytest.mark.slow])
        for n, backend in enumerate(PROCESSES)
        for m, scenario in enumerate(SCENARIOS)
        if FULL or backend in LOCAL or (n + m) % 2
    ],
)
def test_a_kill_at_any_storage_effect_breaks_no_promise(
    launchers: list[Launcher], backend: str, scenario: str
) -> None:
    quiet = live(launchers[0], backend, Point(scenario))
    assert not quiet.wrong, quiet.wrong
    assert quiet.effects > 15
    points = visited(backend, scenario, quiet.effects)
    killed, wrong = visit(launchers, backend, points, quiet.stored)
    figures = {"backend": backend, "scenario": scenario, "points": len(points), "killed": killed}
    publish("points", {**figures, "violations": len(wrong), "parts": 1})
    assert not wrong, f"{len(wrong)} promises broken: {wrong[:5]}"
    # How many effects there are depends on time; a few of the last points may not be reached.
    assert killed >= len(points) * 0.8 - 1


# Whether it would be noticed


def no_fence(patch: pytest.MonkeyPatch) -> None:
    """Take the check of the lease away, too, which keeps most processes that were paused from writing."""

    async def unchecked(_: LeaseCheck) -> None:
        pass

    breaks.no_fence(patch)
    patch.setattr(LeaseCheck, "aconfirm", unchecked)
    patch.setattr(LeaseCheck, "confirm", lambda _: None)


@pytest.mark.skipif(not FULL, reason="it takes a minute")
def test_a_missing_fence_is_noticed(launchers: list[Launcher]) -> None:
    """The compare-and-set on the head hides most of what a stale writer stores, so it is asked for each write
    who held the thread then."""
    with migrated("sqlite") as url, folder() as path:
        broken = Battery(
            "sqlite",
            secrets.randbits(32),
            100,
            kills=10,
            pauses=60,
            threads=20,
            breaks="tests.chaos.test_process_faults:no_fence",
        )
        figures, wrong = broken.run(launchers[0], url, path)
    publish("no fence", {**asdict(figures), "wrong": len(wrong)})
    assert figures.stale > 0
    assert wrong or not (figures.lost or figures.forks or figures.twice)


def no_run_id(patch: pytest.MonkeyPatch) -> None:
    next(broken for broken in BREAKS if broken.name == "no run id").apply(patch)


@pytest.mark.skipif(not FULL, reason="it takes tens of points")
def test_a_missing_run_id_is_noticed(launchers: list[Launcher]) -> None:
    effects = live(launchers[0], "sqlite", Point("plain")).effects
    for at in range(1, effects + 1):
        point = Point("plain", at, breaks="tests.chaos.test_process_faults:no_run_id")
        lived = live(launchers[0], "sqlite", point)
        if lived.wrong:
            assert any("I3" in what for what in lived.wrong), lived.wrong
            return
    pytest.fail("inputs that are applied twice looked right")


def test_a_process_believes_that_it_is_later() -> None:
    """Also where a module has taken the function before; what is compared with is the real time's."""
    code = (
        "import time, datetime; from time import time as taken; from datetime import datetime as moment\n"
        "from tests.chaos.child_processes import skew\n"
        "before, earlier = time.time(), moment.now(datetime.timezone.utc)\n"
        "skew(-3600)\n"
        "from langgraph.checkpoint.base import empty_checkpoint\n"
        "assert -3600 <= taken() - before < -3500\n"
        "assert -3600 <= time.time_ns() / 1e9 - before < -3500\n"
        "assert -3600 <= (moment.now(datetime.timezone.utc) - earlier).total_seconds() < -3500\n"
        "assert -3600 <= (moment.fromisoformat(empty_checkpoint()['ts']) - earlier).total_seconds() < -3500\n"
        "assert isinstance(earlier, moment)\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)
