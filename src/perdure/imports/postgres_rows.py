"""Connects to a PostgreSQL database of another program, for reading only."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import psycopg

from perdure.errors import BadUrl, Unavailable
from perdure.storage.url import redact

PREFIXES = ("postgresql://", "postgres://")
_NUMBERED = re.compile(r"\?(\d+)")


def connect(url: str) -> psycopg.Connection[Any]:
    """Open a read-only connection, whose transactions each read the state of one moment.

    Raises:
        BadUrl: libpq cannot read the URL.
        Unavailable: The server does not answer.
    """
    name = redact(url)
    if not url.startswith(PREFIXES):
        raise BadUrl(f"{name}: not a PostgreSQL URL; write postgresql://user@host:port/database")
    try:
        connection: psycopg.Connection[Any] = psycopg.connect(url, connect_timeout=10)
    except psycopg.ProgrammingError:
        raise BadUrl(f"{name}: not a PostgreSQL URL that libpq can read") from None
    except psycopg.OperationalError as error:
        raise Unavailable(f"{name} does not answer: {type(error).__name__}") from None
    connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    connection.read_only = True
    return connection


class PostgresRows:
    """A PostgreSQL database, opened for reading only.

    Args:
        url: A ``postgresql://`` URL with libpq's parameters.

    Raises:
        BadUrl: libpq cannot read the URL.
        Unavailable: The server does not answer.
    """

    def __init__(self, url: str) -> None:
        self.name = redact(url)
        self._connection = connect(url)

    def __call__(self, query: str, *values: object) -> Sequence[Any]:
        """Return the rows of a query with parameters ``?1``, ``?2``…; raises ``Unavailable`` if it fails."""
        with psycopg.RawCursor(self._connection) as cursor:
            try:
                return cursor.execute(_NUMBERED.sub(r"$\1", query).encode(), values).fetchall()
            except psycopg.Error as error:
                raise Unavailable(f"{self.name} cannot be read: {type(error).__name__}") from error

    def begin(self) -> None:
        """Let the following queries read the state at the moment of the first one."""
        with suppress(psycopg.Error):  # the next query says what is wrong with the connection
            self._connection.rollback()

    def columns(self, table: str) -> dict[str, str]:
        """Return a table's columns with their types, a domain as its base type; empty if there is no such
        table.

        Args:
            table: Its name as SQL.
        """
        rows = self(
            "SELECT attname, format_type(coalesce(nullif(typbasetype, 0), t.oid), NULL) "
            "FROM pg_attribute JOIN pg_type t ON t.oid = atttypid "
            "WHERE attrelid = to_regclass(?1) AND attnum > 0 AND NOT attisdropped",
            table,
        )
        return dict(rows)

    def close(self) -> None:
        """Close the connection."""
        with suppress(psycopg.Error):
            self._connection.close()
