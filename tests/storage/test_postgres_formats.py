"""A database that an earlier release made is refused, is upgraded beside running processes, and goes on.

``postgres1.dump`` is what the first release made of an empty database, with its functions; the threads in it
are those of ``format1.sql`` (``test_formats``).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from langgraph.types import Command

import perdure
from perdure.model.ops import Drop, Fetch, Get
from perdure.model.records import GC, KINDS, LANE, Partition
from perdure.storage.postgres import backend, schema
from perdure.storage.postgres.url import parse_url
from perdure.storage.sqlite import driver as sqlite
from perdure.storage.url import open_driver
from perdure.testing.conformance import rows
from tests.langgraph.racing import talking
from tests.langgraph.session import config
from tests.servers import postgres

HERE = Path(__file__).parent
AT = Partition("", "thread")
LATE = 1 << 60


@pytest.fixture
def admin() -> Iterator[psycopg.Connection]:
    with psycopg.connect(postgres.shared().url(), autocommit=True) as connection:
        yield connection


@pytest.fixture
def url(admin: psycopg.Connection) -> Iterator[str]:
    """A database of the first release."""
    with postgres.empty() as url:
        text = (HERE / "postgres1.dump").read_text()
        admin.execute(text.replace("{schema}", schema.quoted(parse_url(url).schema)).encode())
        yield url


OF_FILES = ({"checksum"}, {"checksum", "total", "head", "commits"})
"""Columns that only SQLite's tables have: those of records, and those of the threads' own table."""


@pytest.fixture
def talks(url: str, admin: psycopg.Connection, tmp_path: Path) -> str:
    """A database of the first release with the threads of ``format1.sql``."""
    path, into = tmp_path / "threads.db", schema.quoted(parse_url(url).schema)
    with closing(sqlite3.connect(path)) as source:
        source.executescript((HERE / "format1.sql").read_text())
        sqlite.migrate(f"sqlite:///{path}")
        for table in ("thread", *(kind.name for kind in KINDS)):
            listed = source.execute(f"SELECT name FROM pragma_table_info('perdure_{table}')")
            kept = OF_FILES[table == "thread"]
            names = [name for (name,) in listed if name not in kept]
            cursor = source.execute(f"SELECT {', '.join(names)} FROM perdure_{table}")
            held = cursor.fetchall()
            if held:
                marks = ", ".join("%s" for _ in names)
                at = f"{into}.{table} ({', '.join(names)}) OVERRIDING SYSTEM VALUE"
                admin.cursor().executemany(f"INSERT INTO {at} VALUES ({marks})".encode(), held)
    admin.execute(f"ALTER TABLE {into}.thread ALTER COLUMN pk RESTART WITH 1000".encode())
    return url


def test_an_older_schema_is_refused_with_the_command_to_run(url: str) -> None:
    with pytest.raises(
        perdure.MigrationRequired, match="has schema version 1, not 6; run `perdure migrate --db postgres"
    ):
        open_driver(url)
    assert backend.schema_version(url) == 1
    assert backend.pending(url)
    assert backend.migrate(url) == 1
    assert backend.pending(url) == []
    assert backend.migrate(url) == backend.schema_version(url) == backend.SCHEMA_VERSION


def shape(admin: psycopg.Connection, url: str) -> dict[str, list[tuple[object, ...]]]:
    """Everything that a schema consists of, whatever its name."""
    name = parse_url(url).schema
    questions = {
        "columns": "SELECT c.relname, a.attnum, a.attname, format_type(a.atttypid, a.atttypmod),"
        " a.attnotnull, o.collname FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid"
        " LEFT JOIN pg_collation o ON o.oid = a.attcollation WHERE c.relnamespace = %s::regnamespace"
        " AND a.attnum > 0",
        "indexes": "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = %s",
        "constraints": "SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint"
        " WHERE connamespace = %s::regnamespace",
        "functions": "SELECT proname, pg_get_functiondef(oid) FROM pg_proc"
        " WHERE pronamespace = %s::regnamespace",
    }
    return {
        what: sorted(
            tuple(value.replace(name, "?") if isinstance(value, str) else str(value) for value in row)
            for row in admin.execute(sql.encode(), (name,))
        )
        for what, sql in questions.items()
    }


def test_what_an_upgrade_makes_is_what_a_new_database_has(url: str, admin: psycopg.Connection) -> None:
    backend.migrate(url)
    with postgres.empty() as new:
        backend.migrate(new)
        upgraded, whole = shape(admin, url), shape(admin, new)
    old = {row[0] for row in upgraded["functions"]} - {row[0] for row in whole["functions"]}
    assert old == {"drop_1"}
    upgraded["functions"] = [row for row in upgraded["functions"] if row[0] not in old]
    assert upgraded == whole
    assert len(whole["functions"]) == 15
    assert len(whole["columns"]) > 100


@pytest.mark.parametrize("state", ["plain", "delta"])
def test_threads_of_the_first_format_are_all_there_and_go_on(talks: str, state: str) -> None:
    with perdure.connect_sync(talks, migrate=True) as db:
        talk, asks = f"{state} talk", f"{state} asks"
        assert {t.thread_id for t in db.threads()} >= {talk, asks}
        assert db.fsck() == []
        graph = talking(db.checkpointer(), state, asks=False)
        before = graph.get_state(config(talk)).values["said"]
        assert before[-4:] == ["another branch", "ready", "think", "speak"]
        graph.invoke({"said": ["more"]}, config(talk))
        after = graph.get_state(config(talk)).values["said"]
        assert after[: len(before) + 1] == [*before, "more"]
        answered = talking(db.checkpointer(), state, asks=True).invoke(Command(resume="yes"), config(asks))
        assert answered["said"] == ["hello", "heard yes", "think", "speak"]
        assert db.fsck() == []


# While an upgrade rolls out


def commit_of_before(admin: psycopg.Connection, url: str) -> None:
    """What a process of the first release sends to write the thread's generation."""
    name = schema.quoted(parse_url(url).schema)
    counts = [1, 1, 1, LATE, *[0] * 10, 1, *[0] * 16]
    call = f"SELECT {name}.commit_1(%s::bigint[], %s::bigint[], %s::text[], '{{}}')"
    done = admin.execute(call.encode(), (counts, [1, 1, 1], list(AT))).fetchone()
    assert done == ([0],)


def drop_of_before(admin: psycopg.Connection, url: str, most: int = 1000) -> bool:
    name = schema.quoted(parse_url(url).schema)
    call = f"SELECT {name}.drop_1(%s, %s, %s, %s, %s)".encode()
    row = admin.execute(call, (*AT, most, LATE)).fetchone()
    assert row is not None
    return bool(row[0])


def test_processes_of_a_release_that_knows_no_compression_are_stopped(
    url: str, admin: psycopg.Connection
) -> None:
    """They would take what new ones store for damaged, and fail their runs for it."""
    commit_of_before(admin, url)
    with closing(open_driver(url, migrate=True)) as driver:
        (records,) = driver.perform(Fetch(AT, (Get(GC, ()),)))
        assert [r.version for r in records] == [1]
        with pytest.raises(psycopg.errors.UndefinedFunction):
            commit_of_before(admin, url)


def test_the_error_of_such_a_process_asks_for_the_upgrade(url: str, admin: psycopg.Connection) -> None:
    backend.migrate(url)
    with closing(open_driver(url)) as driver:
        rows.stored(driver, rows.tag("t"), at=AT)
        name = schema.quoted(parse_url(url).schema)
        for function in ("fetch", "commit"):
            admin.execute(f"DROP FUNCTION {name}.{function}_{schema.SCHEMA_VERSION}".encode())
        with pytest.raises(perdure.MigrationRequired, match="a newer release has migrated it"):
            driver.perform(Fetch(AT, (Get(GC, ()),)))
        with pytest.raises(perdure.MigrationRequired, match="a newer release has migrated it"):
            rows.stored(driver, rows.tag("u"), at=AT)


def test_a_thread_that_the_release_before_drops_leaves_nothing_behind(
    url: str, admin: psycopg.Connection
) -> None:
    name = schema.quoted(parse_url(url).schema)
    with closing(open_driver(url, migrate=True)) as driver:
        rows.stored(driver, *rows.every_kind(), at=AT)
        while drop_of_before(admin, url, most=4):
            pass
        for table in ("thread", "dropped", *(kind.name for kind in KINDS)):
            assert admin.execute(f"SELECT count(*) FROM {name}.{table}".encode()).fetchone() == (0,), table
        driver.perform(Drop(AT))


def test_who_might_use_the_tables_before_the_upgrade_may_use_the_new_ones(
    url: str, admin: psycopg.Connection
) -> None:
    name, role = schema.quoted(parse_url(url).schema), 'The "app"'
    quoted = schema.quoted(role)
    admin.execute(f"CREATE ROLE {quoted} LOGIN".encode())
    try:
        admin.execute(f"GRANT USAGE ON SCHEMA {name} TO {quoted}".encode())
        rights = "SELECT, INSERT, UPDATE, DELETE"
        admin.execute(f"GRANT {rights} ON ALL TABLES IN SCHEMA {name} TO {quoted}".encode())
        admin.execute(f"GRANT SELECT ON {name}.head TO PUBLIC".encode())
        backend.migrate(url)
        with closing(open_driver(url.replace("postgres@", "The%20%22app%22@"))) as driver:
            rows.stored(driver, *rows.every_kind(), at=AT)
            assert rows.get(driver, LANE, "x", at=AT) is not None
            driver.perform(Drop(AT))
        sees = (
            "SELECT has_table_privilege('public', %s, 'SELECT'), has_table_privilege('public', %s, 'INSERT')"
        )
        assert admin.execute(sees.encode(), (f"{name}.outbox",) * 2).fetchone() == (True, False)
    finally:
        admin.execute(f"DROP OWNED BY {quoted}".encode())
        admin.execute(f"DROP ROLE {quoted}".encode())
