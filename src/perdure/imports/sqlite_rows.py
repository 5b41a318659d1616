"""Reads a SQLite file of another program: read-only, with lone surrogates in text that is not UTF-8.

SQLite stores any bytes as text. A query that meets such a row must not end the import of all others, so the
bytes are kept as lone surrogates, by which the row can be found again and is refused when it is translated.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from perdure.errors import Unavailable

_NUMBERED = re.compile(r"\?(\d+)?")


class SqliteRows:
    """A SQLite file, opened for reading only.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None, timeout=30
        )
        self.connection.text_factory = _decode

    def __call__(self, query: str, *values: object) -> list[Any]:
        """Return the rows of a query; raises ``Unavailable`` if the file cannot be read."""
        if any(isinstance(value, str) and not is_utf8(value) for value in values):
            query = _NUMBERED.sub(r"CAST(?\1 AS TEXT)", query)
            values = tuple(
                value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
                for value in values
            )
        try:
            return self.connection.execute(query, values).fetchall()
        except sqlite3.DatabaseError as error:
            raise Unavailable(f"{self.path} cannot be read: {error}") from error

    def begin(self) -> None:
        """Do nothing: each query reads the state of its own moment."""

    def iterate(self, query: str) -> Iterator[Any]:
        """Yield the rows of a query one by one; raises ``Unavailable`` if the file cannot be read."""
        try:
            yield from self.connection.execute(query)
        except sqlite3.DatabaseError as error:
            raise Unavailable(f"{self.path} cannot be read: {error}") from error

    def columns(self, table: str) -> set[str]:
        """Return the names of a table's columns, none if there is no such table."""
        return {row[0] for row in self("SELECT name FROM pragma_table_info(?)", table)}

    def close(self) -> None:
        """Close the file."""
        self.connection.close()


def has_columns(path: Path, wanted: Sequence[tuple[str, set[str]]]) -> bool:
    """Return True if a file is a SQLite database with one of these tables, each given with some columns."""
    if not path.is_file():
        return False
    with closing(SqliteRows(path)) as rows:
        try:
            return any(rows.columns(table) >= columns for table, columns in wanted)
        except Unavailable:
            return False


def is_utf8(text: str) -> bool:
    """Return True if text that was read is UTF-8 at the source."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _decode(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")
