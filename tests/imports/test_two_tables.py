"""The plain layout without times, tasks and indexes: two tables of four columns each, as a lesson has them.

Covers perdure.imports.homemade_sqlite, perdure.imports.homemade_tables.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from typer.testing import CliRunner

import perdure
from perdure.cli.app import app
from perdure.errors import BadUrl
from perdure.imports.kinds import SourceKind, open_source
from tests.imports import parity, threads
from tests.imports.histories.test_conversations import chat
from tests.servers import d1

IDS = [f"1f0e0000-0000-6000-8000-{n:012d}" for n in range(6)]
WORDS = [HumanMessage("hello", id="1"), AIMessage("hi", id="2")]
CHECKPOINTS = {
    "without times": "thread_id TEXT, checkpoint_id TEXT, parent_id TEXT, state",
    "with times": "thread_id TEXT, checkpoint_id TEXT, parent_id TEXT, state, created_at",
    "with a primary key": "thread_id TEXT, checkpoint_id TEXT, parent_id TEXT, state, "
    "PRIMARY KEY (thread_id, checkpoint_id)) WITHOUT ROWID --",
}
WRITES = {
    "without tasks": "thread_id TEXT, checkpoint_id TEXT, channel TEXT, value",
    "with a primary key": "thread_id TEXT, checkpoint_id TEXT, channel TEXT, value, "
    "PRIMARY KEY (thread_id, checkpoint_id, channel)) WITHOUT ROWID --",
    "with tasks alone": "thread_id TEXT, checkpoint_id TEXT, channel TEXT, value, "
    "task_id TEXT DEFAULT 'task'",
    "with indexes alone": "thread_id TEXT, checkpoint_id TEXT, channel TEXT, value, idx INT DEFAULT 3",
}


def packed(value: Any) -> bytes:
    return JsonPlusSerializer().dumps_typed(value)[1]


ROWS: list[tuple[Any, ...]] = [
    ("ada", IDS[0], None, json.dumps({"messages": [], "topic": "ž"})),
    ("ada", IDS[1], IDS[0], packed({"messages": WORDS, "topic": "ž"})),
    ("bob", IDS[3], None, json.dumps({"messages": [{"role": "user", "content": "plain"}]})),
    ("bob", IDS[2], IDS[3], json.dumps({"messages": [{"role": "user", "content": "later"}], "n": 1})),
]
ADDED: list[tuple[Any, ...]] = [
    ("ada", IDS[1], "topic", '"new"'),
    ("ada", IDS[1], "messages", packed([AIMessage("more", id="3")])),
    ("ada", IDS[0], "count", 7),
]

Fill = Callable[..., Path]


@pytest.fixture
def fill(tmp_path: Path) -> Fill:
    """Return a function that makes a file of these columns and rows."""

    def fill(
        checkpoints: str = CHECKPOINTS["without times"],
        writes: str | None = WRITES["without tasks"],
        rows: list[Any] = ROWS,
        added: list[Any] = ADDED,
    ) -> Path:
        path = tmp_path / "lesson.db"
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(f"CREATE TABLE checkpoints ({checkpoints}\n)".replace(" --\n)", ""))
            for row in rows:
                columns = "thread_id, checkpoint_id, parent_id, state"
                connection.execute(f"INSERT INTO checkpoints ({columns}) VALUES (?, ?, ?, ?)", row)
            if writes is not None:
                connection.execute(f"CREATE TABLE writes ({writes}\n)".replace(" --\n)", ""))
                for row in added:
                    insert(connection, row)
        return path

    return fill


def insert(connection: sqlite3.Connection, row: tuple[Any, ...]) -> None:
    connection.execute(
        "INSERT INTO writes (thread_id, checkpoint_id, channel, value) VALUES (?, ?, ?, ?)", row
    )


def pending(db: perdure.SyncDatabase, thread: str) -> dict[str, list[tuple[str, Any]]]:
    """The channels and values of the pending writes of a thread, by checkpoint."""
    return {
        found.checkpoint["id"]: sorted((channel, value) for _, channel, value in found.pending_writes or ())
        for found in db.checkpointer().list(threads.config(thread))
    }


def check(source: Any) -> None:
    with perdure.connect_sync("memory://") as db:
        reports = {r.thread: r for r in parity.imported(source, db)}
        assert {t: (r.state, r.why, r.checkpoints, r.verified, r.writes) for t, r in reports.items()} == {
            "ada": ("imported", "", 2, 2, 3),
            "bob": ("imported", "", 2, 2, 0),
        }
        assert {r.state for r in parity.imported(source, db)} == {"unchanged"}
        saver = db.checkpointer()
        ada, bob = (saver.get_tuple(threads.config(thread)) for thread in ("ada", "bob"))
        assert ada is not None
        assert bob is not None
        assert ada.checkpoint["channel_values"] == {"messages": WORDS, "topic": "ž"}
        # The smaller id is the child: what follows another checkpoint comes after it.
        assert (bob.checkpoint["id"], bob.checkpoint["channel_values"]["n"]) == (IDS[2], 1)
        assert bob.parent_config is not None
        assert bob.parent_config["configurable"]["checkpoint_id"] == IDS[3]
        assert pending(db, "ada") == {
            IDS[1]: [("messages", [AIMessage("more", id="3")]), ("topic", "new")],
            IDS[0]: [("count", 7)],
        }
        graph = chat(saver)
        assert graph.get_state(threads.config("ada")).next == ()
        for thread, last in (("ada", "3 so far"), ("bob", "2 so far")):
            state = graph.invoke({"messages": [HumanMessage("more")]}, threads.config(thread))
            assert state["messages"][-1].content == last
            assert db.fsck(thread) == []


@pytest.mark.parametrize("writes", list(WRITES))
@pytest.mark.parametrize("checkpoints", list(CHECKPOINTS))
def test_two_tables_become_threads_that_go_on(fill: Fill, checkpoints: str, writes: str) -> None:
    with closing(
        open_source(SourceKind.PLAIN, str(fill(CHECKPOINTS[checkpoints], WRITES[writes])))
    ) as source:
        check(source)


def test_a_view_has_no_order_of_its_own(fill: Fill) -> None:
    path = fill()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("ALTER TABLE writes RENAME TO kept")
        connection.execute("CREATE VIEW writes AS SELECT * FROM kept")
    with closing(open_source(SourceKind.PLAIN, f"sqlite:///{path}")) as source:
        check(source)


@pytest.fixture
def cloud() -> Iterator[str]:
    with d1.empty() as url:
        yield url


@pytest.mark.slow
def test_two_tables_of_d1_become_threads_that_go_on(cloud: str) -> None:
    from perdure.storage.d1.url import D1Url

    with D1Url.of(cloud).session() as transport:
        tables = (("checkpoints", CHECKPOINTS["without times"]), ("writes", WRITES["without tasks"]))
        transport.batch([(f"CREATE TABLE {name} ({columns})", ()) for name, columns in tables])
        for table, rows in (("checkpoints", ROWS), ("writes", ADDED)):
            for *names, value in rows:
                form = "unhex(?4)" if isinstance(value, bytes) else "?4"
                text = value.hex() if isinstance(value, bytes) else str(value)
                transport.batch([(f"INSERT INTO {table} VALUES (?1, ?2, ?3, {form})", (*names, text))])
    with closing(open_source(SourceKind.PLAIN, cloud)) as source:
        check(source)


@pytest.mark.parametrize("writes", ["without tasks", "with a primary key"])
def test_what_comes_later_is_added_and_changes_nothing_else(fill: Fill, writes: str) -> None:
    path = fill(writes=WRITES[writes])
    with perdure.connect_sync("memory://") as db:
        with closing(open_source(SourceKind.PLAIN, str(path))) as source:
            parity.imported(source, db)
        with closing(sqlite3.connect(path)) as connection, connection:
            insert(connection, ("ada", IDS[1], "another", "[1]"))
            if writes == "without tasks":
                insert(connection, ("ada", IDS[1], "topic", '"newer"'))
            state = json.dumps({"messages": [], "topic": "last"})
            connection.execute("INSERT INTO checkpoints VALUES (?, ?, ?, ?)", ("bob", IDS[5], IDS[2], state))
        with closing(open_source(SourceKind.PLAIN, str(path))) as source:
            reports = {r.thread: (r.state, r.checkpoints, r.writes) for r in parity.imported(source, db)}
        count = 2 if writes == "without tasks" else 1
        assert reports == {"ada": ("extended", 0, count), "bob": ("extended", 1, 0)}
        found = pending(db, "ada")[IDS[1]]
        topics = [value for channel, value in found if channel == "topic"]
        assert topics == (["new", "newer"] if count == 2 else ["new"])
        assert [value for channel, value in found if channel == "another"] == [[1]]
        head = db.checkpointer().get_tuple(threads.config("bob"))
        assert head is not None
        assert head.checkpoint["id"] == IDS[5]


def test_without_a_table_of_writes_the_checkpoints_are_imported(fill: Fill) -> None:
    with (
        closing(open_source(SourceKind.PLAIN, str(fill(writes=None)))) as source,
        perdure.connect_sync("memory://") as db,
    ):
        assert [(r.thread, r.state, r.writes) for r in parity.imported(source, db)] == [
            ("ada", "imported", 0),
            ("bob", "imported", 0),
        ]


def test_an_odd_row_is_named_and_costs_its_own_thread_alone(fill: Fill) -> None:
    rows = [
        *ROWS,
        ("text", IDS[0], None, "no JSON"),
        ("list", IDS[0], None, "[1]"),
        ("none", IDS[0], None, None),
        ("name", "first", None, "{}"),
        ("write", IDS[0], None, "{}"),
        ("channel", IDS[0], None, "{}"),
        ("bytes", IDS[0], None, b"\xc1"),
    ]
    added = [*ADDED, ("write", IDS[0], "topic", "no JSON"), ("channel", IDS[0], None, "1")]
    with (
        closing(open_source(SourceKind.PLAIN, str(fill(rows=rows, added=added)))) as source,
        perdure.connect_sync("memory://") as db,
    ):
        why = {r.thread: r.why for r in parity.imported(source, db) if r.state == "skipped"}
        assert sorted(thread.thread_id for thread in db.threads()) == ["ada", "bob"]
    assert sorted(why) == ["bytes", "channel", "list", "name", "none", "text", "write"]
    assert why["text"].startswith(f"the state of checkpoint {IDS[0]}: a value in JSON cannot be read")
    assert why["list"] == why["none"] == f"the state of checkpoint {IDS[0]} is not an object"
    assert "checkpoint 'first' is not named by hexadecimal digits" in why["name"]
    assert why["write"].startswith(f"the write of checkpoint {IDS[0]} to 'topic': a value in JSON cannot be")
    assert why["channel"] == f"a write of checkpoint {IDS[0]} names no channel, but None"
    assert "no JSON" not in str(why)


@pytest.mark.parametrize(
    ("checkpoints", "writes", "lacks"),
    [
        ("thread_id TEXT, checkpoint_id TEXT, state", None, "checkpoints lacks parent_id"),
        ("thread_id TEXT, checkpoint_id TEXT, parent_id TEXT, body", None, "checkpoints lacks state"),
        (CHECKPOINTS["without times"], "thread_id, checkpoint_id, channel", "writes lacks value"),
    ],
)
def test_a_missing_column_is_named(fill: Fill, checkpoints: str, writes: str, lacks: str) -> None:
    with pytest.raises(BadUrl, match=lacks):
        open_source(SourceKind.PLAIN, str(fill(checkpoints, writes, [], [])))


def test_the_command_imports_two_tables(fill: Fill, tmp_path: Path) -> None:
    target = f"sqlite:///{tmp_path / 'threads.db'}"
    run = CliRunner().invoke
    assert run(app, ["migrate", "--db", target]).exit_code == 0
    done = run(app, ["import", str(fill()), "--from", "plain", "--db", target])
    assert (done.exit_code, done.exception) == (0, None), done.output
    assert "2 threads, 4 checkpoints, 3 pending writes" in done.output
    again = run(app, ["import", str(tmp_path / "lesson.db"), "--from", "plain", "--db", target])
    assert "2 threads unchanged" in again.output
