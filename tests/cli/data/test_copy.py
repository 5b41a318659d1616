"""A copy merges the store and the lists of servers, as a shell sees it."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

import perdure
from perdure.database.base import handle_of
from perdure.engine.queue import crons
from tests.cli.test_moving import Run, database, run

__all__ = ["run"]
FRESH = count(1 << 30)


def fill(db: perdure.SyncDatabase, name: str, due_at: int | None) -> None:
    """An item and a cron of a name, and an item "both"."""
    db.store().put(("u",), name, {"n": 1})
    db.store().put(("u",), "both", {"n": name})
    handle_of(db).run(crons.create(crons.place(""), name, crons.Due({}, due_at), 1, next(FRESH)))


@pytest.mark.parametrize("due_at", [10, None])
def test_what_only_the_target_has_stays_and_is_counted(run: Run, tmp_path: Path, due_at: int | None) -> None:
    source = database(tmp_path / "a.db", fill=lambda db: fill(db, "ours", due_at))
    target = database(tmp_path / "b.db", fill=lambda db: fill(db, "theirs", 20))
    code, out, err = run("copy", source, target, "--dry-run", "--replace")
    assert code == 0, err
    assert "store 'u': would be replaced, 2 items, 1 only at the target stay" in out
    assert "a server's list of crons: would be copied, 1 documents, 1 only at the target stay" in out
    assert ("1 cron of the source would then be in both databases" in err) == (due_at is not None)
    code, out, err = run("copy", source, target, "--replace")
    assert code == 0, err
    assert "store 'u': replaced, 2 items, 1 only at the target stay" in out
    assert ("1 cron of the source is in both databases" in err) == (due_at is not None)
    with perdure.connect_sync(target) as db:
        items = {each.key: each.value["n"] for each in db.store().search(("u",))}
        assert items == {"both": "ours", "ours": 1, "theirs": 1}
        assert [c.id for c in handle_of(db).run(crons.read_all_crons(crons.place("")))] == ["ours", "theirs"]
    code, out, err = run("copy", source, target)
    assert code == 0, err
    assert "there already" in out
