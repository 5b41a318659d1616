"""A host's clock is set by an hour in the middle of its runs: nothing is run twice, lost or held up.

What jumps is what the process takes for the time; the database's clock, SQLite's too, goes on.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path

import pytest

import perdure
from perdure.database import open_database
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
