"""Of the loops that loaded one head, the first that writes there gets every write, the others none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import empty_checkpoint

from perdure import HeadConflict, PerdureSaver, SyncDatabase
from tests.langgraph.savers import DRIVERS, opened
from tests.langgraph.session import config

ROOT = config(checkpoint_ns="")


@pytest.fixture(params=DRIVERS)
def db(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SyncDatabase]:
    with opened(request.param, tmp_path) as database:
        database.checkpointer().put(
            ROOT, empty_checkpoint(), {"source": "input", "step": -1, "parents": {}}, {}
        )
        yield database


def load(saver: PerdureSaver) -> RunnableConfig:
    found = saver.get_tuple(ROOT)
    assert found is not None
    return found.config


def advance(saver: PerdureSaver, at: RunnableConfig) -> Any:
    return saver.put(at, empty_checkpoint(), {"source": "loop", "step": 0, "parents": {}}, {})


def written(db: SyncDatabase) -> list[tuple[str, str, Any]]:
    found = db.checkpointer().get_tuple(ROOT)
    assert found is not None
    return found.pending_writes or []


def test_a_rival_may_not_write_another_task_either(db: SyncDatabase) -> None:
    left, right = db.checkpointer(), db.checkpointer()
    mine, theirs = load(left), load(right)
    left.put_writes(mine, [("x", 1)], "task one")
    with pytest.raises(HeadConflict, match="went on from checkpoint"):
        right.put_writes(theirs, [("x", 2)], "task two")
    with pytest.raises(HeadConflict):
        advance(right, theirs)
    left.put_writes(mine, [("x", 3)], "task three")
    assert written(db) == [("task one", "x", 1), ("task three", "x", 3)]
    assert len(right.conflicts("t")) == 1
    advance(left, mine)
    assert left.conflicts("t") == ()


def test_a_put_on_a_head_that_a_rival_claimed_has_lost(db: SyncDatabase) -> None:
    left, right = db.checkpointer(), db.checkpointer()
    mine, theirs = load(left), load(right)
    left.put_writes(mine, [("x", 1)], "task")
    with pytest.raises(HeadConflict):
        advance(right, theirs)
    assert len(list(left.list(ROOT))) == 1


def test_a_write_that_comes_after_the_put_that_consumed_it_is_kept(db: SyncDatabase) -> None:
    """In the background, writes and the next checkpoint are stored in any order."""
    saver, reader = db.checkpointer(), db.checkpointer()
    at = load(saver)
    advance(saver, at)
    saver.put_writes(at, [("x", 1)], "task")
    found = reader.get_tuple(config(checkpoint_ns="", checkpoint_id=at["configurable"]["checkpoint_id"]))
    assert found is not None
    assert found.pending_writes == [("task", "x", 1)]
    assert saver.conflicts("t") == ()


def test_who_loads_later_takes_over_from_one_that_is_gone(db: SyncDatabase) -> None:
    gone, heir = db.checkpointer(), db.checkpointer()
    old = load(gone)
    gone.put_writes(old, [("x", 1)], "task one")
    new = load(heir)
    heir.put_writes(new, [("x", 2)], "task two")
    with pytest.raises(HeadConflict):
        gone.put_writes(old, [("x", 3)], "task three")
    advance(heir, new)
    assert len(list(heir.list(ROOT))) == 2


def test_where_forks_are_allowed_nobody_claims(db: SyncDatabase) -> None:
    left, right = (db.checkpointer(on_conflict="fork") for _ in range(2))
    mine, theirs = load(left), load(right)
    left.put_writes(mine, [("x", 1)], "task one")
    right.put_writes(theirs, [("x", 2)], "task two")
    advance(right, theirs)
    advance(left, mine)
    assert len(list(left.list(ROOT))) == 3
