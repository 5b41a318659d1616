"""Whatever is lost of a thread, on every backend: what a repair calls sound stays sound, and works on."""

from __future__ import annotations

import operator
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt
from typer.testing import CliRunner

import perdure
from perdure.cli.app import app
from perdure.database.base import handle_of
from perdure.database.opening import open_database
from perdure.engine.checks.fsck_report import Repaired
from perdure.model.ops import Commit, Committed, Delete, Fetch, Range
from perdure.model.records import CHECKPOINT, HEAD, ITEM, TAG, WRITE, Key, Kind, Partition, Record
from perdure.storage.port import CommitLimits
from perdure.testing.conformance import Narrow
from tests import backends

THREAD = Partition("", "thread")
CONFIG: Any = {"configurable": {"thread_id": "thread"}}
Lose = Callable[[list[tuple[Kind, Key]]], None]


class State(TypedDict):
    said: Annotated[list[str], operator.add]


def graph(db: perdure.SyncDatabase) -> Any:
    inner = StateGraph(State)
    inner.add_node("ask", lambda state: {"said": [f"asked {interrupt('?')}"]})
    inner.add_node("note", lambda state: {"said": [f"noted {len(state['said'])}"]})
    inner.add_edge(START, "ask")
    inner.add_edge("ask", "note")
    outer = StateGraph(State)
    outer.add_node("say", lambda state: {"said": [f"said {len(state['said'])}"]})
    outer.add_node("sub", inner.compile(checkpointer=True))
    outer.add_edge(START, "say")
    outer.add_edge("say", "sub")
    return outer.compile(db.checkpointer())


def turn(db: perdure.SyncDatabase, n: int) -> None:
    graph(db).invoke({"said": [f"turn {n}"]}, CONFIG)
    graph(db).invoke(Command(resume="yes"), CONFIG)


def stored(db: perdure.SyncDatabase, kind: Kind) -> list[Record]:
    (found,) = handle_of(db).driver.perform(Fetch(THREAD, (Range(kind),)))
    return sorted(found, key=lambda r: (r.fields.get("seq", 0), r.key))


def places(db: perdure.SyncDatabase, nested: bool) -> list[Key]:
    """The checkpoints of the root, or of the subgraph, oldest first."""
    return [r.key for r in stored(db, CHECKPOINT) if bool(r.key[0]) == nested]


LOSSES: dict[str, Callable[[perdure.SyncDatabase], list[tuple[Kind, Key]]]] = {}
for _where, _nested in (("flat", False), ("nested", True)):
    for _name, _picked in {
        "first": slice(0, 1),
        "one in the middle": slice(4, 5),
        "several": slice(2, 9, 3),
        "a row of them": slice(3, 7),
        "the head's": slice(-1, None),
        "the last ones": slice(-4, None),
        "all but the last": slice(0, -1),
    }.items():
        LOSSES[f"{_name}, {_where}"] = lambda db, p=_picked, n=_nested: [  # type: ignore[misc]
            (CHECKPOINT, key) for key in places(db, n)[p]
        ]
LOSSES |= {
    "both": lambda db: [(CHECKPOINT, places(db, nested)[at]) for nested in (False, True) for at in (3, -1)],
    "the root's head": lambda db: [(HEAD, ("",))],
    "all heads": lambda db: [(HEAD, r.key) for r in stored(db, HEAD)],
    "a head and its checkpoint": lambda db: [(HEAD, ("",)), (CHECKPOINT, places(db, False)[-1])],
    "a write": lambda db: [(WRITE, stored(db, WRITE)[0].key)],
    "all writes": lambda db: [(WRITE, r.key) for r in stored(db, WRITE)],
    "a tag": lambda db: [(TAG, ("start",))],
    "everything": lambda db: [
        (kind, r.key) for kind in (HEAD, CHECKPOINT, WRITE, TAG) for r in stored(db, kind)
    ],
}


@pytest.fixture(params=[*backends.BACKENDS, "sqlite by hand"])
def place(request: pytest.FixtureRequest) -> Iterator[tuple[perdure.SyncDatabase, Lose]]:
    """A database with a thread of some turns, and a function that loses records of it: through the driver, or
    behind its back."""
    name = request.param
    with (
        backends.EMPTY["sqlite" if name == "sqlite by hand" else name]() as url,
        perdure.connect_sync(url, migrate=True) as db,
    ):

        def lose(records: list[tuple[Kind, Key]]) -> None:
            if name != "sqlite by hand":
                for kind, key in records:
                    commit = Commit(THREAD, (Delete(kind, key),))
                    assert handle_of(db).driver.perform(commit) == Committed()
                return
            lose_by_hand(url, records)

        for n in range(3):
            turn(db, n)
        yield db, lose


def lose_by_hand(url: str, records: list[tuple[Kind, Key]]) -> None:
    """Remove records as another program does; Python's own SQLite would take this process's locks away."""
    statements = [
        f"DELETE FROM perdure_{kind.name} WHERE "
        + " AND ".join(f"{column.name} = '{part}'" for column, part in zip(kind.key, key, strict=True))
        for kind, key in records
    ]
    script = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.executescript(sys.argv[2]); c.close()"
    path = url.removeprefix("sqlite:///")
    subprocess.run([sys.executable, "-c", script, path, ";".join(statements)], check=True)


@pytest.mark.parametrize("loss", LOSSES)
def test_what_was_repaired_stays_sound_and_works_on(
    place: tuple[perdure.SyncDatabase, Lose], loss: str
) -> None:
    db, lose = place
    if loss == "a tag":
        db.tag("thread", "start")
    assert db.fsck() == []
    lose(LOSSES[loss](db))
    found = db.fsck()
    if found:
        assert any(f.repairable for f in found), found
        repaired = db.repair("thread")
        assert repaired.left == ()
        assert repaired.fixed
    assert db.fsck() == []
    assert db.repair("thread") == Repaired((), ())
    graph(db).get_state(CONFIG, subgraphs=True)
    list(graph(db).get_state_history(CONFIG))
    turn(db, 9)
    assert db.fsck() == []
    assert "turn 9" in graph(db).get_state(CONFIG).values["said"]
    db.checkpointer().copy_thread("thread", "copy")
    assert db.fsck() == []


def test_the_command_ends_what_it_repaired(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'threads.db'}"
    with perdure.connect_sync(url, migrate=True) as db:
        for n in range(3):
            turn(db, n)
        db.store().put(("a",), "key 1", {"n": 1})
        db.store().put(("a",), "key 2", {"n": 1})
        picked = [(CHECKPOINT, places(db, nested)[4]) for nested in (False, True)]
    lose_by_hand(url, [*picked, (ITEM, ("key 1",))])

    def fsck(*more: str) -> tuple[int, str]:
        ran = CliRunner().invoke(app, ["fsck", "--db", url, *more])
        return ran.exit_code, ran.output

    assert fsck()[0] == 1
    code, shown = fsck("--repair")
    assert (code, shown.count("repaired: ")) == (0, 4)
    assert fsck() == fsck("--repair") == fsck("--all-tenants")
    assert fsck()[0] == 0


def test_more_holes_than_a_commit_holds_are_closed() -> None:
    made: list[Narrow] = []

    def wrap(driver: Any) -> Any:
        made.append(Narrow(driver, CommitLimits(ops=12, bytes=1 << 20)))
        return made[0]

    with closing(open_database("memory://", migrate=True, wrap=wrap)) as db:
        for n in range(9):
            turn(db, n)
        for nested in (False, True):
            for key in places(db, nested)[1::2]:
                made[0].perform(Commit(THREAD, (Delete(CHECKPOINT, key),)))
        holes = db.fsck()
        assert len(holes) > 20
        repaired = db.repair("thread")
        assert (set(repaired.fixed), repaired.left) == (set(holes), ())
        assert db.fsck() == []
