"""Processes whose clocks disagree by hours take turns on one thread: ids say nothing about order."""

from __future__ import annotations

import os
from multiprocessing import get_context

import pytest

import perdure
from tests.backends import BACKENDS, EMPTY
from tests.langgraph import skewed
from tests.langgraph.session import config

FULL = os.environ.get("PERDURE_CHAOS") == "full"
PATIENCE = 120
"""Seconds until a process has started and answered: far more than that takes."""
CLOCKS = (-3600, 0, 3600, -1200)
"""Seconds by which each process is off."""


@pytest.mark.each_backend
@pytest.mark.parametrize("backend", [name for name in BACKENDS if name != "memory"])
def test_no_turn_is_lost_or_moved_by_a_wrong_clock(backend: str) -> None:
    turns = 500 if FULL else 200 if backend == "sqlite" else 32
    context = get_context("forkserver")
    context.set_forkserver_preload([skewed.__name__])  # what takes a process longest, done once
    with EMPTY[backend]() as url, perdure.connect_sync(url, migrate=True) as db:
        pipes = [context.Pipe() for _ in CLOCKS]
        workers = [
            context.Process(target=skewed.work, args=(url, seconds, pipe[1], dict(os.environ)), daemon=True)
            for seconds, pipe in zip(CLOCKS, pipes, strict=True)
        ]
        for worker in workers:
            worker.start()
        lengths: list[int] = []
        for turn in range(turns):
            mine = pipes[turn % len(pipes)][0]
            mine.send(turn)
            assert mine.poll(PATIENCE), f"turn {turn} was not answered"
            lengths.append(mine.recv())
        for mine, _ in pipes:
            mine.send(None)
        for worker in workers:
            worker.join(PATIENCE)
        assert [worker.exitcode for worker in workers] == [0] * len(workers)
        assert lengths == [2 * (turn + 1) for turn in range(turns)]

        saver = db.checkpointer()
        found = list(saver.list(config("t", checkpoint_ns="")))
        said = found[0].checkpoint["channel_values"]["said"]
        assert said == [text for n in range(turns) for text in (f"turn {n}", f"answer to turn {n}")]
        ids = [item.checkpoint["id"] for item in found]
        assert [
            item.parent_config and item.parent_config["configurable"]["checkpoint_id"] for item in found
        ] == [
            *ids[1:],
            None,
        ]
        # The clocks were wrong indeed: a saver that goes by ids would take another checkpoint for the latest.
        assert max(ids) != ids[0]
