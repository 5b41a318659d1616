"""The steps from one schema version to the next, and the check of the version that is opened."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from perdure.errors import BadUrl, Corrupt, MigrationRequired
from perdure.storage.sql import listing
from perdure.storage.sql.checksums import ADVICE
from perdure.storage.sql.schema import CLOCK, HISTORY, PREFIX, SCHEMA_VERSION, sqlite_file, sqlite_schema

if TYPE_CHECKING:
    # D1 takes its steps from here, and a Worker has no apsw.
    import apsw

# One entry a version: the statements that lead to it from the version before. They are frozen: a later change
# of the declarations must not change them. An empty file gets the current schema at once.
STEPS: dict[int, tuple[str, ...]] = {
    2: (
        "CREATE TABLE perdure_thread_2 (pk INTEGER PRIMARY KEY AUTOINCREMENT, tenant TEXT NOT NULL,"
        " thread TEXT NOT NULL, space TEXT NOT NULL, UNIQUE (space, tenant, thread))",
        "INSERT INTO perdure_thread_2 (pk, tenant, thread, space)"
        " SELECT pk, tenant, thread, 'thread' FROM perdure_thread",
        "UPDATE sqlite_sequence SET seq = (SELECT seq FROM sqlite_sequence WHERE name = 'perdure_thread')"
        " WHERE name = 'perdure_thread_2'",
        "DROP TABLE perdure_thread",
        "ALTER TABLE perdure_thread_2 RENAME TO perdure_thread",
        "CREATE TABLE perdure_item (t INTEGER NOT NULL, key TEXT NOT NULL, created_at INTEGER NOT NULL,"
        " updated_at INTEGER NOT NULL, ttl INTEGER, expires_at INTEGER, version INTEGER NOT NULL,"
        " body BLOB NOT NULL)",
        "CREATE UNIQUE INDEX perdure_item_key ON perdure_item (t, key)",
        "CREATE INDEX perdure_item_expires_at ON perdure_item (expires_at) WHERE expires_at IS NOT NULL",
    ),
    3: (
        "CREATE TABLE perdure_lane (t INTEGER NOT NULL, name TEXT NOT NULL, due_at INTEGER, last"
        " INTEGER NOT NULL, bound INTEGER NOT NULL, since INTEGER, ready_at INTEGER, run_id TEXT,"
        " owner TEXT, epoch INTEGER NOT NULL, lease_until INTEGER, retry_at INTEGER, waiting TEXT,"
        " stop TEXT, version INTEGER NOT NULL, PRIMARY KEY (t, name)) WITHOUT ROWID",
        "CREATE INDEX perdure_lane_due_at ON perdure_lane (due_at) WHERE due_at IS NOT NULL",
        "CREATE TABLE perdure_inbox (t INTEGER NOT NULL, seq INTEGER NOT NULL, graph TEXT NOT NULL,"
        " channel TEXT NOT NULL, mode TEXT NOT NULL, dedupe BLOB NOT NULL, accepted_at INTEGER NOT"
        " NULL, body BLOB NOT NULL)",
        "CREATE UNIQUE INDEX perdure_inbox_key ON perdure_inbox (t, seq)",
        "CREATE TABLE perdure_dedupe (t INTEGER NOT NULL, digest BLOB NOT NULL, seq INTEGER NOT NULL,"
        " PRIMARY KEY (t, digest)) WITHOUT ROWID",
        "CREATE TABLE perdure_run (t INTEGER NOT NULL, run_id TEXT NOT NULL, first INTEGER NOT NULL,"
        " last INTEGER NOT NULL, state TEXT NOT NULL, graph TEXT NOT NULL, channel TEXT NOT NULL,"
        " epoch INTEGER NOT NULL, attempts INTEGER NOT NULL, base TEXT, started_at INTEGER NOT NULL,"
        " updated_at INTEGER NOT NULL, version INTEGER NOT NULL, body BLOB NOT NULL, PRIMARY KEY (t,"
        " run_id)) WITHOUT ROWID",
        "CREATE INDEX perdure_run_first ON perdure_run (t, first)",
        "CREATE TABLE perdure_outbox (t INTEGER NOT NULL, seq INTEGER NOT NULL, run_id TEXT NOT NULL,"
        " ord INTEGER NOT NULL, channel TEXT NOT NULL, state TEXT NOT NULL, attempts INTEGER NOT NULL,"
        " provider_id TEXT, created_at INTEGER NOT NULL, version INTEGER NOT NULL, body BLOB NOT NULL)",
        "CREATE UNIQUE INDEX perdure_outbox_key ON perdure_outbox (t, seq)",
        "CREATE TABLE perdure_effect (t INTEGER NOT NULL, run_id TEXT NOT NULL, task_id TEXT NOT"
        " NULL, idx INTEGER NOT NULL, body BLOB NOT NULL, PRIMARY KEY (t, run_id, task_id, idx))"
        " WITHOUT ROWID",
    ),
    4: (
        "CREATE TABLE perdure_document (t INTEGER NOT NULL, collection TEXT NOT NULL, name TEXT NOT NULL,"
        " updated_at INTEGER NOT NULL, version INTEGER NOT NULL, body BLOB NOT NULL)",
        "CREATE UNIQUE INDEX perdure_document_key ON perdure_document (t, collection, name)",
        "CREATE INDEX perdure_document_updated_at ON perdure_document (t, collection, updated_at)",
        "CREATE TABLE perdure_event (t INTEGER NOT NULL, seq INTEGER NOT NULL, run_id TEXT NOT NULL,"
        " body BLOB NOT NULL)",
        "CREATE UNIQUE INDEX perdure_event_key ON perdure_event (t, seq)",
    ),
    # Existing rows have no checksums and are read without them, until they are written again.
    5: (
        "ALTER TABLE perdure_thread ADD COLUMN checksum INTEGER",
        "ALTER TABLE perdure_thread ADD COLUMN total INTEGER",
        "ALTER TABLE perdure_thread ADD COLUMN head INTEGER",
        "ALTER TABLE perdure_thread ADD COLUMN commits INTEGER",
        "CREATE INDEX perdure_thread_checksum ON perdure_thread (checksum)",
        "ALTER TABLE perdure_head ADD COLUMN checksum INTEGER",
        "ALTER TABLE perdure_gc ADD COLUMN checksum INTEGER",
        "ALTER TABLE perdure_epoch ADD COLUMN checksum INTEGER",
        "ALTER TABLE perdure_checkpoint ADD COLUMN checksum INTEGER",
        "ALTER TABLE perdure_chunk ADD COLUMN checksum INTEGER",
        "ALTER TABLE perdure_write ADD COLUMN checksum INTEGER",
        "ALTER TABLE perdure_tag ADD COLUMN checksum INTEGER",
        "ALTER TABLE perdure_seal ADD COLUMN checksum INTEGER",
        "ALTER TABLE perdure_item ADD COLUMN checksum INTEGER",
        "ALTER TABLE perdure_lane ADD COLUMN checksum INTEGER",
        "ALTER TABLE perdure_inbox ADD COLUMN checksum INTEGER",
        "ALTER TABLE perdure_dedupe ADD COLUMN checksum INTEGER",
        "ALTER TABLE perdure_run ADD COLUMN checksum INTEGER",
        "ALTER TABLE perdure_outbox ADD COLUMN checksum INTEGER",
        "ALTER TABLE perdure_effect ADD COLUMN checksum INTEGER",
        "ALTER TABLE perdure_document ADD COLUMN checksum INTEGER",
        "ALTER TABLE perdure_event ADD COLUMN checksum INTEGER",
    ),
    6: listing.sqlite(),
    7: (),
    # From here on chunks may be compressed and checkpoints are shorter; earlier ones stay as they are.
    8: (
        "DROP INDEX perdure_listing_status_updated",
        "DROP INDEX perdure_listing_status_created",
        "CREATE INDEX perdure_listing_status_updated ON perdure_listing (tenant, status, updated_at, t)"
        " WHERE status <> 'idle'",
        "CREATE INDEX perdure_listing_status_created ON perdure_listing (tenant, status, created_at, t)"
        " WHERE status <> 'idle'",
    ),
    # From here on writes of a task may share records; earlier ones stay as they are.
    9: (),
}

# Further steps for files, which a database that is no file does not get.
FILE_STEPS: dict[int, tuple[str, ...]] = {5: HISTORY, 7: (CLOCK,)}

_VERSION = f"SELECT version FROM {PREFIX}schema"


def version(connection: apsw.Connection) -> int:
    """Return the schema version of the file, 0 when there is none."""
    known = connection.execute(
        "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?", (f"{PREFIX}schema",)
    ).fetchone()
    if known is None:
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
    if found > SCHEMA_VERSION:
        raise MigrationRequired(
            f"{path} has schema version {found}, this release knows {SCHEMA_VERSION}; upgrade perdure"
        )
    if found == 0 and is_stock(connection):
        raise MigrationRequired(_stock(path))
    what = "has no Perdure schema" if found == 0 else f"has schema version {found}, not {SCHEMA_VERSION}"
    raise MigrationRequired(
        f"{path} {what}; run `perdure migrate --db sqlite:///{path}`, or connect with migrate=True"
    )


def check_again(connection: apsw.Connection, path: Path) -> None:
    """Raise ``MigrationRequired`` if the schema is no longer the one that ``check`` has seen."""
    if connection.execute(_VERSION).fetchone() != (SCHEMA_VERSION,):
        check(connection, path)


def is_stock(connection: apsw.Connection) -> bool:
    """Return True if the file is one of langgraph-checkpoint-sqlite's saver."""
    columns = {row[1] for row in connection.execute("PRAGMA table_info(checkpoints)")}
    return {"checkpoint_ns", "parent_checkpoint_id"} <= columns


def _stock(path: Path) -> str:
    return (
        f"{path} is a file of LangGraph's own SqliteSaver, which stays as it is. Import its threads into a "
        f"new file: `perdure migrate --db sqlite:///new.db`, then `perdure import {path} --from "
        "langgraph-sqlite --db sqlite:///new.db`"
    )


def apply(connection: apsw.Connection, path: Path) -> int:
    """Bring the schema to this release's version in one transaction; return the version that was found."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        found = version(connection)
        if found > SCHEMA_VERSION:
            check(connection, path)
        if found == 0 and is_stock(connection):
            raise BadUrl(_stock(path))
        for statement in pending_file(found):
            connection.execute(statement)
        if 0 < found < SCHEMA_VERSION:
            connection.execute(f"UPDATE {PREFIX}schema SET version = ?", (SCHEMA_VERSION,))
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return found


def pending(found: int) -> tuple[str, ...]:
    """Return the statements that lead from a version, 0 for none, to this release's."""
    if found == 0:
        return sqlite_schema()
    return tuple(statement for step in range(found + 1, SCHEMA_VERSION + 1) for statement in STEPS[step])


def pending_file(found: int) -> tuple[str, ...]:
    """Return the statements of ``pending`` for a file, which has further tables."""
    if found == 0:
        return sqlite_file()
    besides = [s for step in range(found + 1, SCHEMA_VERSION + 1) for s in FILE_STEPS.get(step, ())]
    return (*pending(found), *besides)
