"""The plain layout in PostgreSQL: types of columns, names of tables, what comes later, and refusals.

Covers perdure.imports.homemade_postgres, perdure.imports.postgres_rows.
"""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from langchain_core.messages import HumanMessage
from typer.testing import CliRunner

import perdure
from perdure.cli.app import app
from perdure.errors import BadUrl, Unavailable
from perdure.imports.kinds import SourceKind, open_source
from tests.imports import parity, test_homemade_tables, test_two_tables, threads
from tests.imports.histories.test_conversations import chat
from tests.imports.stocks import postgres_url
from tests.imports.test_two_tables import IDS, pending
from tests.servers.ports import free_port

STATES = ("jsonb", "json", "text", "varchar", "bytea")
TIMES = {
    "timestamptz": "2026-01-01T00:00:0{}+00:00",
    "timestamp": "2026-01-01T00:00:0{}+00:00",
    "date": "2026-01-0{}T00:00:00+00:00",
    "text": "2026-01-01T00:00:0{}Z",
    "bigint": "2026-01-01T00:00:0{}+00:00",
    "numeric": "2026-01-01T00:00:0{}+00:00",
}
NEW_YEAR = 1767225600


@pytest.fixture
def url() -> str:
    return postgres_url()


def fill(
    url: str,
    checkpoints: str,
    writes: str = "",
    rows: list[Any] | None = None,
    added: list[Any] | None = None,
    names: tuple[str, str] = ("checkpoints", "writes"),
) -> None:
    """Make the two tables and their rows; a row has as many values as its table has columns."""
    tables = ((names[0], checkpoints, rows or []), (names[1], writes, added or []))
    with psycopg.connect(url) as connection:
        for name, columns, content in tables:
            if columns:
                connection.execute(f"CREATE TABLE {name} ({columns})".encode())
            for row in content:
                marks = ", ".join(["%s"] * len(row))
                connection.execute(f"INSERT INTO {name} VALUES ({marks})".encode(), row)


def checkpoint_columns(state: str, created: str = "", ids: str = "text") -> str:
    time = f", created_at {created}" if created else ""
    return f"thread_id text, checkpoint_id {ids}, parent_id {ids}, state {state}{time}"


def write_columns(value: str, threads: str = "text") -> str:
    return f"thread_id {threads}, checkpoint_id text, channel text, value {value}"


def talk(text: str) -> str:
    return json.dumps({"messages": [{"role": "user", "content": text}], "topic": "ž"})


def of_type(kind: str, value: str) -> object:
    return value.encode() if kind == "bytea" else value


def moment(kind: str, second: int) -> object:
    if kind in ("bigint", "numeric"):
        return (NEW_YEAR + second) * (1000 if kind == "bigint" else 1)
    return f"2026-01-0{second}" if kind == "date" else f"2026-01-01T00:00:0{second}Z"


@pytest.mark.parametrize("created", ["", *TIMES])
@pytest.mark.parametrize("state", STATES)
def test_rows_of_any_of_these_types_become_threads_that_go_on(url: str, state: str, created: str) -> None:
    # With times the newest is the one with the smaller id; without, the one that is nobody's parent.
    at = [[moment(created, second)] if created else [] for second in (1, 2)]
    rows = [
        ("ada", IDS[1], None, of_type(state, talk("first")), *at[0]),
        ("ada", IDS[0], IDS[1], of_type(state, talk("second")), *at[1]),
    ]
    added = [("ada", IDS[0], "topic", of_type(state, '["new", 1.5]'))]
    fill(url, checkpoint_columns(state, created), write_columns(state), rows, added)
    with (
        closing(open_source(SourceKind.PLAIN, url)) as source,
        perdure.connect_sync("memory://") as db,
    ):
        assert source.count() == 1
        (report,) = parity.imported(source, db)
        assert (report.state, report.why, report.checkpoints, report.verified, report.writes) == (
            "imported", "", 2, 2, 1,
        )  # fmt: skip
        assert [r.state for r in parity.imported(source, db)] == ["unchanged"]
        head = db.checkpointer().get_tuple(threads.config("ada"))
        assert head is not None
        assert head.checkpoint["id"] == IDS[0]
        if created:
            assert head.checkpoint["ts"] == TIMES[created].format(2)
        assert pending(db, "ada")[IDS[0]] == [("topic", ["new", 1.5])]
        graph = chat(db.checkpointer())
        state_ = graph.invoke({"messages": [HumanMessage("more")]}, threads.config("ada"))
        assert state_["messages"][-1].content == "2 so far"
        assert db.fsck("ada") == []


def test_bytes_are_message_pack_or_json(url: str) -> None:
    rows = [tuple(v.encode() if i == 3 and isinstance(v, str) else v for i, v in enumerate(row))
            for row in test_two_tables.ROWS]  # fmt: skip
    added = [(*row[:3], {str: str.encode, int: lambda n: bytes([n])}.get(type(row[3]), bytes)(row[3]))
             for row in test_two_tables.ADDED]  # fmt: skip
    fill(url, checkpoint_columns("bytea"), write_columns("bytea"), rows, added)
    with closing(open_source(SourceKind.PLAIN, url)) as source:
        test_two_tables.check(source)


def test_forks_tasks_and_indexes_are_as_they_are_on_sqlite(url: str) -> None:
    rows = [(*row[:3], row[3] if isinstance(row[3], bytes) else row[3].encode(), str(row[4]))
            for row in test_homemade_tables.ROWS]  # fmt: skip
    writes = "thread_id text, checkpoint_id text, task_id text, idx smallint, channel text, value jsonb"
    added = [("ada", test_homemade_tables.IDS[2], "task", 0, "topic", '"new"')]
    fill(url, checkpoint_columns("bytea", "text"), writes, rows, added)
    with closing(open_source(SourceKind.PLAIN, url)) as source:
        test_homemade_tables.check(source)


def test_ids_may_be_uuids(url: str) -> None:
    thread = IDS[5]
    rows = [(thread, IDS[0], None, talk("one")), (thread, IDS[1], IDS[0], talk("two"))]
    columns = checkpoint_columns("jsonb", ids="uuid").replace("thread_id text", "thread_id uuid")
    writes = write_columns("jsonb").replace("_id text", "_id uuid") + ", task_id uuid"
    fill(url, columns, writes, rows, [(thread, IDS[1], "topic", "1", IDS[4])])
    with closing(open_source(SourceKind.PLAIN, url)) as source, perdure.connect_sync("memory://") as db:
        assert [(r.thread, r.state, r.writes) for r in parity.imported(source, db)] == [
            (thread, "imported", 1)
        ]
        assert not source.outline("ada").checkpoints
        assert not source.outline(thread.upper()).checkpoints
        assert not source.outline("a\0").checkpoints


@pytest.mark.parametrize("counted", [True, False])
def test_what_comes_later_is_added_and_changes_nothing_else(url: str, *, counted: bool) -> None:
    number = ", id bigint GENERATED ALWAYS AS IDENTITY" if counted else ""
    fill(url, checkpoint_columns("jsonb"), write_columns("jsonb") + number, *rows_of_two())
    with perdure.connect_sync("memory://") as db, closing(open_source(SourceKind.PLAIN, url)) as source:
        parity.imported(source, db)
        with psycopg.connect(url) as connection:
            for value in ('"again"', '"and again"'):
                connection.execute(
                    "INSERT INTO writes VALUES (%s, %s, %s, %s)", ("ada", IDS[0], "topic", value)
                )
            connection.execute(
                "INSERT INTO checkpoints VALUES (%s, %s, %s, %s)", ("bob", IDS[3], IDS[2], talk("later"))
            )
            connection.execute(
                "INSERT INTO checkpoints VALUES (%s, %s, NULL, %s)", ("cyd", IDS[4], talk("new"))
            )
        reports = {r.thread: (r.state, r.checkpoints, r.writes) for r in parity.imported(source, db)}
        assert reports == {"ada": ("extended", 0, 2), "bob": ("extended", 1, 0), "cyd": ("imported", 1, 0)}
        assert pending(db, "ada")[IDS[0]] == [("topic", v) for v in ("again", "and again", "new")]
        head = db.checkpointer().get_tuple(threads.config("bob"))
        assert head is not None
        assert head.checkpoint["id"] == IDS[3]


def rows_of_two() -> tuple[list[Any], list[Any]]:
    rows = [("ada", IDS[0], None, talk("a")), ("bob", IDS[2], None, talk("b"))]
    return rows, [("ada", IDS[0], "topic", '"new"')]


@pytest.mark.parametrize(
    "names",
    [("checkpoints", "writes"), ('"Checkpoints"', '"Writes"'), ('"CHECKPOINTS"', "writes")],
)
def test_tables_are_found_in_another_schema_and_in_any_case(url: str, names: tuple[str, str]) -> None:
    with psycopg.connect(url) as connection:
        connection.execute('CREATE SCHEMA "My agents"')
        connection.execute("CREATE TABLE public.writes (unrelated int)")
    there = f"{url}{'&' if '?' in url else '?'}options=-csearch_path%3D%22My%5C%20agents%22"
    fill(there, checkpoint_columns("jsonb"), write_columns("jsonb"), *rows_of_two(), names)
    with closing(open_source(SourceKind.PLAIN, there)) as source, perdure.connect_sync("memory://") as db:
        found = [(r.thread, r.state, r.writes) for r in parity.imported(source, db)]
        assert found == [("ada", "imported", 1), ("bob", "imported", 0)]
    with pytest.raises(BadUrl, match=r"no table checkpoints on its search_path .*in My agents.*csearch_path"):
        open_source(SourceKind.PLAIN, url)


def test_a_table_of_writes_in_another_schema_is_not_this_one_s(url: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute("CREATE SCHEMA other")
    there = f"{url}{'&' if '?' in url else '?'}options=-csearch_path%3Dpublic,other"
    fill(
        url,
        checkpoint_columns("jsonb"),
        write_columns("jsonb"),
        *rows_of_two(),
        ("checkpoints", "other.writes"),
    )
    with closing(open_source(SourceKind.PLAIN, there)) as source, perdure.connect_sync("memory://") as db:
        assert [(r.state, r.writes) for r in parity.imported(source, db)] == [("imported", 0)] * 2


@pytest.mark.parametrize(
    ("columns", "writes", "why"),
    [
        (checkpoint_columns("xml"), "", "column state of the table checkpoints is of type xml"),
        (checkpoint_columns("jsonb", "interval"), "", "column created_at .* is of type interval"),
        (checkpoint_columns("jsonb"), write_columns("int[]"), r"column value of the table writes is of type"),
        ("thread_id bigint, checkpoint_id text, parent_id text, state text", "", "is of type bigint, so ids"),
        ("thread_id text, checkpoint_id int, parent_id int, state text", "", "checkpoint_id of .* integer"),
        ("thread_id text, checkpoint_id text, state text", "", "table checkpoints lacks parent_id"),
        (checkpoint_columns("text"), "thread_id text, checkpoint_id text", "writes lacks channel, value"),
        (checkpoint_columns("text"), write_columns("text", "uuid"), "text in checkpoints and uuid in writes"),
        (checkpoint_columns("text"), write_columns("text", "char(40)"), "and character in writes"),
    ],
)  # fmt: skip
def test_other_columns_are_refused_by_name(url: str, columns: str, writes: str, why: str) -> None:
    fill(url, columns, writes)
    with pytest.raises(BadUrl, match=why):
        open_source(SourceKind.PLAIN, url)


def test_ids_that_the_database_would_mix_up_are_refused(url: str) -> None:
    fill(url, checkpoint_columns("jsonb"), "", [("ada", IDS[0], None, "{}"), ("", IDS[1], None, "{}")])
    with pytest.raises(BadUrl, match="whose ids are empty or not text"):
        open_source(SourceKind.PLAIN, url)
    with psycopg.connect(url) as connection:
        connection.execute("CREATE COLLATION loose (provider = libc, locale = 'C')")
        connection.execute("ALTER TABLE checkpoints ALTER thread_id TYPE text COLLATE loose")
        # One that is loose by itself needs ICU, which this server was built without.
        connection.execute("UPDATE pg_collation SET collisdeterministic = false WHERE collname = 'loose'")
    with pytest.raises(BadUrl, match="nondeterministic collation"):
        open_source(SourceKind.PLAIN, url)


def test_two_tables_of_one_name_are_refused(url: str) -> None:
    for name in ('"Checkpoints"', '"CHECKPOINTS"'):
        fill(url, checkpoint_columns("jsonb"), names=(name, ""))
    with pytest.raises(BadUrl, match="CHECKPOINTS, Checkpoints; make a view"):
        open_source(SourceKind.PLAIN, url)
    fill(url, checkpoint_columns("jsonb"), rows=rows_of_two()[0])
    with closing(open_source(SourceKind.PLAIN, url)) as source:
        assert list(source.threads()) == ["ada", "bob"]


def test_a_view_and_its_odd_rows(url: str) -> None:
    rows = [*rows_of_two()[0], ("odd", IDS[1], None, "no JSON"), ("none", IDS[1], None, None)]
    fill(url, checkpoint_columns("text"), write_columns("text"), rows, rows_of_two()[1])
    with psycopg.connect(url) as connection:
        for table in ("checkpoints", "writes"):
            connection.execute(f"ALTER TABLE {table} RENAME TO kept_{table}".encode())
            connection.execute(f"CREATE VIEW {table} AS SELECT * FROM kept_{table}".encode())
    with closing(open_source(SourceKind.PLAIN, url)) as source, perdure.connect_sync("memory://") as db:
        reports = {r.thread: (r.state, r.writes, r.why) for r in parity.imported(source, db)}
    assert reports["ada"] == ("imported", 1, "")
    assert reports["bob"] == ("imported", 0, "")
    assert reports["odd"][2].startswith(f"the state of checkpoint {IDS[1]}: a value in JSON cannot be read")
    assert reports["none"][2] == f"the state of checkpoint {IDS[1]} is not an object"


def test_the_command_imports_it_and_says_what_is_wrong(url: str, tmp_path: Path) -> None:
    target = f"sqlite:///{tmp_path / 'threads.db'}"
    run = CliRunner().invoke
    assert run(app, ["migrate", "--db", target]).exit_code == 0
    import_ = ["import", url, "--from", "plain", "--db", target]
    refused = run(app, import_)
    assert isinstance(refused.exception, BadUrl)
    assert "no table checkpoints" in str(refused.exception)
    fill(
        url,
        checkpoint_columns("jsonb", "timestamptz"),
        write_columns("jsonb"),
        *rows_of_two(),
        ("checkpoints", "writes"),
    )
    done = run(app, import_)
    assert (done.exit_code, done.exception) == (0, None), done.output
    assert "2 threads, 2 checkpoints, 1 pending write" in done.output
    assert "2 checkpoints compared equal" in done.output
    assert "2 threads unchanged" in run(app, import_).output


def test_a_server_that_does_not_answer_is_unavailable() -> None:
    with pytest.raises(Unavailable, match="does not answer"):
        open_source(SourceKind.PLAIN, f"postgresql://u:secret@127.0.0.1:{free_port()}/x")
