"""``perdure tenants``, and the check of threads: as JSON, and for types."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import perdure
from perdure.runtime.agents.loading import find
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


GRAPH = """\
from dataclasses import dataclass
from typing import Any, TypedDict

from langgraph.graph import START, StateGraph


@dataclass
class Note:
    text: str


class Kept(TypedDict):
    note: Any


builder = StateGraph(Kept).add_node("write", lambda state: {"note": Note("what a user wrote")})
builder.add_edge(START, "write")
graph = builder.compile()
"""


def test_threads_are_named_whose_state_the_graph_cannot_build(shell: Shell, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 't.db'}"
    (tmp_path / "before_rename.py").write_text(GRAPH)
    (tmp_path / "after_rename.py").write_text(GRAPH.replace("Note", "Remark"))
    with perdure.connect_sync(url, migrate=True) as db:
        builder = find("./before_rename.py:builder", root=tmp_path).found
        graph = builder.compile(checkpointer=db.checkpointer())
        graph.invoke({"note": 1}, {"configurable": {"thread_id": "ada"}})
    # Another process has imported only what it uses.
    del sys.modules["before_rename"]
    converse(tmp_path / "t.db", "bob", 1)
    assert shell("fsck", "--db", url).returncode == 0
    done = shell("fsck", "--types", "./after_rename.py:graph", "--db", url)
    assert done.returncode == 1
    assert "thread 'ada'" in done.stderr
    assert "Note" in done.stderr
    assert "channel 'note'" in done.stderr
    assert "bob" not in done.stderr
    assert "what a user wrote" not in done.stderr
    (found,) = shell("fsck", "--types", "./after_rename.py:graph", "--json", "--db", url).stdout.splitlines()
    assert json.loads(found)["kind"] == "types"
    assert shell("fsck", "--types", "./before_rename.py:graph", "--db", url).returncode == 0
    (tmp_path / "perdure.toml").write_text('schema = "./renaming.py:schema"\n')
    renaming = (
        "from perdure.schema import Schema, rename_type\n\nschema = Schema(2, [rename_type(2, {}, {})])\n"
    )
    names = '"before_rename.Note"', '"after_rename.Remark"'
    (tmp_path / "renaming.py").write_text(renaming.format(*names))
    assert shell("fsck", "--types", "./after_rename.py:graph", "--db", url).stderr == ""
