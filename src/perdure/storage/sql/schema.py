"""The tables: one for each kind of record, derived from the declarations, and the schema's version."""

from __future__ import annotations

from perdure.model.records import KINDS, Column, Kind
from perdure.storage.sql import listing

SCHEMA_VERSION = 10
"""The version that this release reads and writes."""

PREFIX = "perdure_"
"""The prefix of every table's name, so that the database can be shared with an application."""

_TYPES = {"text": "TEXT", "integer": "INTEGER", "bytes": "BLOB"}


def table(kind: Kind) -> str:
    return PREFIX + kind.name


def write_sqlite_schema() -> tuple[str, ...]:
    """Return the statements that set up an empty SQLite database, in order."""
    statements = [
        _THREADS,
        f"CREATE INDEX {PREFIX}thread_checksum ON {PREFIX}thread (checksum)",
    ]
    for kind in KINDS:
        statements.extend(_write_sqlite_table(kind))
    statements.extend(listing.make_sqlite_statements())
    statements.append(
        f"CREATE TABLE {PREFIX}schema (version INTEGER NOT NULL, one INTEGER PRIMARY KEY CHECK (one = 1))"
    )
    statements.append(f"INSERT INTO {PREFIX}schema (version, one) VALUES ({SCHEMA_VERSION}, 1)")
    return tuple(statements)


def write_sqlite_file() -> tuple[str, ...]:
    """Return the statements that set up an empty file: the schema, the history by which a driver detects that
    the file's content was replaced, and the offset of its time from the time since the host's start."""
    return (*write_sqlite_schema(), *HISTORY, CLOCK)


HISTORY = (
    f"CREATE TABLE {PREFIX}history (id BLOB NOT NULL, state INTEGER NOT NULL,"
    " one INTEGER PRIMARY KEY CHECK (one = 1))",
    f"INSERT INTO {PREFIX}history (id, state, one) VALUES (randomblob(16), 0, 1)",
)


CLOCK = (
    f"CREATE TABLE {PREFIX}clock (boot TEXT NOT NULL, ahead INTEGER NOT NULL,"
    " one INTEGER PRIMARY KEY CHECK (one = 1))"
)


_THREADS = (
    f"CREATE TABLE {PREFIX}thread (pk INTEGER PRIMARY KEY AUTOINCREMENT, tenant TEXT NOT NULL,"
    " thread TEXT NOT NULL, space TEXT NOT NULL, checksum INTEGER, total INTEGER, head INTEGER,"
    " commits INTEGER,"
    " UNIQUE (space, tenant, thread))"
)
"""The catalogue. A partition's number, by which its records are keyed, is never reused. ``checksum`` is that
of its names, ``total`` the sum of its records' checksums, ``head`` the checksum of its root head, ``commits``
the number of commits that wrote to it. These four are NULL in databases that do not keep them."""


def _write_sqlite_table(kind: Kind) -> list[str]:
    name = table(kind)
    columns = ["t INTEGER NOT NULL", *(_write_column(c) for c in (*kind.key, *kind.fields))]
    if kind.versioned:
        columns.append("version INTEGER NOT NULL")
    # Before the body, which may be stored on pages of its own, so that it is read without these.
    columns.append("checksum INTEGER")
    if kind.body:
        columns.append("body BLOB NOT NULL")
    key = ", ".join(["t", *(c.name for c in kind.key)])
    if kind.compact:
        columns.append(f"PRIMARY KEY ({key})")
        out = [f"CREATE TABLE {name} ({', '.join(columns)}) WITHOUT ROWID"]
    else:
        # Larger rows are stored in insertion order, which packs pages; the key is an index of its own.
        out = [
            f"CREATE TABLE {name} ({', '.join(columns)})",
            f"CREATE UNIQUE INDEX {name}_key ON {name} ({key})",
        ]
    for by in kind.by:
        prefix = ", ".join(["t", *(c.name for c in kind.key[:-1])])
        out.append(f"CREATE INDEX {name}_{by} ON {name} ({prefix}, {by})")
    if kind.index is not None:
        out.append(
            f"CREATE INDEX {name}_{kind.index} ON {name} ({kind.index}) WHERE {kind.index} IS NOT NULL"
        )
    return out


def _write_column(column: Column) -> str:
    null = "" if column.nullable else " NOT NULL"
    return f"{column.name} {_TYPES[column.kind]}{null}"
