"""Histories of sessions out of tables that others write to, and from one backend to another by a file.

Covers perdure.imports.histories.session_tables, perdure.imports.histories.session_dynamodb,
perdure.cli.data.sessions.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import boto3
import psycopg
import pytest

import perdure
from perdure.errors import BadUrl
from perdure.history.histories import TaskBudget
from perdure.imports.histories.session_sources import open_sessions
from perdure.imports.histories.session_tables import SessionTable
from perdure.imports.histories.sessions import SessionImporter, SessionReport
from tests.backends import EMPTY
from tests.cli.data.test_import_data import run  # noqa: F401 - a fixture
from tests.servers import dynamodb, postgres

Messages = list[dict[str, Any]]
Put = Callable[[Any, Any], None]
"""Writes a session as its application does: the whole history in place of the one before."""

TALK: Messages = [
    {"role": "user", "content": "hello ž"},
    {"role": "assistant", "content": "hi", "tags": ["evaluator"]},
    {"role": "user", "content": [{"type": "text", "text": "more"}]},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "c", "name": "look", "args": {"n": 3, "x": 1.5, "deep": [None, True]}}],
    },
    {"role": "tool", "content": "found", "tool_call_id": "c"},
]


@contextmanager
def sqlite_table(folder: Path) -> Iterator[tuple[str, Put]]:
    path = folder / "live.db"
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("CREATE TABLE sessions (session_id TEXT PRIMARY KEY, history)")

        def put(session: Any, history: Any) -> None:
            text = history if isinstance(history, str | bytes | None) else json.dumps(history)
            connection.execute("INSERT OR REPLACE INTO sessions VALUES (?, ?)", (session, text))

        yield f"sqlite:///{path}", put


def _postgresql(kind: str) -> Callable[[Path], AbstractContextManager[tuple[str, Put]]]:
    @contextmanager
    def table(_: Path) -> Iterator[tuple[str, Put]]:
        with postgres.empty() as url:
            plain, query = url.split("?", 1)
            schema = query.partition("schema=")[2].partition("&")[0]
            address = f"{plain}?options=-csearch_path%3D{schema}"
            with psycopg.connect(plain, autocommit=True) as connection:
                connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}".encode())
                connection.execute(f"SET search_path = {schema}".encode())
                create = f"CREATE TABLE sessions (session_id text PRIMARY KEY, history {kind})"
                connection.execute(create.encode())

                def put(session: Any, history: Any) -> None:
                    text = history if isinstance(history, str | None) else json.dumps(history)
                    connection.execute(
                        f"INSERT INTO sessions VALUES (%s, %s::{kind}) ON CONFLICT (session_id) "
                        "DO UPDATE SET history = EXCLUDED.history".encode(),
                        (session, text),
                    )

                yield address, put

    return table


@contextmanager
def dynamodb_table(_: Path) -> Iterator[tuple[str, Put]]:
    with dynamodb.empty() as url:
        name = url.removeprefix("dynamodb://").partition("?")[0]
        where: dict[str, Any] = {"region_name": dynamodb.REGION, "endpoint_url": dynamodb.endpoint()}
        with closing(boto3.client("dynamodb", **where)) as client:
            client.create_table(
                TableName=name,
                KeySchema=[{"AttributeName": "session_id", "KeyType": "HASH"}],
                AttributeDefinitions=[{"AttributeName": "session_id", "AttributeType": "S"}],
                BillingMode="PAY_PER_REQUEST",
            )
            table = boto3.resource("dynamodb", **where).Table(name)

            def put(session: Any, history: Any) -> None:
                # The resource takes decimals in place of floats.
                if isinstance(history, list):
                    history = json.loads(json.dumps(history), parse_float=Decimal)
                item = {"session_id": session, "updated": 1, "history": history}
                table.put_item(Item={name: value for name, value in item.items() if value is not None})

            yield url, put


TABLES: dict[str, Callable[[Path], AbstractContextManager[tuple[str, Put]]]] = {
    "sqlite": sqlite_table,
    "postgresql, jsonb": _postgresql("jsonb"),
    "postgresql, text": _postgresql("text"),
    "dynamodb": dynamodb_table,
}


def imported(
    where: str, db: perdure.SyncDatabase, names: SessionTable | None = None, **options: Any
) -> dict[str, SessionReport]:
    importer = SessionImporter(db.history(), **options)
    with closing(open_sessions(where, names or SessionTable())) as source:
        return {report.session: report for report in importer.run(source.sessions())}


def states(reports: dict[str, SessionReport]) -> dict[str, tuple[str, int]]:
    return {name: (report.state, report.messages) for name, report in reports.items()}


@pytest.mark.parametrize("table", list(TABLES))
def test_a_second_pass_takes_what_came_since(table: str, tmp_path: Path) -> None:
    with TABLES[table](tmp_path) as (where, put), perdure.connect_sync("memory://") as db:
        put("ada", TALK[:2])
        put("bob", TALK)
        put("eve", [])
        assert states(imported(where, db)) == {
            "ada": ("imported", 2),
            "bob": ("imported", 5),
            "eve": ("imported", 0),
        }
        assert db.history().load("bob").messages == TALK
        assert {state for state, _ in states(imported(where, db)).values()} == {"unchanged"}
        put("ada", TALK[:3])
        put("fay", TALK[:1])
        assert states(imported(where, db, dry_run=True))["fay"] == ("imported", 1)
        assert db.history().load("fay").version == 0
        later = states(imported(where, db))
        assert later == {
            "ada": ("extended", 1), "bob": ("unchanged", 0), "eve": ("unchanged", 0), "fay": ("imported", 1)
        }  # fmt: skip
        assert db.history().load("ada").messages == TALK[:3]


@pytest.mark.parametrize("table", list(TABLES))
def test_an_import_that_is_stopped_goes_on_where_it_was(table: str, tmp_path: Path) -> None:
    with TABLES[table](tmp_path) as (where, put), perdure.connect_sync("memory://") as db:
        for number in range(9):
            put(f"s{number}", TALK)
        importer = SessionImporter(db.history())
        with closing(open_sessions(where, SessionTable())) as source:
            stopped = importer.run(source.sessions())
            done = {next(stopped).session for _ in range(4)}
        reports = states(imported(where, db))
        assert {name for name, state in reports.items() if state == ("unchanged", 0)} == done
        assert all(db.history().load(f"s{number}").messages == TALK for number in range(9))


@pytest.mark.parametrize("table", list(TABLES))
def test_a_table_that_is_written_to_meanwhile_is_brought_completely(table: str, tmp_path: Path) -> None:
    with TABLES[table](tmp_path) as (where, put), perdure.connect_sync("memory://") as db:
        histories: dict[str, Messages] = {f"s{number:02}": [] for number in range(12)}
        over = threading.Event()

        def write() -> None:
            for turn in range(15):
                for name, history in histories.items():
                    history.append({"role": "user", "content": f"{name} {turn}"})
                    put(name, history)
                    time.sleep(0.001)
            over.set()

        writer = threading.Thread(target=write)
        writer.start()
        passes = 0
        while not over.is_set():
            reports = imported(where, db)
            assert not [report for report in reports.values() if report.state == "skipped"]
            for name in reports:
                messages = db.history().load(name).messages
                assert messages == histories[name][: len(messages)]
            passes += 1
        writer.join()
        imported(where, db)
        assert passes
        assert {name: db.history().load(name).messages for name in histories} == histories
        assert {state for state, _ in states(imported(where, db)).values()} == {"unchanged"}


def test_a_session_that_went_on_at_the_target_stays_as_it_is(tmp_path: Path) -> None:
    with sqlite_table(tmp_path) as (where, put), perdure.connect_sync("memory://") as db:
        put("ahead", TALK[:2])
        put("both", TALK[:2])
        put("trimmed", TALK)
        imported(where, db)
        histories = db.history()
        for name in ("ahead", "both"):
            histories.commit(histories.load(name), [{"role": "user", "content": "here"}])
        put("both", [*TALK[:2], {"role": "user", "content": "elsewhere"}])
        put("trimmed", TALK[2:])
        reports = imported(where, db)
        assert states(reports) == {
            "ahead": ("unchanged", 0),
            "both": ("skipped", 0),
            "trimmed": ("skipped", 0),
        }
        assert reports["both"].why.startswith("message 3 differs")
        assert "elsewhere" not in reports["both"].why
        assert histories.load("both").messages[-1]["content"] == "here"
        assert states(imported(where, db, replaces=True)) == {
            "ahead": ("unchanged", 0), "both": ("replaced", 3), "trimmed": ("replaced", 3)
        }  # fmt: skip
        assert histories.load("trimmed").messages == TALK[2:]
        assert {state for state, _ in states(imported(where, db)).values()} == {"unchanged"}


@pytest.mark.parametrize("table", ["sqlite", "dynamodb"])
def test_an_odd_row_is_named_and_costs_only_itself(table: str, tmp_path: Path) -> None:
    odd = {
        "text": "secret words",
        "object": {"role": "user", "content": "secret"},
        "role": [{"role": "secret", "content": "x"}],
        "content": [{"role": "user"}],
        "parts": ["secret"],
        "none": None,
    }
    with TABLES[table](tmp_path) as (where, put), perdure.connect_sync("memory://") as db:
        put("good", TALK)
        put("json", json.dumps(TALK[:1]))
        for name, history in odd.items():
            put(name, history)
        reports = imported(where, db)
        assert sorted(name for name, r in reports.items() if r.state == "skipped") == sorted(odd)
        assert {reports["good"].state, reports["json"].state} == {"imported"}
        assert all(r.why for r in reports.values() if r.state == "skipped")
        assert "secret words" not in str(reports)
        assert list(db.history().sessions()) == ["good", "json"]


def test_other_names_and_keys_of_a_table(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE chats (number INTEGER PRIMARY KEY, talk TEXT, messages TEXT)")
        for number in (1, 2, 10):
            connection.execute("INSERT INTO chats VALUES (?, ?, '[]')", (number, json.dumps(TALK[:number])))
    with perdure.connect_sync("memory://") as db:
        names = SessionTable("chats", "number", "talk")
        assert states(imported(str(path), db, names)) == {
            "1": ("imported", 1), "2": ("imported", 2), "10": ("imported", 5)
        }  # fmt: skip
        for wrong, said in (
            (SessionTable(), "no table sessions; name it with --table"),
            (SessionTable("chats"), "no column session_id; name it with --key"),
            (SessionTable("chats", "number", "body"), "no column body; name it with --column"),
            (SessionTable('chats"; DROP TABLE chats --'), "not a name of a table"),
        ):
            with pytest.raises(BadUrl, match=said):
                open_sessions(str(path), wrong)
    with pytest.raises(BadUrl, match="is not a file"):
        open_sessions(str(tmp_path / "none"), SessionTable())


def test_an_expired_item_of_dynamodb_is_left_out(tmp_path: Path) -> None:
    with dynamodb_table(tmp_path) as (where, put), perdure.connect_sync("memory://") as db:
        name = where.removeprefix("dynamodb://").partition("?")[0]
        put("living", TALK)
        client: Any = boto3.client("dynamodb", region_name=dynamodb.REGION, endpoint_url=dynamodb.endpoint())
        with closing(client):
            client.update_time_to_live(
                TableName=name, TimeToLiveSpecification={"Enabled": True, "AttributeName": "expires"}
            )
            for session, at in (("gone", 1), ("later", int(time.time()) + 9_000)):
                item = {"session_id": {"S": session}, "expires": {"N": str(at)}, "messages": {"L": []}}
                client.put_item(TableName=name, Item=item)
        assert sorted(imported(where, db)) == ["later", "living"]
        with pytest.raises(BadUrl, match="has the key session_id, not user alone"):
            open_sessions(where, SessionTable(key="user"))


# ---------------------------------------------------------------- by the command line


@pytest.mark.parametrize("target", ["postgresql", "dynamodb", "sqlite"])
def test_sessions_go_from_one_backend_to_another_by_a_file(target: str, run: Any, tmp_path: Path) -> None:  # noqa: F811
    here, file = f"sqlite:///{tmp_path / 'here.db'}", tmp_path / "sessions.jsonl"
    with perdure.connect_sync(here, migrate=True) as db:
        histories = db.history()
        histories.commit(histories.load("ada/ž"), TALK, budget=TaskBudget("write", 3))
        histories.commit(histories.load("bob"), TALK[:1])
        histories.commit(histories.load("empty"), [])
    code, lines, _ = run("export", "--as", "sessions", "--all", "--db", here)
    assert code == 0
    file.write_text(lines)
    assert [json.loads(line)["session_id"] for line in lines.splitlines()] == ["ada/ž", "bob", "empty"]
    with EMPTY[target]() as there:
        assert run("migrate", "--db", there)[0] == 0
        code, said, _ = run("import", str(file), "--from", "sessions", "--db", there)
        assert code == 0
        assert "3 sessions, 6 messages" in said
        _, again, _ = run("import", str(file), "--from", "sessions", "--db", there, "--json")
        assert json.loads(again)["sessions"] == {
            "imported": 0, "extended": 0, "replaced": 0, "unchanged": 3, "skipped": 0
        }  # fmt: skip
        assert run("export", "--as", "sessions", "--all", "--db", there)[1] == lines
        with perdure.connect_sync(there) as db:
            assert db.history().load("ada/ž").budget == TaskBudget("write", 3)


def test_what_the_commands_refuse(run: Any, tmp_path: Path) -> None:  # noqa: F811
    there, file = f"sqlite:///{tmp_path / 'there.db'}", tmp_path / "sessions.jsonl"
    assert run("migrate", "--db", there)[0] == 0
    assert "there is no session 'ada'" in run("export", "ada", "--as", "sessions", "--db", there)[2]
    assert "Name one or more" in run("export", "--as", "sessions", "--db", there)[2]
    for text, said in (
        ("no JSON", "line 1: not JSON"),
        ('{"session_id": "a"}', "line 1: not an object with session_id and messages"),
        ('{"session_id": "a", "messages": []}\n{"session_id": "a", "messages": []}', "is on line 1 already"),
    ):
        file.write_text(text)
        code, _, errors = run("import", str(file), "--from", "sessions", "--db", there)
        assert code != 0
        assert said in " ".join(errors.split())
    file.write_text(json.dumps({"session_id": "a", "messages": [{"role": "x", "content": ""}]}))
    code, _, errors = run("import", str(file), "--from", "sessions", "--db", there)
    assert (code, "session 'a' was skipped" in errors) == (1, True)
    file.write_text(json.dumps({"session_id": "a", "messages": [], "budget": {"task": 1}}))
    assert "its budget is not" in run("import", str(file), "--from", "sessions", "--db", there)[2]
    file.write_text(json.dumps({"session_id": "a", "messages": []}))
    code, _, errors = run("import", str(file), "--from", "sessions", "--session", "b", "--db", there)
    assert "has no session 'b'" in " ".join(errors.split())
    assert run("export", "--as", "sessions", "--all", "--db", there)[1] == ""


def test_the_command_brings_a_live_table(run: Any, tmp_path: Path) -> None:  # noqa: F811
    there = f"sqlite:///{tmp_path / 'there.db'}"
    assert run("migrate", "--db", there)[0] == 0
    with sqlite_table(tmp_path) as (where, put):
        put("ada", TALK[:2])
        assert "1 session, 2 messages" in run("import", where, "--from", "sessions", "--db", there)[1]
        put("ada", TALK)
        _, said, _ = run("import", where, "--from", "sessions", "--db", there)
        assert "0 sessions, 3 messages; 1 session brought up to date" in said
    with perdure.connect_sync(there) as db:
        assert db.history().load("ada").messages == TALK
