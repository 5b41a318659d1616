"""Sources of sessions by their place: a file, or a table of SQLite, PostgreSQL or DynamoDB."""

from __future__ import annotations

import re
from pathlib import Path

from perdure.errors import BadUrl
from perdure.imports.histories.session_tables import FileSessions, SessionTable, TableSessions, quote
from perdure.imports.histories.sessions import SessionSource
from perdure.imports.kinds import require_extra
from perdure.imports.sqlite_rows import SqliteRows

SQLITE_MAGIC = b"SQLite format 3\0"
"""First bytes of a SQLite file."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_$]*")


def open_sessions(where: str, names: SessionTable) -> SessionSource:
    """Open a source for reading; the caller closes it.

    Args:
        where: A file with a line for each session, a SQLite file, or the URL of a PostgreSQL database or a
            DynamoDB table.
        names: The names of the table and its columns; the name of a DynamoDB table is in its URL.

    Raises:
        BadUrl: There is no such source, or it has another form.
        MissingExtra: The client library of the source is not installed.
        Unavailable: The source does not answer.
    """
    for name in (*names.table.split("."), names.key, names.column or names.key):
        if not _NAME.fullmatch(name):
            raise BadUrl(f"{name!r} is not a name of a table or a column")
    if where.startswith("dynamodb://"):
        with require_extra("dynamodb"):
            from perdure.imports.histories.session_dynamodb import DynamoSessions
        return DynamoSessions(where, names)
    if where.startswith(("postgresql://", "postgres://")):
        with require_extra("postgres"):
            from perdure.imports.postgres_rows import PostgresRows
        rows = PostgresRows(where)
        return TableSessions(rows.name, rows, names, quote(names.table), "{key}::text")
    path = Path(where.removeprefix("sqlite:///"))
    if not path.is_file():
        raise BadUrl(f"{path} is not a file; pass one, or postgresql://… or dynamodb://…")
    with path.open("rb") as file:
        is_sqlite = file.read(len(SQLITE_MAGIC)) == SQLITE_MAGIC
    if is_sqlite:
        text = "CASE WHEN typeof({key}) IN ('text', 'integer') THEN {key} END"
        return TableSessions(str(path), SqliteRows(path), names, names.table.rpartition(".")[2], text)
    return FileSessions(path)
