"""``perdure tenants``, and the check of threads as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import perdure
from tests.cli.test_commands import Shell, converse, shell
from tests.database.test_database import talk

__all__ = ["shell"]


def test_tenants_are_listed_with_their_threads(shell: Shell, tmp_path: Path) -> None:
    converse(tmp_path / "t.db", "ada", 1)
    with perdure.connect_sync(f"sqlite:///{tmp_path / 't.db'}", tenant="acme") as db:
        talk(db, "one", "x")
        talk(db, "two", "x")
    done = shell("tenants", "ls", "--db", "sqlite:///t.db")
    assert done.stdout.split() == ["threads", "tenant", "1", "''", "2", "acme"]
    found = shell("tenants", "ls", "--db", "sqlite:///t.db", "--json").stdout.splitlines()
    assert [json.loads(line) for line in found] == [
        {"tenant": "", "threads": 1},
        {"tenant": "acme", "threads": 2},
    ]


def test_findings_are_json(shell: Shell, tmp_path: Path) -> None:
    converse(tmp_path / "t.db", "ada", 2)
    db = ("--db", "sqlite:///t.db")
    sound = shell("fsck", "--json", *db)
    assert (sound.returncode, sound.stdout) == (0, "")
    with perdure.connect_sync(f"sqlite:///{tmp_path / 't.db'}") as database:
        second = database.timeline("ada")[2].checkpoint_id
    import sqlite3

    with sqlite3.connect(tmp_path / "t.db") as connection:
        connection.execute("DELETE FROM perdure_checkpoint WHERE checkpoint_id = ?", (second,))
    damaged = shell("fsck", "--json", *db)
    assert damaged.returncode == 1
    (hole,) = [each for each in map(json.loads, damaged.stdout.splitlines()) if each["kind"] == "hole"]
    assert hole["thread_id"] == "ada"
    assert hole["repaired"] is False
