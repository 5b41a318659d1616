"""Pending writes go with the checkpoints that are removed, in however many commits that is done."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.database.opening import open_database
from perdure.errors import Unavailable
from perdure.langgraph.saver import PerdureSaver
from perdure.model.ops import Commit, Delete
from perdure.model.program import Effect
from perdure.model.records import CHECKPOINT, HEAD, WRITE, Partition
from perdure.storage.memory import MemoryDriver
from perdure.storage.port import CommitLimits
from perdure.testing.conformance.backend import at, put
from perdure.testing.faults import Fault, FaultyDriver, fail
from tests.engine.queue.queues import always
from tests.engine.transfer.test_transfer import Hooked, Narrow, rows

ADA = Partition("", "ada")
FEW = CommitLimits(ops=8, bytes=2_500_000)


def turn(saver: PerdureSaver, n: int) -> None:
    """A checkpoint after the one before, and the writes of two tasks on it."""
    put(saver, at(f"{n - 1:08}" if n else None, thread="ada"), f"{n:08}")
    for task in ("a", "b"):
        saver.put_writes(at(f"{n:08}", thread="ada"), [("x", n)], f"{task}{n}")


def filled(turns: int = 9) -> MemoryDriver:
    memory = MemoryDriver()
    saver = open_database("memory://", wrap=lambda own: memory).checkpointer()
    for n in range(turns):
        turn(saver, n)
    return memory


def written(memory: MemoryDriver) -> set[str]:
    """Ids of the checkpoints that writes are stored on."""
    db = open_database("memory://", wrap=lambda own: memory)
    return {row.key[1] for row in rows(db, ADA, WRITE)}


def test_no_write_stays_of_a_prune_that_was_cut_short_anywhere() -> None:
    step, is_cut = 0, True
    while is_cut:
        step, is_cut = step + 1, False
        memory = filled()
        narrow, fault = Narrow(memory, FEW), Fault(step, fail("unavailable"), "after")
        db = open_database("memory://", wrap=always(FaultyDriver(narrow, fault, counts=[Commit])))
        try:
            db.checkpointer().prune(["ada"], keep_last=1)
        except Unavailable:
            is_cut = True
        sound = open_database("memory://", wrap=always(narrow))
        stored = {row.key[1] for row in rows(sound, ADA, CHECKPOINT)}
        assert written(memory) <= stored, step
        assert sound.fsck("ada") == [], step
        sound.checkpointer().prune(["ada"], keep_last=1)
        assert written(memory) == {"00000008"}, step
    assert step > 4


def test_no_write_stays_of_a_prune_beside_a_run() -> None:
    memory = filled()
    beside = open_database("memory://", wrap=lambda own: memory).checkpointer()
    removals = 0

    def run(effect: Effect[Any]) -> None:
        nonlocal removals
        if isinstance(effect, Commit) and any(isinstance(op, Delete) for op in effect.ops):
            removals += 1
            if removals == 4:
                turn(beside, 9)

    db = open_database("memory://", wrap=lambda own: Hooked(Narrow(memory, FEW), run))
    db.checkpointer().prune(["ada"], keep_last=1)
    assert removals > 4
    assert written(memory) == {row.key[1] for row in rows(db, ADA, CHECKPOINT)} == {"00000009"}


@pytest.mark.parametrize(
    ("checkpoint_id", "namespace", "stays"),
    [
        ("00000003", "", False),
        ("00000009", "", True),
        ("00000003", "node:1", False),
        ("00000009", "node:1", True),
    ],
)
def test_a_write_without_its_checkpoint_goes_unless_the_checkpoint_may_still_come(
    checkpoint_id: str, namespace: str, stays: bool
) -> None:
    memory = filled(5)
    db = open_database("memory://", wrap=lambda own: memory)
    saver = db.checkpointer()
    saver.prune(["ada"], keep_last=1)
    saver.put_writes(at(checkpoint_id, thread="ada", namespace=namespace), [("x", 1)], "early")
    saver.prune(["ada"], keep_last=1)
    there = {(row.key[0], row.key[1]) for row in rows(db, ADA, WRITE)}
    assert there == {("", "00000004"), *([(namespace, checkpoint_id)] if stays else [])}
    assert len(rows(db, ADA, HEAD)) == 1
