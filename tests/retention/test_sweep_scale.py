"""A sweep of many threads costs a worker its share of a processor, and memory that does not grow with them.

Covers perdure.retention.sweeper, perdure.engine.retention.sweep.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
import tracemalloc
from pathlib import Path

import pytest

import perdure
from perdure import Retention
from perdure.database.base import handle_of
from perdure.engine.retention.sweep import RetentionProgress, RetentionResult
from perdure.model.ops import Commit, Expect, Fetch, Put, Range
from perdure.model.records import BLOB, CHECKPOINT, CHUNK, GC, HEAD, PACK, WRITE, Partition
from perdure.retention.sweeper import RetentionOptions
from tests.langgraph import graphs
from tests.langgraph.session import config

FULL = os.environ.get("PERDURE_CHAOS") == "full"
THREADS = 50_000 if FULL else 160
SHARE = 0.05
LONG = 10
"""One thread of so many has checkpoints that the policy does not keep."""
KEPT = 3
KINDS = (HEAD, GC, CHECKPOINT, WRITE, CHUNK, BLOB, PACK)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A file with many threads, and the number of checkpoints that a sweep is to remove."""
    path = tmp_path_factory.mktemp("large") / "threads.db"
    with perdure.connect_sync(f"sqlite:///{path}", migrate=True) as db:
        chat = graphs.chat(db.checkpointer())
        for n, turns in enumerate((1, 4)):
            for turn in range(turns):
                chat.invoke(graphs.message(turn), config(f"original {n}"))
        driver = handle_of(db).driver
        commits: list[tuple[Put, ...]] = []
        surplus: list[int] = []
        for n in range(2):
            found = driver.perform(Fetch(Partition("", f"original {n}"), tuple(map(Range, KINDS))))
            commits.append(
                tuple(
                    Put(each.kind, each.key, each.fields, each.body, Expect.ABSENT, each.version)
                    for answer in found
                    for each in answer
                )
            )
            surplus.append(len(found[KINDS.index(CHECKPOINT)]) - KEPT)
            db.checkpointer().delete_thread(f"original {n}")

        async def copies() -> None:
            for at in range(0, THREADS, 500):
                numbers = range(at, min(at + 500, THREADS))
                made = (Commit(Partition("", f"t{n:06}"), commits[n % LONG == 0]) for n in numbers)
                await asyncio.gather(*map(driver.aperform, made))

        asyncio.run(copies())
    assert surplus[0] == 0
    return path, THREADS // LONG * surplus[1]


def swept(large: Path, folder: Path, options: RetentionOptions) -> RetentionResult:
    """Sweep a copy of the file to its end."""
    shutil.copy(large, folder / "threads.db")
    with perdure.connect_sync(
        f"sqlite:///{folder / 'threads.db'}", retention=Retention(keep_last=KEPT)
    ) as db:
        done = db.apply_retention(options)
        assert done is not None
        for thread in ("t000000", "t000001"):
            assert len(db.timeline(thread)) == KEPT
            assert db.fsck(thread) == []
        return done


@pytest.mark.timeout(14_400 if FULL else 600)
def test_it_costs_its_share_of_a_processor(
    large: tuple[Path, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = 0.0
    at_ends: list[tuple[float, float]] = []

    def pause(seconds: float) -> None:
        nonlocal pauses
        pauses += seconds

    def noted(state: RetentionProgress) -> None:
        at_ends.append((time.monotonic() + pauses, time.process_time()))

    # Its pauses are counted instead of waited for.
    monkeypatch.setattr(time, "sleep", pause)
    done = swept(large[0], tmp_path, RetentionOptions(share=SHARE, on_step=noted))
    assert (done.threads, done.checkpoints, done.failed) == (THREADS, large[1], 0)
    took, cost = (last - first for first, last in zip(at_ends[0], at_ends[-1], strict=True))
    print(f"{THREADS} threads in {took:.1f} s, {cost:.2f} s of a processor: {cost / took:.1%}")
    # The pause after the first step is counted and there is none after the last: a step is allowed for.
    assert cost <= SHARE * took + 2 * cost / (len(at_ends) - 1)


@pytest.mark.timeout(14_400 if FULL else 600)
def test_memory_does_not_grow_with_the_number_of_threads(large: tuple[Path, int], tmp_path: Path) -> None:
    peaks: list[int] = []

    def noted(state: RetentionProgress) -> None:
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.reset_peak()

    tracemalloc.start()
    try:
        done = swept(large[0], tmp_path, RetentionOptions(share=1.0, on_step=noted))
    finally:
        tracemalloc.stop()
    assert (done.threads, done.checkpoints, done.failed) == (THREADS, large[1], 0)
    early = max(peaks[: len(peaks) // 4])
    print(f"{THREADS} threads, {early:,} bytes at most in the first quarter, {max(peaks):,} in all")
    assert max(peaks) < 1.3 * early + 500_000
