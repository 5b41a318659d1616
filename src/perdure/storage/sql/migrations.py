"""The steps from one schema version to the next, and who may open what."""

from __future__ import annotations

from pathlib import Path

import apsw

from perdure.errors import Unmigrated
from perdure.storage.sql.schema import PREFIX, SCHEMA_VERSION, sqlite_schema

# One entry a version: the statements that lead from the version before to it. The first makes the schema.
STEPS: dict[int, tuple[str, ...]] = {1: sqlite_schema()}


def version(connection: apsw.Connection) -> int:
    """The schema version of the file, 0 when there is none."""
    known = connection.execute(
        "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?", (f"{PREFIX}schema",)
    ).fetchone()
    if known is None:
        return 0
    row = connection.execute(f"SELECT version FROM {PREFIX}schema").fetchone()
    return 0 if row is None else int(row[0])


def check(connection: apsw.Connection, path: Path) -> None:
    """Raise ``Unmigrated`` unless the schema is this release's."""
    found = version(connection)
    if found == SCHEMA_VERSION:
        return
    if found > SCHEMA_VERSION:
        raise Unmigrated(
            f"{path} has schema version {found}, this release knows {SCHEMA_VERSION}; upgrade perdure"
        )
    what = "has no Perdure schema" if found == 0 else f"has schema version {found}, not {SCHEMA_VERSION}"
    raise Unmigrated(f"{path} {what}; run `perdure migrate sqlite:///{path}`, or connect with migrate=True")


def apply(connection: apsw.Connection, path: Path) -> int:
    """Bring the schema to this release's version in one transaction; the version that was found."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        found = version(connection)
        if found > SCHEMA_VERSION:
            check(connection, path)
        for step in range(found + 1, SCHEMA_VERSION + 1):
            for statement in STEPS[step]:
                connection.execute(statement)
        if 0 < found < SCHEMA_VERSION:
            connection.execute(f"UPDATE {PREFIX}schema SET version = ?", (SCHEMA_VERSION,))
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return found
