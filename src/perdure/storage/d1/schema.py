"""The schema of a D1 database: SQLite's tables and the receipts, their check and their migration.

A migration is one batch, which first raises the version, if this is still the one that was found. So of many
processes that migrate at once, one executes the steps and the others find them done.
"""

from __future__ import annotations

import shlex

from perdure.errors import MigrationRequired
from perdure.storage.d1 import writing
from perdure.storage.d1.columns import catalogue
from perdure.storage.d1.rest import AnswerLost, Rejected, Transport
from perdure.storage.d1.retry import Tries, give_up_error, run_batch, translate
from perdure.storage.layout_version import other_version_error, require_steps
from perdure.storage.sql import migrations, schema

SCHEMA_VERSION = schema.SCHEMA_VERSION

_VERSION = f"{schema.PREFIX}schema"


def version(transport: Transport, name: str) -> int:
    """Return the schema version of the database, 0 when there is none.

    Args:
        transport: Runs the batches.
        name: The database's name for errors.
    """
    count_tables = (
        f"SELECT count(*) AS c0 FROM sqlite_schema WHERE type = 'table' AND name = '{_VERSION}'",
        (),
    )
    read_version = (f"SELECT version AS c0 FROM {_VERSION}", ())
    tries = Tries(3)
    try:
        try:
            (rows,) = run_batch(transport, [read_version], name, tries)
        except Rejected:
            (tables,) = run_batch(transport, [count_tables], name, tries)
            if not tables[0][0]:
                return 0
            # Another process has created the schema just now.
            (rows,) = run_batch(transport, [read_version], name, tries)
    except Rejected as error:
        raise translate(error, name) from error
    if rows:
        return int(rows[0][0])
    return 0


def check(transport: Transport, name: str) -> None:
    """Raise ``MigrationRequired`` unless the schema is this release's."""
    found = version(transport, name)
    if found == SCHEMA_VERSION:
        return
    if found:
        raise other_version_error(name, found, *migrations.find_readable_versions(), _name_command(name))
    raise MigrationRequired(
        f"{name} has no Perdure schema; run `{_name_command(name)}`, or connect with migrate=True"
    )


def apply(transport: Transport, name: str) -> int:
    """Bring the schema to this release's version; return the version that was found."""
    tries = Tries()
    found = version(transport, name)
    while found != SCHEMA_VERSION:
        statements = plan_migration(name, found)
        try:
            transport.batch([(statement, ()) for statement in statements])
        except AnswerLost as lost:
            if not tries.wait_for_next(lost):
                raise give_up_error(lost, name, unsure=True) from lost
        except Rejected as error:
            later = version(transport, name)
            if later == found:
                raise translate(error, name) from error
            found = later
            continue
        else:
            return found
        found = version(transport, name)
    return found


def plan_migration(name: str, found: int) -> tuple[str, ...]:
    """Return the statements that lead from a version, 0 for none, to this release's. Raise
    ``MigrationRequired`` if no statements lead there."""
    require_steps(name, found, *migrations.find_readable_versions(), _name_command(name))
    if found == SCHEMA_VERSION:
        return ()
    # The shared steps name the table of threads as it is named in a SQLite file.
    shared = f"{schema.PREFIX}thread"
    rename_to_versioned = f"ALTER TABLE {shared} RENAME TO {catalogue(SCHEMA_VERSION)}"
    if found == 0:
        return (*schema.write_sqlite_schema(), *writing.SCHEMA, rename_to_versioned)
    # If another process was first, this writes NULL: the column refuses it, and so the batch fails.
    raise_version = f"UPDATE {_VERSION} SET version = CASE WHEN version = {found} THEN {SCHEMA_VERSION} END"
    rename_to_shared = f"ALTER TABLE {catalogue(found)} RENAME TO {shared}"
    return (raise_version, rename_to_shared, *migrations.plan_migration(found), rename_to_versioned)


def _name_command(name: str) -> str:
    return f"perdure migrate --db {shlex.quote(name)}"
