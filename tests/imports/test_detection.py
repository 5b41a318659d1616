"""The kind of a source is detected where only one fits; otherwise the error names the choices."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.store.sqlite import SqliteStore

import perdure
from perdure.errors import BadUrl, Unavailable
from perdure.imports.detection import detect_kind
from perdure.imports.kinds import SourceKind
from tests.backends import EMPTY
from tests.cli.data.test_import_data import run  # noqa: F401
from tests.imports import threads
from tests.imports.histories.test_sessions import TABLES
from tests.imports.stocks import PLAIN_TABLES, STOCKS, postgres_url

Run = Callable[..., tuple[int, str, str]]

SESSIONS = "CREATE TABLE sessions (session_id TEXT, history TEXT)"
MESSAGES = [{"role": "user", "content": "tea?"}]


def made(path: Path, *statements: str) -> str:
    """The path of a SQLite file with some tables."""
    with closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement)
    return str(path)


def written(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


def nothing(_: Any) -> dict[str, threads.Shape]:
    return {}


@pytest.mark.parametrize(
    "stock", ["langgraph-postgres", "aws-dynamodb", "plain", "plain-d1", "plain-postgres"]
)
def test_the_tables_of_each_saver_are_recognised(stock: str, tmp_path: Path) -> None:
    with STOCKS[stock](tmp_path, nothing) as source:
        assert detect_kind(source.where) is source.kind


def test_a_file_of_the_stock_saver_or_store_is_recognised(tmp_path: Path) -> None:
    with SqliteSaver.from_conn_string(str(tmp_path / "saver.db")) as saver:
        saver.setup()
        assert detect_kind(str(tmp_path / "saver.db")) is SourceKind.LANGGRAPH_SQLITE
    with SqliteStore.from_conn_string(str(tmp_path / "store.db")) as store:
        store.setup()
    assert detect_kind(f"sqlite:///{tmp_path}/store.db") is SourceKind.LANGGRAPH_SQLITE


@pytest.mark.parametrize("table", ["sqlite", "postgresql, jsonb", "dynamodb"])
def test_a_table_of_sessions_is_recognised(table: str, tmp_path: Path) -> None:
    with TABLES[table](tmp_path) as (where, put):
        put("ada", MESSAGES)
        assert detect_kind(where) is SourceKind.SESSIONS


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (json.dumps(MESSAGES), SourceKind.HISTORY),
        ("\ufeff\n " + json.dumps(MESSAGES, indent=1), SourceKind.HISTORY),
        (json.dumps({"thread_id": "ada", "messages": MESSAGES}), SourceKind.HISTORY),
        ("\n" + json.dumps({"session_id": "ada", "messages": MESSAGES}) + "\n", SourceKind.SESSIONS),
    ],
)
def test_a_file_of_json_is_recognised_by_its_first_line(tmp_path: Path, text: str, kind: SourceKind) -> None:
    assert detect_kind(written(tmp_path / "talks", text)) is kind


def test_the_only_kind_of_a_scheme_needs_no_server() -> None:
    assert detect_kind("redis://localhost:1/0") is SourceKind.LANGGRAPH_REDIS


def test_a_source_of_no_known_kind_names_all_of_them(tmp_path: Path) -> None:
    for where in (
        written(tmp_path / "empty", ""),
        written(tmp_path / "text", "hello"),
        written(tmp_path / "object", '{"thread_id": "ada"}'),
        written(tmp_path / "torn", '{"thread_id": '),
        made(tmp_path / "other.db", "CREATE TABLE checkpoints (id TEXT)"),
        postgres_url(),
    ):
        with pytest.raises(BadUrl, match="no kind that is recognised; pass --from with one of archive, "):
            detect_kind(where)
    with pytest.raises(BadUrl, match=r"none\.db is not a file"):
        detect_kind(f"{tmp_path}/none.db")
    assert detect_kind("https://agents.example/v1") is SourceKind.LANGGRAPH_SERVER
    with pytest.raises(BadUrl, match=r"mysql://me@host/app cannot be imported; pass a file, or postgresql"):
        detect_kind("mysql://me:secret@host/app")


def test_a_source_of_several_kinds_names_them(tmp_path: Path) -> None:
    both = made(tmp_path / "both.db", *PLAIN_TABLES, SESSIONS)
    line = json.dumps({"session_id": "ada", "thread_id": "ada", "messages": []})
    url = postgres_url()
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE store (prefix text, key text, value jsonb)")
        connection.execute(SESSIONS)
    for where, kinds in (
        (both, "plain or sessions"),
        (written(tmp_path / "both.jsonl", line), "history or sessions"),
        (url, "langgraph-postgres or sessions"),
    ):
        with pytest.raises(BadUrl, match=f"may be {kinds}; pass --from with one of them"):
            detect_kind(where)


@contextmanager
def own_postgres() -> Iterator[str]:
    yield postgres_url()


@pytest.mark.parametrize("empty", [EMPTY["sqlite"], own_postgres, EMPTY["dynamodb"]])
def test_a_database_of_perdures_is_to_be_copied(empty: Callable[[], AbstractContextManager[str]]) -> None:
    with empty() as url:
        with perdure.connect_sync(url, migrate=True):
            """Only its layout is needed."""
        with pytest.raises(BadUrl, match="database of Perdure's; copy it with `perdure copy SOURCE TARGET`"):
            detect_kind(url)


def test_a_server_that_does_not_answer_is_unavailable() -> None:
    with pytest.raises(Unavailable):
        detect_kind("postgresql://localhost:1/app")


def test_the_command_needs_no_kind(run: Run, tmp_path: Path) -> None:  # noqa: F811
    with SqliteSaver.from_conn_string(str(tmp_path / "old.db")) as saver:
        threads.fill(saver, 3)
    target = ("--db", "sqlite:///new.db")
    assert run("migrate", *target)[0] == 0
    code, out, err = run("import", "old.db", *target)
    assert (code, err) == (0, "old.db is read as langgraph-sqlite\n")
    assert out.startswith("Imported from old.db to sqlite:///new.db: 3 threads, ")
    assert run("export", "finished 1", "--output", "one.perdure", *target)[0] == 0
    code, _, err = run("import", "one.perdure", *target)
    assert (code, err) == (0, "one.perdure is read as archive\n")
    code, _, err = run("import", "new.db", *target)
    assert (code, "perdure copy" in err) == (1, True)


def test_names_of_a_table_tell_that_it_has_sessions(run: Run, tmp_path: Path) -> None:  # noqa: F811
    made(tmp_path / "app.db", SESSIONS.replace("sessions", "chats"))
    with closing(sqlite3.connect(tmp_path / "app.db")) as connection, connection:
        connection.execute("INSERT INTO chats VALUES (?, ?)", ("bob", json.dumps(MESSAGES)))
    target = ("--db", "sqlite:///new.db")
    assert run("migrate", *target)[0] == 0
    code, out, err = run("import", "app.db", "--table", "chats", *target)
    assert (code, err) == (0, "app.db is read as sessions\n")
    assert "1 session, 1 message" in out
