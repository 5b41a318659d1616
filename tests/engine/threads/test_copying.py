"""A copy of a thread is whole when it is acknowledged, whatever happens in the middle of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import perdure
from perdure import admin
from perdure.database.base import handle_of
from perdure.errors import Conflict, NotFound
from perdure.model.ops import Commit, Delete
from perdure.model.program import ask
from perdure.model.records import CHECKPOINT, GC, KINDS, SEAL, Partition, Record
from tests.engine.transfer.test_transfer import (
    Crossed,
    Cut,
    Hooked,
    cut_at_arrival,
    database,
    grow,
    in_memory,
    is_absent,
    rows,
)
from tests.langgraph.session import config

TARGET = Partition("", "copy")


def crossed(step: int, act: Callable[[perdure.SyncDatabase], object]) -> Crossed:
    """A database with the threads "one" and "two" where something happens in the middle of the next copy."""
    out = Crossed(step, act)
    grow(out.clean, "one", 3)
    grow(out.clean, "two", 2)
    return out


def contents(db: perdure.SyncDatabase) -> list[tuple[Record, ...]]:
    """All of the target but who claims it."""
    return [rows(db, TARGET, kind) for kind in KINDS if kind is not SEAL]


def steps() -> range:
    alone = crossed(0, str)
    alone.crossed.checkpointer().copy_thread("one", "copy")
    assert alone.writes > 5
    return range(1, alone.writes + 1)


def test_a_copy_whose_target_is_removed_meanwhile_is_whole_or_refused() -> None:
    for step in steps():
        db = crossed(step, lambda clean: clean.checkpointer().delete_thread("copy"))
        if step > 1:
            with pytest.raises(Conflict, match="'copy' already has checkpoints, or is half a copy"):
                db.crossed.checkpointer().copy_thread("one", "copy")
            assert is_absent(db.clean, TARGET)
            assert not any(rows(db.clean, TARGET, kind) for kind in KINDS), step
            db.clean.checkpointer().copy_thread("one", "copy")
        else:
            db.crossed.checkpointer().copy_thread("one", "copy")
        assert db.clean.digest("copy").agrees(db.clean.digest("one"))
        assert db.clean.fsck("copy") == []


def test_of_two_copies_to_one_name_no_more_than_one_is_acknowledged_and_that_is_whole() -> None:
    second_won = 0
    for step in steps():
        won: list[str] = []

        def cross(clean: perdure.SyncDatabase, won: list[str] = won) -> None:
            copy(clean, "two", won)

        db = crossed(step, cross)
        copy(db.crossed, "one", won)
        assert len(won) <= 1, step
        if won:
            assert db.clean.digest("copy").agrees(db.clean.digest(won[0])), step
            assert db.clean.fsck("copy") == []
        else:
            assert is_absent(db.clean, TARGET)
        second_won += won == ["two"]
    assert second_won


def copy(db: perdure.SyncDatabase, thread: str, won: list[str]) -> None:
    try:
        db.checkpointer().copy_thread(thread, "copy")
    except Conflict:
        return
    won.append(thread)


@pytest.mark.parametrize("held", ["half a copy", "a pending write"])
def test_a_copy_onto_what_is_there_changes_nothing(held: str) -> None:
    source, db = in_memory(), in_memory()
    grow(source, "copy", 3)
    grow(db, "one", 2)
    if held == "half a copy":
        source.tag("copy", "approved")
        with pytest.raises(Cut):
            admin.move(source, TARGET, database(Hooked(handle_of(db).driver, cut_at_arrival)))
    else:
        at = config("copy", checkpoint_ns="", checkpoint_id="9" * 32)
        db.checkpointer().put_writes(at, [("said", 1)], "task")
    before = contents(db)
    assert any(before)
    with pytest.raises(Conflict, match="'copy' already has checkpoints, or is half a copy"):
        db.checkpointer().copy_thread("one", "copy")
    assert contents(db) == before
    db.checkpointer().delete_thread("copy")
    db.checkpointer().copy_thread("one", "copy")
    assert db.digest("copy").agrees(db.digest("one"))
    assert db.fsck("copy") == []


def test_a_thread_that_an_early_copy_left_without_a_generation_is_there() -> None:
    db = in_memory()
    grow(db, "one", 2)
    db.checkpointer().copy_thread("one", "copy")
    there = db.digest("copy")
    handle_of(db).run(ask(Commit(TARGET, (Delete(GC, ()),))))
    saver = db.checkpointer()
    latest = saver.get_tuple(config("copy"))
    assert latest is not None
    assert len(list(saver.list(config("copy")))) == len(rows(db, TARGET, CHECKPOINT))
    assert db.fsck("copy") == []
    grow(db, "copy", 1)
    assert len(rows(db, TARGET, CHECKPOINT)) > there.checkpoints
    assert rows(db, TARGET, GC)
    assert db.fsck("copy") == []


def test_a_thread_that_has_not_arrived_is_neither_copied_nor_forked_nor_repaired() -> None:
    source, db = in_memory(), in_memory()
    grow(source, "copy", 2)
    with pytest.raises(Cut):
        admin.move(source, TARGET, database(Hooked(handle_of(db).driver, cut_at_arrival)))
    before = contents(db)
    checkpoint = rows(db, TARGET, CHECKPOINT)[0].key[1]
    with pytest.raises(NotFound, match="'copy' has not arrived"):
        db.checkpointer().copy_thread("copy", "another")
    with pytest.raises(NotFound, match="'copy' has not arrived"):
        db.fork("copy", checkpoint)
    (finding,) = db.fsck("copy")
    assert (finding.repairable, "repeat the import" in finding.advice) == (False, True)
    repaired = db.repair("copy")
    assert (repaired.fixed, repaired.left) == ((), (finding,))
    assert contents(db) == before
    admin.move(source, TARGET, db)
    assert db.fsck("copy") == []
