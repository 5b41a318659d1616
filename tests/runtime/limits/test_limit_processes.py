"""Processes that share limits, and are killed: never above them, most of them used, and nobody is left out.

`make chaos ARGS=tests/runtime/limits` runs it at its full size: four processes and four keys for ten minutes.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.backends import EMPTY

FULL = os.environ.get("PERDURE_CHAOS") == "full"
PROCESSES, USERS, CALLERS = 4, 3, 12
KEYS, SECONDS, KILLS = (4, 600, 20) if FULL else (2, 20, 1)
LEAST_USED = 0.95 if FULL else 0.8
"""A process that is killed keeps its places for up to 3 seconds, which in a short run is much of it."""
CALL_S = 1.0
"""A place is handed on in about a hundredth of a second on a busy machine: of calls that take a second, as
those of models do, it is a hundredth."""
PLACES, RATE, BURST = 8, 1200, 20
LIMITS = {"places": {"concurrency": PLACES}, "permits": {"rate": RATE, "burst": BURST}}
_PROGRAM = Path(__file__).with_name("limit_process.py")


@dataclass
class Call:
    """A call that a process reported: its limit, key and user, and when it began and ended."""

    limit: str
    key: str
    user: str
    began: float
    ended: float | None = None
    held_until: float | None = None


class Process:
    """A process that makes limited calls without end, and the calls that it reported."""

    def __init__(self, url: str) -> None:
        words = [url, json.dumps(LIMITS), *map(str, (KEYS, USERS, CALL_S, CALLERS))]
        self._process = subprocess.Popen(
            [sys.executable, _PROGRAM, *words], stdout=subprocess.PIPE, text=True, cwd=Path.cwd()
        )
        self.calls: dict[str, Call] = {}
        self.lapses: list[tuple[str, str, float]] = []
        self.is_ready = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                if not line.endswith("\n"):
                    return  # the last line of a killed process is cut
                match line.split():
                    case ["ready"]:
                        self.is_ready = True
                    case ["begin", number, limit, key, user, moment]:
                        self.calls[number] = Call(limit, key, user, float(moment))
                    case ["end", number, moment]:
                        self.calls[number].ended = float(moment)
                    case ["lapsed", limit, key, moment]:
                        self.lapses.append((limit, key, float(moment)))
                    case _:
                        pytest.fail(f"a process printed {line!r}")

    def kill(self) -> None:
        """End it; what was under way in it ends then. What it had sent when its lease ended, as it got no
        processor for seconds, nothing can take back: it counts until that moment."""
        self._process.kill()
        self._process.wait()
        ended = time.time()
        self._reader.join(10)
        for call in self.calls.values():
            call.ended = call.ended or ended
            for limit, key, lapsed in self.lapses:
                if (limit, key) == (call.limit, call.key) and call.began < lapsed < call.ended:
                    call.held_until = lapsed


@dataclass
class Run:
    """Calls of all processes, the time at which all were ready, and the time of their end."""

    calls: list[Call]
    began: float
    ended: float

    def of(self, limit: str, key: int) -> list[Call]:
        return [call for call in self.calls if (call.limit, call.key) == (limit, str(key))]


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def run(request: pytest.FixtureRequest) -> Run:
    """See ``run_on``."""
    with EMPTY[request.param]() as url:
        return run_on(url)


def run_on(url: str) -> Run:
    """Let the processes call for a while, with kills in between."""
    drawn = random.Random(7)
    running = [Process(url) for _ in range(PROCESSES)]
    killed: list[Process] = []
    try:
        until = time.monotonic() + 100
        while not all(process.is_ready for process in running):
            assert time.monotonic() < until, "a process did not begin"
            time.sleep(0.05)
        time.sleep(1)
        began = time.time()
        for _ in range(KILLS):
            time.sleep(SECONDS / (KILLS + 1))
            number = drawn.randrange(PROCESSES)
            running[number].kill()
            killed.append(running[number])
            running[number] = Process(url)
        time.sleep(SECONDS / (KILLS + 1))
        ended = time.time()
    finally:
        for process in running:
            process.kill()
    calls = [call for process in (*killed, *running) for call in process.calls.values()]
    return Run(calls, began, ended)


def assert_fair(calls: list[Call]) -> float:
    """Assert that no user of a key has less than half of an equal share. Return the least share of one."""
    users = Counter(call.user for call in calls)
    assert len(users) == USERS
    least = min(users.values()) * USERS / len(calls)
    assert least >= 0.5, users
    return least


def report(what: str, figures: dict[str, Any]) -> None:
    print(json.dumps({"what": what, "seconds": SECONDS, "kills": KILLS, "keys": KEYS, **figures}))


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_processes_are_never_above_a_concurrency_and_use_it(run: Run) -> None:
    used, shares, highest = [], [], 0
    for key in range(KEYS):
        calls = run.of("places", key)
        # At one moment ends come before beginnings.
        changes = sorted(
            [(call.began, 1) for call in calls]
            + [(call.held_until or call.ended or 0.0, -1) for call in calls],
            key=lambda change: (change[0], change[1]),
        )
        under_way = 0
        for _, change in changes:
            under_way += change
            highest = max(highest, under_way)
        assert highest <= PLACES
        inside = [min(call.ended or 0.0, run.ended) - max(call.began, run.began) for call in calls]
        used.append(sum(max(0.0, each) for each in inside) / PLACES / (run.ended - run.began))
        shares.append(assert_fair([call for call in calls if call.began >= run.began]))
    late = sum(call.held_until is not None for call in run.calls)
    figures = {
        "most": highest,
        "used": round(min(used), 3),
        "least share": round(min(shares), 2),
        "late": late,
    }
    number = sum(call.limit == "places" for call in run.calls)
    report("limits: concurrency", {"calls": number, "late": late, **figures})
    assert min(used) >= LEAST_USED, used


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_processes_are_never_above_a_rate_and_use_it(run: Run) -> None:
    used, shares, over = [], [], 0.0
    for key in range(KEYS):
        calls = run.of("permits", key)
        begins = sorted(call.began for call in calls)
        # In no span of time do more begin than the burst, and what the rate gives for the span. A process
        # that waits for a processor begins a call a little after its permit was there.
        lowest = 0.0
        for number, moment in enumerate(begins):
            given = number - (moment - begins[0]) * RATE / 60
            lowest = min(lowest, given)
            over = max(over, given - lowest + 1 - BURST)
            assert given - lowest + 1 <= BURST + 2
        inside = sum(run.began <= moment <= run.ended for moment in begins)
        used.append(inside / RATE * 60 / (run.ended - run.began))
        shares.append(assert_fair([call for call in calls if call.began >= run.began]))
    figures = {"over": round(over, 2), "used": round(min(used), 3), "least share": round(min(shares), 2)}
    report("limits: rate", {"calls": sum(call.limit == "permits" for call in run.calls), **figures})
    assert min(used) >= LEAST_USED, used
