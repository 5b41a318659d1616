"""Processes that share a limit, and are killed: never above it, and nobody is left out."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest

FULL = os.environ.get("PERDURE_CHAOS") == "full"
PROCESSES, USERS, CALLERS = 4, 3, 6
KEYS, SECONDS, KILLS = (4, 600, 60) if FULL else (2, 12, 2)
CALL_S = 0.05
_PROGRAM = Path(__file__).with_name("limit_process.py")


class Call(NamedTuple):
    """A call that a process reported: its key and user, and when it began and ended."""

    key: str
    user: str
    began: float
    ended: float


class Processes:
    """Processes that make limited calls without end, and the calls that they reported."""

    def __init__(self, url: str, limit: dict[str, Any]) -> None:
        self._words = [url, json.dumps(limit), *map(str, (KEYS, USERS, CALL_S, CALLERS))]
        self.calls: list[Call] = []
        self.ready = 0
        self._running = [self._start() for _ in range(PROCESSES)]

    def _start(self) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, _PROGRAM, *self._words], stdout=subprocess.PIPE, text=True, cwd=Path.cwd()
        )

        def read() -> None:
            assert process.stdout is not None
            with process.stdout as lines:
                for line in lines:
                    words = line.split()
                    if words == ["ready"]:
                        self.ready += 1
                    elif len(words) == 4 and line.endswith("\n"):  # the last line of a killed process is cut
                        self.calls.append(Call(words[0], words[1], float(words[2]), float(words[3])))

        threading.Thread(target=read, daemon=True).start()
        return process

    def replace(self, number: int) -> None:
        self._running[number].kill()
        self._running[number].wait()
        self._running[number] = self._start()

    def stop(self) -> None:
        for process in self._running:
            process.kill()
            process.wait()


def run_processes(url: str, limit: dict[str, Any]) -> tuple[list[Call], float]:
    """Let the processes call for a while, with kills in between; return their calls and the time at which
    all were ready."""
    drawn = random.Random(7)
    processes = Processes(url, limit)
    try:
        until = time.monotonic() + 100
        while processes.ready < PROCESSES:
            assert time.monotonic() < until, "a process did not begin"
            time.sleep(0.05)
        began = time.time()
        for _ in range(KILLS):
            time.sleep(SECONDS / (KILLS + 1))
            processes.replace(drawn.randrange(PROCESSES))
        time.sleep(SECONDS / (KILLS + 1))
    finally:
        processes.stop()
    time.sleep(0.5)  # the last lines are read
    return processes.calls, began


def assert_fair(calls: list[Call]) -> None:
    """Assert that no user of a key has less than half of an equal share."""
    users = Counter(call.user for call in calls)
    assert len(users) == USERS
    assert min(users.values()) * USERS * 2 >= len(calls), users


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_processes_are_never_above_a_concurrency(tmp_path: Path) -> None:
    most = 8
    calls, began = run_processes(f"sqlite:///{tmp_path / 'limits.db'}", {"concurrency": most})
    for key in map(str, range(KEYS)):
        of_key = [call for call in calls if call.key == key]
        # At one moment ends come before beginnings.
        changes = sorted(
            [(call.began, 1) for call in of_key] + [(call.ended, -1) for call in of_key],
            key=lambda change: (change[0], change[1]),
        )
        under_way = highest = 0
        for _, change in changes:
            under_way += change
            highest = max(highest, under_way)
        assert highest <= most
        assert_fair([call for call in of_key if call.began >= began])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_processes_are_never_above_a_rate(tmp_path: Path) -> None:
    rate, burst = 1200, 20
    calls, began = run_processes(f"sqlite:///{tmp_path / 'limits.db'}", {"rate": rate, "burst": burst})
    for key in map(str, range(KEYS)):
        of_key = [call for call in calls if call.key == key]
        begins = sorted(call.began for call in of_key)
        # In no span of time do more begin than the burst, and what the rate gives for the span. A process
        # that waits for a processor begins a call a little after its permit was there.
        lowest = 0.0
        for number, moment in enumerate(begins):
            given = number - (moment - begins[0]) * rate / 60
            lowest = min(lowest, given)
            assert given - lowest + 1 <= burst + 2
        assert_fair([call for call in of_key if call.began >= began])
