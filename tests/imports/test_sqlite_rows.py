"""Rows of a SQLite file whose text is not UTF-8 are reported, and the others arrive."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.sqlite import SqliteSaver

import perdure
from perdure.errors import BadUrl, Unavailable
from perdure.imports.homemade_sqlite import open_file
from perdure.imports.sqlite import SqliteSource
from perdure.imports.sqlite_rows import SqliteRows, has_columns, is_utf8
from tests.imports import parity, threads

BAD = "CAST(x'62ff64' AS TEXT)"
"""Text that is not UTF-8, between "a" and "c" in the order of SQLite."""


def test_text_that_is_no_utf8_comes_and_goes_as_surrogates(tmp_path: Path) -> None:
    path = tmp_path / "any.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE t (name TEXT)")
        connection.execute(f"INSERT INTO t VALUES ('a'), ({BAD}), ('c')")
    with closing(SqliteRows(path)) as rows:
        (bad,) = rows("SELECT name FROM t WHERE name > ? AND name < ?", "a", "c")[0]
        assert (is_utf8(bad), is_utf8("a")) == (False, True)
        assert rows("SELECT count(*) FROM t WHERE name = ?1", bad) == [(1,)]
        assert rows("SELECT name FROM t WHERE name > ?", bad) == [("c",)]
        assert rows.columns("t") == {"name"}
        with pytest.raises(Unavailable, match="cannot be read"):
            rows("SELECT * FROM nothing")
        with pytest.raises(Unavailable, match="cannot be read"):
            list(rows.iterate("SELECT * FROM nothing"))
    assert has_columns(path, [("t", {"name"})])
    assert not has_columns(path, [("t", {"other"})])
    path.write_bytes(b"no database" * 100)
    assert not has_columns(path, [("t", {"name"})])


@pytest.mark.parametrize("column", ["thread_id", "checkpoint_ns", "parent_checkpoint_id", "metadata", "type"])
def test_a_damaged_thread_of_the_stock_saver_does_not_end_the_import(column: str, tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    shape = threads.SHAPES["finished"]
    with SqliteSaver.from_conn_string(str(path)) as stock:
        for name in "abc":
            shape.make(shape.graph(stock), name)
    with closing(sqlite3.connect(path)) as connection, connection:
        for table in ("checkpoints", "writes") if column == "thread_id" else ("checkpoints",):
            connection.execute(f"UPDATE {table} SET {column} = {BAD} WHERE thread_id = 'b'")
    source: Any = SqliteSource(path)
    with perdure.connect_sync("memory://") as db:
        reports = parity.imported(source, db)
        assert [r.state for r in reports] == ["imported", "skipped", "imported"], reports
        assert re.search("source is damaged|lone surrogate|serialised form", reports[1].why), reports[1]
        assert {t.thread_id for t in db.threads()} == {"a", "c"}
    source.close()


def test_ids_that_are_no_text_are_refused_when_the_file_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    with SqliteSaver.from_conn_string(str(path)) as stock:
        threads.SHAPES["finished"].make(threads.talk(stock), "a")
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE writes SET thread_id = x'01'")
    with pytest.raises(BadUrl, match="whose ids are not text"):
        SqliteSource(path)


def test_a_damaged_thread_of_the_plain_layout_does_not_end_the_import(tmp_path: Path) -> None:
    path = tmp_path / "plain.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            "CREATE TABLE checkpoints (thread_id, checkpoint_id, parent_id, state, created_at)"
        )
        for n, thread in enumerate(("'a'", BAD, "'c'")):
            connection.execute(
                f"INSERT INTO checkpoints VALUES ({thread}, '{n:032x}', NULL, '{{\"n\": 1}}', 1)"
            )
        connection.execute(
            f"INSERT INTO checkpoints VALUES ('d', '{9:032x}', NULL, CAST(x'7b22ff227d' AS TEXT), 1)"
        )
    source = open_file(path)
    with perdure.connect_sync("memory://") as db:
        reports = parity.imported(source, db)
    source.close()
    assert [r.state for r in reports] == ["imported", "skipped", "imported", "skipped"], reports
