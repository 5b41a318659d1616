"""Rows of the plain layout, in a file and in D1, as they are after an import."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

import perdure
from perdure.errors import BadUrl
from perdure.imports.homemade_sqlite import open_file, open_rows
from perdure.imports.importer import Importer, ImportOptions
from perdure.imports.kinds import SourceKind, open_source
from perdure.imports.sqlite_rows import SqliteRows
from tests.imports import parity, threads
from tests.imports.histories.test_conversations import chat
from tests.imports.stocks import PLAIN_TABLES
from tests.servers import d1

IDS = [f"1f0e0000-0000-6000-8000-{n:012d}" for n in range(4)]


def packed(value: Any) -> bytes:
    return JsonPlusSerializer().dumps_typed(value)[1]


WORDS = [HumanMessage("hello", id="1"), AIMessage("hi", id="2")]
ROWS: list[tuple[Any, ...]] = [
    ("ada", IDS[0], None, json.dumps({"messages": [], "topic": "ž"}), "2026-01-01T00:00:00+00:00"),
    ("ada", IDS[1], IDS[0], packed({"messages": WORDS, "topic": "ž"}), "2026-01-01T00:00:01+00:00"),
    ("ada", IDS[2], IDS[0], json.dumps({"messages": [], "topic": "fork"}), "2026-01-01T00:00:00.5+00:00"),
    ("bob", IDS[3], None, json.dumps({"messages": [{"role": "user", "content": "plain"}]}), 1767225600),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "plain.db"
    with closing(sqlite3.connect(found)) as connection, connection:
        for table in PLAIN_TABLES:
            connection.execute(table)
        connection.executemany("INSERT INTO checkpoints VALUES (?, ?, ?, ?, ?)", ROWS)
        connection.execute(
            "INSERT INTO writes VALUES (?, ?, ?, ?, ?, ?)", ("ada", IDS[2], "task", 0, "topic", '"new"')
        )
    return found


def check(source: Any) -> None:
    with perdure.connect_sync("memory://") as db:
        reports = {r.thread: r for r in parity.imported(source, db)}
        assert {t: (r.state, r.checkpoints, r.verified) for t, r in reports.items()} == {
            "ada": ("imported", 3, 3),
            "bob": ("imported", 1, 1),
        }
        assert {r.state for r in parity.imported(source, db)} == {"unchanged"}
        saver = db.checkpointer()
        head = saver.get_tuple(threads.config("ada"))
        assert head is not None
        assert head.checkpoint["id"] == IDS[1]
        assert head.checkpoint["channel_values"] == {"messages": WORDS, "topic": "ž"}
        assert head.checkpoint["ts"] == "2026-01-01T00:00:01+00:00"
        by_id = {t.checkpoint["id"]: t for t in saver.list(threads.config("ada"))}
        assert by_id[IDS[2]].parent_config == by_id[IDS[1]].parent_config != None  # noqa: E711
        assert by_id[IDS[2]].pending_writes == [("task", "topic", "new")]
        graph = chat(saver)
        assert graph.get_state(threads.config("ada")).next == ()
        for thread, last in (("ada", "3 so far"), ("bob", "2 so far")):
            state = graph.invoke({"messages": [HumanMessage("more")]}, threads.config(thread))
            assert state["messages"][-1].content == last
            assert db.fsck(thread) == []


def test_rows_of_a_file_become_threads_that_go_on(path: Path) -> None:
    source = open_source(SourceKind.PLAIN, str(path))
    check(source)
    source.close()


@pytest.fixture
def cloud() -> Iterator[str]:
    with d1.empty() as url:
        yield url


@pytest.mark.slow
def test_rows_of_d1_become_threads_that_go_on(cloud: str) -> None:
    from perdure.storage.d1.url import D1Url

    with D1Url.of(cloud).session() as transport:
        transport.batch([(table, ()) for table in PLAIN_TABLES])
        for thread, name, parent, state, created in ROWS:
            value = "unhex(?4)" if isinstance(state, bytes) else "?4"
            text = state.hex() if isinstance(state, bytes) else state
            transport.batch(
                [
                    (
                        f"INSERT INTO checkpoints VALUES (?1, ?2, ?3, {value}, ?5)",
                        (thread, name, parent, text, str(created)),
                    )
                ]
            )
        transport.batch(
            [(f"INSERT INTO writes VALUES ('ada', '{IDS[2]}', 'task', 0, 'topic', '\"new\"')", ())]
        )
    source = open_source(SourceKind.PLAIN, cloud)
    check(source)
    source.close()


def test_what_langgraph_could_not_go_on_from_is_skipped(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("INSERT INTO checkpoints VALUES ('eve', 'first', NULL, '{}', '2026')")
        connection.execute(f"INSERT INTO checkpoints VALUES ('fay', '{IDS[0]}', NULL, '[1]', '2026')")
    source = open_file(path)
    with perdure.connect_sync("memory://") as db:
        reports = {r.thread: r for r in parity.imported(source, db)}
        assert reports["eve"].state == reports["fay"].state == "skipped"
        assert "not named by hexadecimal digits" in reports["eve"].why
        assert "is not an object" in reports["fay"].why
        assert sorted(t.thread_id for t in db.threads()) == ["ada", "bob"]
    source.close()


def test_other_tables_are_refused_by_name(path: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("ALTER TABLE checkpoints RENAME COLUMN state TO body")
    with pytest.raises(BadUrl, match="its table checkpoints lacks state"):
        open_file(path)
    with pytest.raises(BadUrl, match="is not a file"):
        open_file(tmp_path / "none")


def test_rows_of_any_content_cost_their_own_thread_alone(path: Path) -> None:
    deep = "[" * 20_000 + "]" * 20_000
    rows = [
        ("deep", IDS[0], None, f'{{"x": {deep}}}', 1),
        ("half", IDS[0], None, '{"channel_values": [1], "channel_versions": {}}', 1),
        ("late", IDS[0], None, "{}", 1e300),
    ]
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executemany("INSERT INTO checkpoints VALUES (?, ?, ?, ?, ?)", rows)
    with perdure.connect_sync("memory://") as db, closing(open_file(path)) as source:
        reports = {r.thread: r for r in parity.imported(source, db)}
        assert {t: r.state for t, r in reports.items()} == {
            "ada": "imported", "bob": "imported", "deep": "skipped", "half": "skipped", "late": "skipped",
        }  # fmt: skip
        assert [thread.thread_id for thread in db.threads()] == ["ada", "bob"]


def test_a_row_that_comes_during_an_import_is_of_the_next_one(path: Path) -> None:
    with perdure.connect_sync("memory://") as db, closing(open_file(path)) as source:
        real = source.outline

        def outline(thread: str) -> Any:
            found = real(thread)
            with closing(sqlite3.connect(path)) as connection, connection:
                row = ("bob", IDS[1], IDS[3], "{}", 1867225600)
                connection.execute("INSERT OR IGNORE INTO checkpoints VALUES (?, ?, ?, ?, ?)", row)
            return found

        source.outline = outline  # type: ignore[method-assign]
        assert Importer(source, db, ImportOptions()).import_thread("bob").state == "imported"
        head = db.checkpointer().get_tuple(threads.config("bob"))
        assert head is not None


def test_ids_that_are_no_text_are_refused(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("ALTER TABLE checkpoints RENAME TO older")
        connection.execute(
            "CREATE VIEW checkpoints AS SELECT 7 AS thread_id, checkpoint_id, parent_id, state, created_at "
            "FROM older"
        )
    with pytest.raises(BadUrl, match="CAST"):
        open_file(path)


def test_a_long_thread_is_outlined_once_and_its_steps_are_counted_in_one_pass(tmp_path: Path) -> None:
    path, count = tmp_path / "long.db", 700
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(PLAIN_TABLES[0])
        for n in range(count):
            ids = (f"{n:032x}", f"{n - 1:032x}" if n else None)
            connection.execute("INSERT INTO checkpoints VALUES ('ada', ?, ?, ?, ?)", (*ids, '{"n": 1}', n))
    queries: list[str] = []

    class CountedRows(SqliteRows):
        def __call__(self, query: str, *values: object) -> list[Any]:
            queries.append(query)
            return super().__call__(query, *values)

    with closing(open_rows("long", CountedRows(path))) as source, perdure.connect_sync("memory://") as db:
        (report,) = parity.imported(source, db)
        assert (report.state, report.checkpoints, report.verified) == ("imported", count, count)
        steps = [t.metadata["step"] for t in db.checkpointer().list(threads.config("ada"))]
        assert steps == list(range(count - 2, -2, -1))
    assert sum("SELECT checkpoint_id, parent_id" in query for query in queries) == 1
