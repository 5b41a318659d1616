"""An application's own table in the database of its threads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import apsw
import psycopg

from perdure.storage.sqlite.driver import file_of
from perdure.storage.url import open_driver
from tests.backends import EMPTY

TABLE = "own_notes"
CREATE = f"CREATE TABLE {TABLE} (id INTEGER PRIMARY KEY, note TEXT, thread TEXT)"
ADD = f"INSERT INTO {TABLE} (id, note, thread) VALUES (:id, :note, :thread)"
BOTH = ("sqlite", "postgresql")
"""The backends whose commits can include statements."""


@contextmanager
def own_tables(backend: str) -> Iterator[str]:
    """The URL of a database with the schema of Perdure, and with the application's table."""
    with EMPTY[backend]() as url:
        open_driver(url, migrate=True).close()
        query(url, f"DROP TABLE IF EXISTS {TABLE}")
        query(url, CREATE)
        yield url


def query(url: str, text: str) -> list[Any]:
    """The rows of a query by a connection of its own. A process has one copy of SQLite for a file: apsw's."""
    if url.startswith("sqlite"):
        with closing(apsw.Connection(str(file_of(url)))) as connection:
            connection.set_busy_timeout(10_000)
            return list(connection.execute(text))
    with psycopg.connect(url.partition("?")[0], autocommit=True) as connection:
        found = connection.execute(text.encode())
        return [] if found.description is None else found.fetchall()


def notes(url: str) -> list[str]:
    """The notes in the table, in order."""
    return [note for (note,) in query(url, f"SELECT note FROM {TABLE} ORDER BY note")]
