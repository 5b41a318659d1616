"""A statement that a SQL database refuses is neither damage nor an outage, which would be repeated for ever.

Covers perdure.storage.sql.refusals, perdure.storage.sqlite.errors, perdure.storage.d1.retry,
perdure.storage.postgres.errors.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import apsw
import psycopg
import pytest

from perdure.errors import Corrupt, MigrationRequired, StatementRefused, TooLarge, Unavailable
from perdure.model.ops import Commit, Committed, Expect, Fetch, Range
from perdure.model.records import TAG
from perdure.storage.d1 import retry
from perdure.storage.d1.rest import Rejected
from perdure.storage.port import Driver
from perdure.storage.postgres.errors import translate as translate_postgres
from perdure.storage.postgres.url import parse_url
from perdure.storage.sqlite import driver as sqlite
from perdure.storage.sqlite.driver import SqliteDriver
from perdure.storage.sqlite.errors import translate as translate_sqlite
from perdure.storage.url import open_driver
from perdure.testing.conformance import rows
from perdure.testing.conformance.rows import HERE
from tests.servers import postgres

VALUES = ", ".join(["?"] * 40_000)
TOO_MUCH = {
    "conditions": f"SELECT {' AND '.join(['1'] * 5_000)}",
    "parameters": f"SELECT 1 WHERE 1 IN ({VALUES})",
    "a parameter's number": "SELECT ?40000",
    "selects": " UNION ".join(["SELECT 1"] * 600),
    "columns": f"SELECT {', '.join('1' for _ in range(3_000))}",
    "joins": "SELECT 1 FROM (SELECT 1)" + ", (SELECT 1)" * 70,
    "parts of an expression": f"SELECT {'(' * 4_000}1{')' * 4_000}",
}


def refuse(sql: str) -> apsw.Error:
    with closing(apsw.Connection(":memory:")) as connection, pytest.raises(apsw.Error) as caught:
        connection.execute(sql)
    return caught.value


@pytest.mark.parametrize("sql", TOO_MUCH.values(), ids=TOO_MUCH)
def test_a_statement_beyond_a_limit_of_sqlite_is_too_large(sql: str) -> None:
    error = refuse(sql)
    for found in (
        translate_sqlite(error, Path("threads.db")),
        retry.translate(Rejected(f"{error}: SQLITE_ERROR"), "d1://a/b"),
    ):
        assert type(found) is TooLarge, error
        assert found.__cause__ is not None


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("datatype mismatch: SQLITE_MISMATCH", StatementRefused),
        ('near "FORM": syntax error: SQLITE_ERROR', StatementRefused),
        ("database disk image is malformed: SQLITE_CORRUPT", Corrupt),
        ("no such column: i.ttl at offset 7: SQLITE_ERROR", MigrationRequired),
        ("Expression tree is too large (maximum depth 100): SQLITE_ERROR", TooLarge),
        ("variable number must be between ?1 and ?100 at offset 1: SQLITE_ERROR", TooLarge),
        ("statement too long: SQLITE_TOOBIG", TooLarge),
        ("no idea of what this is", Unavailable),
    ],
)
def test_a_message_of_d1_is_an_error_of_what_it_is_about(message: str, kind: type[Exception]) -> None:
    assert type(retry.translate(Rejected(message), "d1://a/b")) is kind


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        (psycopg.errors.TooManyArguments, TooLarge),
        (psycopg.errors.StatementTooComplex, TooLarge),
        (psycopg.errors.CheckViolation, StatementRefused),
        (psycopg.errors.DivisionByZero, StatementRefused),
        (psycopg.errors.DatatypeMismatch, MigrationRequired),
        (psycopg.errors.OutOfMemory, Unavailable),
    ],
)
def test_a_state_of_postgresql_is_an_error_of_what_it_is_about(
    state: type[psycopg.Error], kind: type[Exception]
) -> None:
    assert type(translate_postgres(state("a message"), parse_url("postgresql://h/d"))) is kind


def check_a_refused_write(driver: Driver) -> None:
    with pytest.raises(StatementRefused, match=r"not this one.*such as a trigger"):
        driver.perform(Commit(HERE, (rows.tag("bad", Expect.ABSENT),)))
    assert driver.perform(Commit(HERE, (rows.tag("good", Expect.ABSENT),))) == Committed()
    (found,) = driver.perform(Fetch(HERE, (Range(TAG),)))
    assert [record.key for record in found] == [("good",)]


def test_a_trigger_that_was_added_to_sqlite_is_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "threads.db"
    sqlite.migrate(f"sqlite:///{path}")
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute(
            "CREATE TRIGGER no AFTER INSERT ON perdure_tag WHEN new.name = 'bad'"
            " BEGIN SELECT RAISE(ABORT, 'not this one'); END"
        )
    with closing(SqliteDriver(path)) as driver:
        check_a_refused_write(driver)


def test_a_trigger_that_was_added_to_postgresql_is_no_outage() -> None:
    with postgres.empty() as url, closing(open_driver(url, migrate=True)) as driver:
        schema = parse_url(url).schema
        with psycopg.connect(postgres.shared().url(), autocommit=True) as admin:
            admin.execute(
                f"CREATE FUNCTION {schema}.no() RETURNS trigger LANGUAGE plpgsql"
                " AS $$ BEGIN RAISE EXCEPTION 'not this one'; END $$".encode()
            )
            admin.execute(
                f"CREATE TRIGGER no BEFORE INSERT ON {schema}.tag FOR EACH ROW WHEN (new.name = 'bad')"
                f" EXECUTE FUNCTION {schema}.no()".encode()
            )
        check_a_refused_write(driver)


def test_a_refused_type_in_sqlite_is_no_outage() -> None:
    error = translate_sqlite(refuse("SELECT 1 LIMIT 'x'"), Path("threads.db"))
    assert type(error) is StatementRefused
