"""The steps from one schema version to the next, and the check of the version that is opened."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from perdure.errors import BadUrl, Corrupt, MigrationRequired
from perdure.storage.layout_version import first_version, other_version_error, require_steps
from perdure.storage.sql.checksums import ADVICE
from perdure.storage.sql.schema import PREFIX, SCHEMA_VERSION, write_sqlite_file, write_sqlite_schema

if TYPE_CHECKING:
    # D1 takes its steps from here, and a Worker has no apsw.
    import apsw

STEPS: dict[int, tuple[str, ...]] = {}
"""The statements that migrate to a version from the previous one. The oldest readable version is the one
before the first step. Steps are frozen: a later change of the declarations must not change them. An empty
file gets the current schema at once."""

FILE_STEPS: dict[int, tuple[str, ...]] = {}
"""Further steps for files, which other databases do not get."""

_VERSION = f"SELECT version FROM {PREFIX}schema"


def version(connection: apsw.Connection) -> int:
    """Return the schema version of the file, 0 when there is none."""
    schema_table = connection.execute(
        "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?", (f"{PREFIX}schema",)
    ).fetchone()
    if schema_table is None:
        return 0
    row = connection.execute(_VERSION).fetchone()
    if row is None:
        return 0
    if not isinstance(row[0], int):
        raise Corrupt(f"the database's schema version cannot be read; {ADVICE}")
    return row[0]


def check(connection: apsw.Connection, path: Path) -> None:
    """Raise ``MigrationRequired`` unless the schema is this release's."""
    found = version(connection)
    if found == SCHEMA_VERSION:
        return
    if found:
        raise other_version_error(str(path), found, *find_readable_versions(), _name_command(path))
    if is_stock(connection):
        raise MigrationRequired(_describe_stock(path))
    raise MigrationRequired(
        f"{path} has no Perdure schema; run `{_name_command(path)}`, or connect with migrate=True"
    )


def check_again(connection: apsw.Connection, path: Path) -> None:
    """Raise ``MigrationRequired`` if the schema is no longer the one that ``check`` has seen."""
    if connection.execute(_VERSION).fetchone() != (SCHEMA_VERSION,):
        check(connection, path)


def find_readable_versions() -> tuple[int, int]:
    """Return the first and the last schema version from which statements lead to this release's."""
    return first_version(STEPS, SCHEMA_VERSION), SCHEMA_VERSION


_IN_URLS = str.maketrans({"%": "%25", "?": "%3F", "#": "%23"})


def _name_command(path: Path) -> str:
    url = f"sqlite:///{str(path).translate(_IN_URLS)}"
    return f"perdure migrate --db {shlex.quote(url)}"


def is_stock(connection: apsw.Connection) -> bool:
    """Return True if the saver of langgraph-checkpoint-sqlite made the file."""
    columns = {row[1] for row in connection.execute("PRAGMA table_info(checkpoints)")}
    return {"checkpoint_ns", "parent_checkpoint_id"} <= columns


def _describe_stock(path: Path) -> str:
    return (
        f"{path} is a file of LangGraph's own SqliteSaver, which stays as it is. Import its threads into a "
        f"new file: `perdure migrate --db sqlite:///new.db`, then `perdure import {shlex.quote(str(path))} "
        "--from langgraph-sqlite --db sqlite:///new.db`"
    )


def apply(connection: apsw.Connection, path: Path) -> int:
    """Bring the schema to this release's version in one transaction; return the version that was found."""
    with write_transaction(connection):
        found = version(connection)
        if found == 0 and is_stock(connection):
            raise BadUrl(_describe_stock(path))
        for statement in plan_file_migration(found, path):
            connection.execute(statement)
        if 0 < found < SCHEMA_VERSION:
            connection.execute(f"UPDATE {PREFIX}schema SET version = ?", (SCHEMA_VERSION,))
    return found


@contextmanager
def write_transaction(connection: apsw.Connection) -> Iterator[None]:
    """Make one transaction of a block, which no other writer is beside; roll it back if the block raises."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def plan_migration(found: int) -> tuple[str, ...]:
    """Return the statements that lead from a version, 0 for none, to this release's."""
    if found == 0:
        return write_sqlite_schema()
    return tuple(statement for step in range(found + 1, SCHEMA_VERSION + 1) for statement in STEPS[step])


def plan_file_migration(found: int, path: Path) -> tuple[str, ...]:
    """Return the statements of ``plan_migration`` for a file, which has further tables. Raise
    ``MigrationRequired`` if no steps lead from its version to this release's."""
    require_steps(str(path), found, *find_readable_versions(), _name_command(path))
    if found == 0:
        return write_sqlite_file()
    file_statements = [s for step in range(found + 1, SCHEMA_VERSION + 1) for s in FILE_STEPS.get(step, ())]
    return (*plan_migration(found), *file_statements)
