"""PostgreSQL as a backend: opens, checks and migrates the database of a ``postgresql://`` URL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256

import psycopg

from perdure.errors import MigrationRequired, Unavailable
from perdure.storage.postgres import schema
from perdure.storage.postgres.connection import ServerConnection, translated
from perdure.storage.postgres.driver import PostgresDriver
from perdure.storage.postgres.url import PostgresUrl, parse_url

__all__ = ["SCHEMA_VERSION", "PostgresDriver", "migrate", "open_driver", "pending", "schema_version"]

SCHEMA_VERSION = schema.SCHEMA_VERSION

_MIGRATION_TIMEOUT_S = 300


def open_driver(url: str) -> PostgresDriver:
    """Open the database of a URL; it must have this release's schema."""
    place = parse_url(url)
    _refuse_other(place, schema_version(url))
    return PostgresDriver(place)


def schema_version(url: str) -> int:
    """Return the version of the database's schema, 0 when there is none."""
    place = parse_url(url)
    with _connected(place) as connection:
        return _version(connection, place)


def pending(url: str) -> list[str]:
    """Return the statements that ``migrate`` would execute now."""
    return list(schema.pending(parse_url(url).schema, schema_version(url)))


def migrate(url: str) -> int:
    """Create or upgrade the schema, once for all concurrent callers; return the version that it had."""
    place = parse_url(url)
    with _connected(place) as connection, connection.transaction():
        connection.execute(f"SET LOCAL lock_timeout = '{_MIGRATION_TIMEOUT_S}s'".encode())
        connection.execute("SET LOCAL statement_timeout = 0")
        lock = int.from_bytes(sha256(f"perdure {place.schema}".encode()).digest()[:8], "big", signed=True)
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (lock,))
        encoding = connection.execute("SHOW server_encoding").fetchone()
        if encoding != ("UTF8",):
            raise Unavailable(f"{place.name} is not encoded in UTF8; create a database with ENCODING 'UTF8'")
        found = _version(connection, place)
        if found > SCHEMA_VERSION:
            _refuse_other(place, found)
        for statement in schema.pending(place.schema, found):
            connection.execute(statement.encode())
    return found


def _refuse_other(place: PostgresUrl, found: int) -> None:
    if found > SCHEMA_VERSION:
        raise MigrationRequired(
            f"{place.name} has schema version {found}, this release knows {SCHEMA_VERSION}; upgrade perdure"
        )
    if found < SCHEMA_VERSION:
        what = (
            f"has no Perdure schema {place.schema!r}"
            if found == 0
            else f"has schema version {found}, not {SCHEMA_VERSION}"
        )
        raise MigrationRequired(f"{place.name} {what}; run `{place.migrate}`, or connect with migrate=True")


def _version(connection: psycopg.Connection, place: PostgresUrl) -> int:
    """Return the version from a table that may not exist."""
    table = f"{schema.quoted(place.schema)}.schema"
    known = connection.execute("SELECT to_regclass(%s) IS NOT NULL", (table,)).fetchone()
    if known != (True,):
        return 0
    row = connection.execute(f"SELECT version FROM {table}".encode()).fetchone()
    return 0 if row is None else int(row[0])


@contextmanager
def _connected(place: PostgresUrl) -> Iterator[psycopg.Connection]:
    link = ServerConnection(place)
    try:
        yield link.connected()
    except psycopg.Error as error:
        raise translated(error, place) from error
    finally:
        link.lose()
