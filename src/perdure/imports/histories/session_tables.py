"""Reads histories of sessions: lines of a file, a table of SQLite or PostgreSQL, a table of DynamoDB.

A table has a row for each session: its key, and its messages as JSON, ``[{"role": …, "content": …}, …]``.
Rows are read by pages in the order of their keys, each page as it is at that moment, while others write.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from perdure.errors import BadUrl
from perdure.imports.histories.sessions import SourceSession
from perdure.imports.sqlite_rows import is_utf8

PAGE = 100
"""Number of rows of one request."""
KEY = "session_id"
COLUMNS = ("history", "messages")
"""Default names for the column of the messages; a table has one of them unless another column is named."""


class SessionTable(NamedTuple):
    """Names of a table of sessions.

    Attributes:
        table: The table, with its schema where it needs one.
        key: The column of the session's id.
        column: The column of its messages; ``None`` for the first of ``COLUMNS`` that exists.
    """

    table: str = "sessions"
    key: str = KEY
    column: str | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The names that the column of the messages may have."""
        if self.column:
            return (self.column,)
        return COLUMNS


class FileSessions:
    """A file with a line for each session, as ``perdure export --as sessions`` prints it."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._path = path
        for _ in self._read_lines():
            """Each line is checked before the first is imported."""

    def _read_lines(self) -> Iterator[dict[str, Any]]:
        seen: dict[str, int] = {}
        with self._path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                where = f"{self.name}, line {number}"
                try:
                    found = json.loads(line)
                except (ValueError, RecursionError):
                    raise BadUrl(f"{where}: not JSON") from None
                name = None
                if isinstance(found, dict):
                    name = found.get(KEY)
                if not isinstance(name, str) or not name or "messages" not in found:
                    raise BadUrl(f"{where}: not an object with {KEY} and messages")
                if name in seen:
                    raise BadUrl(f"{where}: session {name!r} is on line {seen[name]} already")
                seen[name] = number
                yield found

    def sessions(self) -> Iterator[SourceSession]:
        """Yield the sessions in the order of the file."""
        for line in self._read_lines():
            yield SourceSession(line[KEY], line["messages"], line.get("budget"))

    def close(self) -> None:
        """Do nothing: the file is open only while it is read."""


class SessionRows(Protocol):
    """The rows of a database of SQLite or PostgreSQL."""

    def __call__(self, query: str, *values: object) -> Any: ...

    def begin(self) -> None: ...

    def columns(self, table: str) -> Iterable[str]: ...

    def close(self) -> None: ...


class TableSessions:
    """A table, which others may write to; closing the source closes ``rows``.

    Args:
        name: The source's name for messages.
        rows: The rows of the database.
        names: The names of the table and its columns.
        table: The table, as ``rows`` takes it.
        text: A template for the text of a key, NULL if it cannot be the id of a session.
    """

    def __init__(self, name: str, rows: SessionRows, names: SessionTable, table: str, text: str) -> None:
        self.name = name
        self._rows = rows
        try:
            columns = set(rows.columns(table))
            self._queries = write_page_queries(name, names, columns, f"{text}, {{key}}")
        except BaseException:
            self.close()
            raise

    def sessions(self) -> Iterator[SourceSession]:
        """Yield the sessions in the order of their keys."""
        first_query, next_query = self._queries
        self._rows.begin()
        page = self._rows(f"{first_query} LIMIT {PAGE}")
        while page:
            for text, key, messages in page:
                yield session_of(text, messages, repr(key))
            self._rows.begin()
            page = self._rows(f"{next_query} LIMIT {PAGE}", page[-1][1])

    def close(self) -> None:
        """Close the database."""
        self._rows.close()


def write_page_queries(name: str, names: SessionTable, columns: set[str], key: str) -> tuple[str, str]:
    """Return the queries for the first page of a table, and for the page after a key.

    Raises:
        BadUrl: There is no such table, or it lacks a column.
    """
    if not columns:
        raise BadUrl(f"{name} has no table {names.table}; name it with --table")
    if names.key not in columns:
        raise BadUrl(f"{name}: the table {names.table} has no column {names.key}; name it with --key")
    column = next((each for each in names.columns if each in columns), None)
    if column is None:
        wanted = " or ".join(names.columns)
        raise BadUrl(f"{name}: the table {names.table} has no column {wanted}; name it with --column")
    by = quote(names.key)
    select = f"SELECT {key.format(key=by)}, {quote(column)} FROM {quote(names.table)}"  # noqa: S608 - quoted names
    order = f" ORDER BY {by}"
    return f"{select} WHERE {by} IS NOT NULL{order}", f"{select} WHERE {by} > ?1{order}"


def quote(name: str) -> str:
    """Return a name of a table or column, which has no quotation mark, as SQL; a schema may precede it."""
    return ".".join(f'"{part}"' for part in name.split("."))


def session_of(key: Any, messages: Any, shown: str) -> SourceSession:
    """Return the session of a row, or the reason to skip it."""
    if key is None or key == "" or not is_utf8(str(key)):
        return SourceSession(shown, why="its key is neither text nor a whole number")
    if messages is None:
        return SourceSession(str(key), why="it has no history")
    return SourceSession(str(key), messages)
