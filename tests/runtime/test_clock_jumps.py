"""A host's clock is set by an hour in the middle of its runs: nothing is run twice, lost or held up.

What jumps is what the process takes for the time, and with it SQLite's clock, which is its host's; the clocks
of other databases go on.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

import perdure
from perdure.database.opening import open_database
from perdure.runtime import Runtime, Ticket
from tests.backends import BACKENDS, EMPTY
from tests.runtime import jumping
from tests.runtime.graphs import WITHIN_S, eventually

HOUR_S = 3600
FRAGMENTS = 20

pytestmark = [pytest.mark.timeout(240), pytest.mark.slow]


@pytest.mark.parametrize("jump", [HOUR_S, -HOUR_S])
@pytest.mark.parametrize("backend", [name for name in BACKENDS if name != "memory"])
def test_a_clock_that_is_set_while_runs_are_under_way_changes_nothing(
    backend: str, jump: int, tmp_path: Path
) -> None:
    journal = tmp_path / "journal"
    journal.touch()
    context = get_context("forkserver")
    context.set_forkserver_preload([jumping.__name__])
    with EMPTY[backend]() as url:
        open_database(url, migrate=True).close()
        pipes = [context.Pipe() for _ in range(2)]
        workers = [
            context.Process(target=jumping.work, args=(url, journal, pipe[1], dict(os.environ)), daemon=True)
            for pipe in pipes
        ]
        for worker in workers:
            worker.start()

        def ordered(worker: int, order: int | None) -> None:
            pipes[worker][0].send(order)

        def answered(worker: int) -> None:
            assert pipes[worker][0].poll(WITHIN_S), "a worker did not answer"
            pipes[worker][0].recv()

        for n in range(2):
            answered(n)

        def jumped() -> None:
            ordered(0, jump)
            answered(0)

        try:
            asyncio.run(asyncio.wait_for(_talk(url, journal, jumped), WITHIN_S))
        finally:
            for n, worker in enumerate(workers):
                ordered(n, None)
                worker.join(WITHIN_S)
        assert [worker.exitcode for worker in workers] == [0, 0]
        runs = Counter(journal.read_text().splitlines())
        assert set(runs.values()) == {1}, "a step was run twice"


@pytest.mark.parametrize("jump", [HOUR_S, -HOUR_S])
def test_a_process_that_starts_once_the_clock_was_set_takes_no_run_from_one_at_work(
    jump: int, tmp_path: Path
) -> None:
    journal = tmp_path / "journal"
    journal.touch()
    with EMPTY["sqlite"]() as url:
        open_database(url, migrate=True).close()
        workers: list[tuple[BaseProcess, Connection]] = []

        def later() -> None:
            for _, orders in workers:
                orders.send(jump)
                _answer(orders)
            workers.append(_worker(url, journal, jump))

        workers += [_worker(url, journal), _worker(url, journal)]
        try:
            asyncio.run(asyncio.wait_for(_talk(url, journal, later), WITHIN_S))
        finally:
            for worker, orders in workers:
                orders.send(None)
                worker.join(WITHIN_S)
        assert [worker.exitcode for worker, _ in workers] == [0, 0, 0]
        runs = Counter(journal.read_text().splitlines())
        assert set(runs.values()) == {1}, "a step was run twice"


@pytest.mark.parametrize("jump", [HOUR_S, -HOUR_S])
def test_the_run_of_a_process_that_died_is_taken_over_in_time_although_the_clock_was_set(
    jump: int, tmp_path: Path
) -> None:
    journal = tmp_path / "journal"
    journal.touch()

    async def main(url: str) -> None:
        async with (
            perdure.connect(url) as database,
            Runtime(database, jumping.graph(), settings=jumping.SETTINGS, works=False) as front,
        ):
            worker, orders = await asyncio.to_thread(_worker, url, journal)
            tickets = [await front.accept(f"plain {n}", f"before {n}") for n in range(6)]
            await eventually(lambda: "first before" in journal.read_text())
            worker.kill()
            orders.close()
            tickets.append(await front.accept("plain 0", "after"))
            heir, orders = await asyncio.to_thread(_worker, url, journal, jump)
            for ticket in tickets:
                assert (await front.wait(ticket, WITHIN_S)).state == "done"
            orders.send(None)
            await asyncio.to_thread(heir.join, WITHIN_S)

    with EMPTY["sqlite"]() as url:
        open_database(url, migrate=True).close()
        asyncio.run(asyncio.wait_for(main(url), WITHIN_S))


def _worker(url: str, journal: Path, ahead: float = 0.0) -> tuple[BaseProcess, Connection]:
    """A process that works, on a host whose clock is ``ahead``."""
    context = get_context("forkserver")
    context.set_forkserver_preload([jumping.__name__])
    ours, theirs = context.Pipe()
    given = (url, journal, theirs, dict(os.environ), ahead)
    worker = context.Process(target=jumping.work, args=given, daemon=True)
    worker.start()
    _answer(ours)
    return worker, ours


def _answer(orders: Connection) -> None:
    assert orders.poll(WITHIN_S), "a worker did not answer"
    orders.recv()


async def _talk(url: str, journal: Path, jumped: Callable[[], None]) -> None:
    """Messages of every kind before and after the jump; each is answered within the time of the test."""
    async with (
        perdure.connect(url) as database,
        Runtime(database, jumping.graph(), settings=jumping.SETTINGS, works=False) as front,
    ):
        tickets: list[Ticket] = []
        for when in ("before", "after"):
            tickets += [await front.accept(f"plain {n}", f"{when} plain {n}") for n in range(6)]
            tickets += [await front.accept(f"quiet {n}", f"{when} quiet {n}", debounce=1.5) for n in range(3)]
            given = {"messages": [{"role": "user", "content": f"{when} delayed"}]}
            tickets.append(await front.submit("delayed", given, delay=2.0))
            if when == "before":
                await eventually(lambda: "first before plain" in journal.read_text())
                await asyncio.to_thread(jumped)
        stream = [await _said(front, f"stream {number}") for number in range(FRAGMENTS)]
        tickets += stream
        for ticket in tickets:
            assert (await front.wait(ticket, WITHIN_S)).state == "done"
        runs = {(await front.wait(ticket, 1)).id for ticket in stream}
        assert len(runs) > 1, "the stream was not taken before its end"


async def _said(front: Runtime, text: str) -> Ticket:
    ticket = await front.accept("stream", text, debounce=1.0, max_wait=2.0)
    await asyncio.sleep(0.2)
    return ticket
