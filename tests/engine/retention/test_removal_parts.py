"""A thread of many namespaces is pruned in several commits, each of them guarded."""

from __future__ import annotations

from typing import Any

import pytest

import perdure
from perdure.database.base import handle_of
from perdure.database.opening import open_database
from perdure.engine.checks.fsck_report import Damage
from perdure.engine.retention import removal
from perdure.errors import Unavailable
from perdure.model.ops import Commit, Put
from perdure.model.program import Effect
from perdure.model.records import CHECKPOINT, DOCUMENT, HEAD, OF_THREAD, WRITE, Partition
from perdure.storage.memory import MemoryDriver
from perdure.storage.port import CommitLimits
from perdure.testing.conformance.backend import at, put
from perdure.testing.faults import Fault, FaultyDriver, fail
from tests.engine.queue.queues import always
from tests.engine.transfer.test_transfer import Hooked, Narrow, rows

LIMITS = CommitLimits(ops=99, bytes=2_500_000)
"""Those of DynamoDB."""

ADA = Partition("", "ada")
TURNS = 130


def filled(turns: int = TURNS) -> MemoryDriver:
    """A thread in which every turn has called a subgraph, whose namespace is its own."""
    memory = MemoryDriver()
    db = open_database("memory://", wrap=lambda own: memory)
    saver = db.checkpointer()
    before: str | None = None
    for n in range(turns):
        name = f"{n:08}"
        put(saver, at(before, thread="ada"), name)
        inner = at(thread="ada", namespace=f"node:{n:08}")
        put(saver, inner, f"i{n:07}", root=name)
        before = name
    return memory


def opened(memory: MemoryDriver, wrap: Any = lambda driver: driver) -> perdure.SyncDatabase:
    narrow = Narrow(memory, LIMITS)
    return open_database("memory://", wrap=lambda own: wrap(narrow))


def count(db: perdure.SyncDatabase) -> dict[str, int]:
    return {kind.name: len(rows(db, ADA, kind)) for kind in (HEAD, CHECKPOINT, WRITE)}


@pytest.mark.parametrize("keep", [1, 40, 120])
def test_a_thread_with_more_heads_than_a_commit_has_room_is_pruned(keep: int) -> None:
    db = opened(filled())
    assert count(db) == {"head": TURNS + 1, "checkpoint": 2 * TURNS, "write": 0}
    db.checkpointer().prune(["ada"], keep_last=keep)
    assert count(db) == {"head": keep + 1, "checkpoint": 2 * keep, "write": 0}
    assert db.fsck("ada") == []
    newest = db.checkpointer().get_tuple(at(thread="ada"))
    assert newest is not None
    assert newest.checkpoint["id"] == f"{TURNS - 1:08}"


def test_a_prune_that_is_cut_short_anywhere_leaves_a_sound_thread_and_is_finished_by_the_next() -> None:
    step = 0
    while True:
        step += 1
        memory = filled(60)
        few = CommitLimits(ops=20, bytes=LIMITS.bytes)
        fault = Fault(step, fail("unavailable"), "after")
        narrow = Narrow(memory, few)
        db = open_database("memory://", wrap=always(FaultyDriver(narrow, fault, counts=[Commit])))
        sound = open_database("memory://", wrap=always(narrow))
        try:
            db.checkpointer().prune(["ada"], keep_last=5)
        except Unavailable:
            assert sound.fsck("ada") == [], step
            assert all(
                len(list(sound.checkpointer().list(at(thread="ada", namespace=f"node:{n:08}")))) == 1
                for n in range(55, 60)
            )
        else:
            break
        sound.checkpointer().prune(["ada"], keep_last=5)
        assert count(sound) == {"head": 6, "checkpoint": 10, "write": 0}
    assert step > 8


def test_a_checkpoint_that_comes_between_two_parts_keeps_its_parent() -> None:
    """A fork in a subgraph from what the next part would remove."""
    memory = filled(60)
    sound = open_database("memory://", wrap=lambda own: memory)
    commits = 0

    def fork(effect: Effect[Any]) -> None:
        nonlocal commits
        if not isinstance(effect, Commit):
            return
        commits += 1
        if commits == 2:
            saver = sound.checkpointer()
            place = at("00000003", thread="ada")
            put(saver, place, "f0000001", source="fork")

    narrow = Narrow(memory, CommitLimits(ops=20, bytes=LIMITS.bytes))
    db = open_database("memory://", wrap=lambda own: Hooked(narrow, fork))
    db.checkpointer().prune(["ada"], keep_last=20)
    assert commits > 2
    assert sound.fsck("ada") == []
    head = sound.checkpointer().get_tuple(at(thread="ada"))
    assert head is not None
    assert head.checkpoint["id"] == "f0000001"


def test_a_small_plan_is_one_commit() -> None:
    memory = filled(10)
    commits: list[Commit] = []

    def note(effect: Effect[Any]) -> None:
        if isinstance(effect, Commit):
            commits.append(effect)

    db = open_database("memory://", wrap=lambda own: Hooked(memory, note))
    handle = handle_of(db)
    keep = removal.Keep(2)
    handle.run(removal.prune(ADA, keep, handle.digest, handle.budget))
    assert sum(any(op.kind is CHECKPOINT for op in commit.ops) for commit in commits) == 1


def test_a_copy_has_more_heads_than_a_commit_has_room() -> None:
    db = opened(filled())
    db.checkpointer().copy_thread("ada", "copy")
    assert db.digest("copy").agrees(db.digest("ada"))
    assert db.fsck("copy") == []


def kept_by_its_document(turns: int) -> MemoryDriver:
    """A thread with a document and a subgraph that keeps its state from run to run."""
    memory = MemoryDriver()
    db = open_database("memory://", wrap=lambda own: memory)
    saver = db.checkpointer()
    before: str | None = None
    for n in range(turns):
        name = f"{n:08}"
        put(saver, at(before, thread="ada"), name)
        put(saver, at(before and f"i{before[1:]}", thread="ada", namespace="sub"), f"i{n:07}", root=name)
        before = name
    handle_of(db).driver.perform(Commit(ADA, (Put(DOCUMENT, OF_THREAD, {}, b"\x80"),)))
    return memory


@pytest.mark.parametrize(("turns", "ops"), [(2, 20), (12, 9), (12, 40)])
def test_a_removal_that_is_cut_short_anywhere_leaves_a_sound_thread_and_no_memory_of_a_removed_one(
    turns: int, ops: int
) -> None:
    step, is_cut = 0, True
    while is_cut:
        step, is_cut = step + 1, False
        fault = Fault(step, fail("unavailable"), "after")
        narrow = Narrow(kept_by_its_document(turns), CommitLimits(ops=ops, bytes=LIMITS.bytes))
        db = open_database("memory://", wrap=always(FaultyDriver(narrow, fault, counts=[Commit])))
        sound = open_database("memory://", wrap=always(narrow))
        try:
            db.checkpointer().prune(["ada"], strategy="delete")
        except Unavailable:
            is_cut = True
            damage = {finding.kind for finding in sound.fsck("ada")}
            assert not damage & {Damage.HOLE, Damage.HEAD, Damage.ORDER}, step
            saver = sound.checkpointer()
            if saver.get_tuple(at(thread="ada")) is None:
                assert saver.get_tuple(at(thread="ada", namespace="sub")) is None, step
        sound.checkpointer().prune(["ada"], strategy="delete")
        assert count(sound) == {"head": 0, "checkpoint": 0, "write": 0}, step
    assert step > 1
