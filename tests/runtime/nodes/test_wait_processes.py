"""Deadlines, sleeps and signals over processes that are killed as these fall due, one of them with a clock
that is an hour ahead."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from perdure.model.records import EVENT, INBOX, LANE, RUN
from perdure.model.runs.messages import DONE, Message, Run
from perdure.model.runs.waits import BY_WAIT
from perdure.runtime import Runtime
from tests.runtime.graphs import Storage, stored, values
from tests.runtime.nodes.wait_process import TERMS, graph

FULL = os.environ.get("PERDURE_WAITS") == "full"
THREADS, KILLS = (200, 40) if FULL else (24, 6)
HOUR_S = 3600.0
STEP_US = 1_500_000

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


class Workers:
    """Two worker processes; the clock of the second one is an hour ahead."""

    def __init__(self, url: str, ahead: float) -> None:
        self._url, self._ahead = url, (0.0, ahead)
        self._running = [self._start(number) for number in range(2)]

    def _start(self, number: int) -> subprocess.Popen[str]:
        words = [
            sys.executable,
            "-m",
            "tests.runtime.nodes.wait_process",
            self._url,
            str(self._ahead[number]),
        ]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=Path.cwd())
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    def replace(self, number: int) -> None:
        """Kill one, and start it again."""
        self._kill(number)
        self._running[number] = self._start(number)

    def _kill(self, number: int) -> None:
        process = self._running[number]
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()

    def stop(self) -> None:
        for number in range(2):
            self._kill(number)


@pytest.mark.parametrize(("backend", "ahead"), [("sqlite", 0.0), ("postgresql", HOUR_S)])
def test_each_wait_ends_once_and_in_time_whatever_is_killed(backend: str, ahead: float) -> None:
    names = [f"t{n}" for n in range(THREADS)]
    signalled = set(names[::3])

    async def main(storage: Storage) -> None:
        database, drawn = storage.database(), random.Random(7)
        looking = Runtime(database, graph(), settings=TERMS, works=False)
        async with looking as runtime:
            workers = await asyncio.to_thread(Workers, storage.url, ahead)
            try:
                for name in names:
                    await runtime.submit(name, {})
                for name in signalled:
                    await runtime.signal(name, "paid", "paid", key=name)
                for _ in range(KILLS):
                    await asyncio.sleep(drawn.uniform(0.2, 1.0))
                    await asyncio.to_thread(workers.replace, drawn.randrange(2))
                await _until_done(runtime, names)
            finally:
                await asyncio.to_thread(workers.stop)
        for name in names:
            _check(storage, name)
            end = "paid" if name in signalled else "unpaid"
            assert (await values(database, graph(), name))["notes"] == ["no", "slept", end], name

    with stored(backend) as storage:
        asyncio.run(main(storage))


async def _until_done(runtime: Runtime, names: list[str]) -> None:
    async with asyncio.timeout(400):
        for name in names:
            while not (runs := await runtime.runs(name, limit=1)) or runs[0].state != DONE:  # noqa: ASYNC110
                await asyncio.sleep(0.1)


def _check(storage: Storage, name: str) -> None:
    """Each wait has ended once, and those of a deadline not before it, by the database's clock."""
    runs = {run.id: run for run in map(Run.read, storage.rows(name, RUN))}
    given = [m for m in map(Message.read, storage.rows(name, INBOX)) if BY_WAIT in m.options]
    assert len(given) == 3, name
    asked = sorted(run.updated_at for run in runs.values() if run.state != DONE)
    for ended, message in zip(asked[:2], given[:2], strict=True):
        assert message.accepted_at - ended >= STEP_US, name
    reminders = [row for row in storage.rows(name, EVENT) if b"\treminder\t" in row.body]
    assert len(reminders) <= 1, name
    assert all(row.key[0] != "waits" for row in storage.rows(name, LANE)), name
