"""A migration of a PostgreSQL database beside processes of the release before, which go on, or are stopped by
a step that removes the functions that they call."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest

import perdure
from perdure.model.ops import Drop, Fetch, Get
from perdure.model.records import GC, INDEXED, KINDS, LANE, TAG, Partition
from perdure.storage.postgres import opening, schema
from perdure.storage.postgres.url import parse_url
from perdure.storage.url import open_driver
from perdure.testing.conformance import rows
from tests.servers import postgres
from tests.storage.next_layout import STOPPING_STEP, next_layout

AT = Partition("", "thread")
PRESENT = opening.SCHEMA_VERSION


@pytest.fixture
def admin() -> Iterator[psycopg.Connection]:
    with psycopg.connect(postgres.shared().url(), autocommit=True) as connection:
        yield connection


@pytest.fixture
def url() -> Iterator[str]:
    """A database of this release."""
    with postgres.empty() as url:
        opening.migrate(url)
        yield url


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


def test_a_step_changes_what_it_names_and_adds_functions(url: str, admin: psycopg.Connection) -> None:
    before = shape(admin, url)
    with next_layout():
        assert opening.migrate(url) == PRESENT
    after = shape(admin, url)
    assert len(before["functions"]) == 15
    added = {row[0] for row in after["functions"]} - {row[0] for row in before["functions"]}
    assert added == {f"{name}_{PRESENT + 1}" for name in ("commit", "fetch", "drop", *INDEXED)}
    changed = {row[0] for row in before["functions"] if row not in after["functions"]}
    assert changed == {f"drop_{PRESENT}"}
    columns = {row[0] for row in after["columns"] if row not in before["columns"]}
    assert columns == {"extra", "tag"}
    assert set(before["columns"]) <= set(after["columns"])
    assert set(before["indexes"]) == set(after["indexes"])


def test_processes_of_both_releases_work_side_by_side(url: str) -> None:
    with closing(open_driver(url)) as old:
        rows.store_ops(old, *rows.every_kind(), at=AT)
        before = rows.everything(old, at=AT)
        with next_layout():
            opening.migrate(url)
            new = open_driver(url)
        with closing(new):
            assert rows.everything(new, at=AT) == before
            for driver, other, name in ((old, new, "old"), (new, old, "new"), (old, new, "again")):
                rows.store_ops(driver, rows.tag(name), at=AT)
                assert rows.get(other, TAG, name, at=AT) is not None
            new.perform(Drop(AT))
            assert rows.everything(old, at=AT) == []


def test_a_step_can_stop_the_processes_of_the_release_before(url: str) -> None:
    """Where they would take what new ones store for damaged, and fail their runs for it."""
    with closing(open_driver(url)) as old:
        rows.store_ops(old, rows.tag("t"), at=AT)
        with next_layout(STOPPING_STEP):
            opening.migrate(url)
            with closing(open_driver(url)) as new:
                assert rows.get(new, TAG, "t", at=AT) is not None
        with pytest.raises(perdure.MigrationRequired, match="a newer release has migrated it"):
            old.perform(Fetch(AT, (Get(GC, ()),)))
        with pytest.raises(perdure.MigrationRequired, match="a newer release has migrated it"):
            rows.store_ops(old, rows.tag("u"), at=AT)


def test_a_thread_that_the_release_before_drops_leaves_nothing_behind(
    url: str, admin: psycopg.Connection
) -> None:
    name = schema.quote(parse_url(url).schema)
    with closing(open_driver(url)) as old:
        with next_layout():
            opening.migrate(url)
            with closing(open_driver(url)) as new:
                rows.store_ops(new, *rows.every_kind(), at=AT)
        # Its own function removes by that of the new release, which knows all tables.
        body = "SELECT prosrc FROM pg_proc WHERE pronamespace = %s::regnamespace AND proname = %s"
        (source,) = admin.execute(body, (parse_url(url).schema, f"drop_{PRESENT}")).fetchone() or ("",)
        assert f"drop_{PRESENT + 1}(" in source
        old.perform(Drop(AT))
        for table in ("thread", "dropped", *(kind.name for kind in KINDS)):
            assert admin.execute(f"SELECT count(*) FROM {name}.{table}".encode()).fetchone() == (0,), table


def test_who_might_use_the_tables_before_the_upgrade_may_use_the_new_ones(
    url: str, admin: psycopg.Connection
) -> None:
    name, role = schema.quote(parse_url(url).schema), 'The "app"'
    quoted = schema.quote(role)
    admin.execute(f"CREATE ROLE {quoted} LOGIN".encode())
    try:
        admin.execute(f"GRANT USAGE ON SCHEMA {name} TO {quoted}".encode())
        rights = "SELECT, INSERT, UPDATE, DELETE"
        admin.execute(f"GRANT {rights} ON ALL TABLES IN SCHEMA {name} TO {quoted}".encode())
        admin.execute(f"GRANT SELECT ON {name}.head TO PUBLIC".encode())
        with next_layout():
            opening.migrate(url)
            with closing(open_driver(url.replace("postgres@", "The%20%22app%22@"))) as driver:
                rows.store_ops(driver, *rows.every_kind(), at=AT)
                assert rows.get(driver, LANE, "x", at=AT) is not None
                driver.perform(Drop(AT))
        may = "SELECT has_table_privilege(%s, %s, 'INSERT')"
        assert admin.execute(may.encode(), (role, f"{name}.extra")).fetchone() == (True,)
        sees = (
            "SELECT has_table_privilege('public', %s, 'SELECT'), has_table_privilege('public', %s, 'INSERT')"
        )
        assert admin.execute(sees.encode(), (f"{name}.extra",) * 2).fetchone() == (True, False)
    finally:
        admin.execute(f"DROP OWNED BY {quoted}".encode())
        admin.execute(f"DROP ROLE {quoted}".encode())
