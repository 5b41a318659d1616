"""PostgreSQL as a backend: opens, checks and migrates the database of a ``postgresql://`` URL."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from hashlib import sha256
from typing import Any

import psycopg

from perdure.errors import MigrationRequired, Unavailable
from perdure.storage.credentials import Password
from perdure.storage.layout_version import other_version_error, require_steps
from perdure.storage.postgres import schema, vector_table
from perdure.storage.postgres.connection import ServerConnection
from perdure.storage.postgres.driver import PostgresDriver
from perdure.storage.postgres.errors import translate
from perdure.storage.postgres.lock_waits import LockWait, report_waits
from perdure.storage.postgres.url import PostgresUrl, parse_url
from perdure.storage.postgres.vector_search import VectorSearch
from perdure.storage.postgres.vector_table import Extension

__all__ = ["SCHEMA_VERSION", "PostgresDriver", "migrate", "open_driver", "plan_migration", "schema_version"]

SCHEMA_VERSION = schema.SCHEMA_VERSION

_OTHERS_TIMEOUT_S = 300
"""Seconds for which a migration waits for another migration, which may take long."""
_LOCK_TIMEOUT_S = 30
"""Seconds for which a migration waits for each lock that another session's transaction holds."""
_CANNOT_CREATE = (
    psycopg.errors.InsufficientPrivilege,
    psycopg.errors.FeatureNotSupported,
    psycopg.errors.UndefinedFile,
    psycopg.errors.InvalidSchemaName,
    psycopg.errors.UniqueViolation,
    psycopg.errors.DuplicateObject,
)
_log = logging.getLogger("perdure.storage")


def open_driver(url: str, password: Password | None = None) -> PostgresDriver:
    """Open the database of a URL; it must have this release's schema. ``password`` is as for ``connect``."""
    settings = parse_url(url, password)
    with _connect(settings) as connection:
        found = _read_version(connection, settings)
        extension = _read_extension(connection, settings)
    _refuse_other_version(settings, found)
    search: VectorSearch | None = None
    if extension.is_sound:
        search = VectorSearch(settings, extension, _connect)
    return PostgresDriver(
        settings, search, has_lost_vectors=extension.has_parts, count_bytes=partial(_count_bytes, settings)
    )


def _count_bytes(settings: PostgresUrl) -> int:
    """Return the bytes of the schema's tables, with their indexes and the free space in them."""
    with _connect(settings) as connection:
        (size,) = connection.execute(
            "SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::bigint FROM pg_class"
            " WHERE relnamespace = to_regnamespace(%s) AND relkind IN ('r', 'm')",
            (schema.quote(settings.schema),),
        ).fetchone() or (0,)
    return int(size)


def schema_version(url: str) -> int:
    """Return the version of the database's schema, 0 when there is none."""
    settings = parse_url(url)
    with _connect(settings) as connection:
        return _read_version(connection, settings)


def plan_migration(url: str) -> list[str]:
    """Return the statements that ``migrate`` would execute now."""
    settings = parse_url(url)
    with _connect(settings) as connection:
        found = _read_version(connection, settings)
        extension = _read_extension(connection, settings)
    require_steps(settings.name, found, *schema.find_readable_versions(), settings.migrate)
    return [*schema.plan_migration(settings.schema, found), *vector_table.setup(settings.schema, extension)]


def migrate(url: str, password: Password | None = None) -> int:
    """Create or upgrade the schema, once for all concurrent callers; return the version that the schema had.

    While it waits for a lock, it logs a warning with the session that holds the lock. If the wait takes too
    long, it raises ``Unavailable``, which names that session, and changes nothing."""
    settings, wait = parse_url(url, password), LockWait()
    with _connect(settings) as connection, _explain_errors(settings, wait), connection.transaction():
        # Read within the transaction: outside of it, a pooler may use another session.
        (pid,) = connection.execute("SELECT pg_backend_pid()").fetchone() or (0,)
        with report_waits(partial(_connect, settings), int(pid), f"the migration of {settings.name}", wait):
            return _migrate(connection, settings)


def _migrate(connection: psycopg.Connection, settings: PostgresUrl) -> int:
    connection.execute(f"SET LOCAL lock_timeout = '{_OTHERS_TIMEOUT_S}s'".encode())
    connection.execute("SET LOCAL statement_timeout = 0")
    lock = int.from_bytes(sha256(f"perdure {settings.schema}".encode()).digest()[:8], "big", signed=True)
    connection.execute("SELECT pg_advisory_xact_lock(%s)", (lock,))
    connection.execute(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT_S}s'".encode())
    encoding = connection.execute("SHOW server_encoding").fetchone()
    if encoding != ("UTF8",):
        raise Unavailable(f"{settings.name} is not encoded in UTF8; create a database with ENCODING 'UTF8'")
    found = _read_version(connection, settings)
    require_steps(settings.name, found, *schema.find_readable_versions(), settings.migrate)
    rows = connection.execute("SELECT to_regnamespace(%s) IS NOT NULL", (schema.quote(settings.schema),))
    has_schema = rows.fetchone() == (True,)
    for statement in schema.plan_migration(settings.schema, found):
        if not statement.startswith("CREATE SCHEMA "):
            connection.execute(statement.encode())
        elif not has_schema:
            # PostgreSQL requires CREATE on the database for this statement even if the schema exists.
            _create_schema(connection, statement)
    _add_vectors(connection, settings)
    return found


def _create_schema(connection: psycopg.Connection, statement: str) -> None:
    try:
        with connection.transaction():
            connection.execute(statement.encode())
    except (psycopg.errors.UniqueViolation, psycopg.errors.DuplicateSchema):
        # Another session, whose transaction was open at the check, has created the schema meanwhile.
        _log.info("the schema was created by another session")


@contextmanager
def _explain_errors(settings: PostgresUrl, wait: LockWait) -> Iterator[None]:
    """Explain a missing right, as a migration needs more rights than the application. Explain a lock that was
    waited for too long, with the session that holds it."""
    try:
        yield
    except psycopg.errors.LockNotAvailable as error:
        raise Unavailable(
            f"{settings.name}: the migration waited too long for {wait}, and changed nothing; let that "
            f"transaction end, or end it with `{wait.end}`, and run `{settings.migrate}` again"
        ) from error
    except psycopg.errors.InsufficientPrivilege as error:
        raise Unavailable(
            f"{settings.name}: the user may not create or upgrade schema {settings.schema!r} "
            f"({error.diag.message_primary}); run `{settings.migrate}` as a user with CREATE on the "
            "database, or, if an administrator created the schema, as a user with CREATE on it who owns its "
            "tables"
        ) from error


def _add_vectors(connection: psycopg.Connection, settings: PostgresUrl) -> None:
    """Add the table of vectors if pgvector is installed or can be. Without pgvector all else works."""
    extension = _read_extension(connection, settings)
    try:
        with connection.transaction():
            if extension.may_be_created:
                connection.execute(vector_table.CREATE)
    except _CANNOT_CREATE:
        # Another migration may have created pgvector meanwhile.
        _log.info("pgvector could not be created in %s", settings.name)
    for statement in vector_table.setup(
        settings.schema, _read_extension(connection, settings)._replace(may_be_created=False)
    ):
        connection.execute(statement.encode())


def _read_extension(connection: psycopg.Connection, settings: PostgresUrl) -> Extension:
    row = connection.execute(vector_table.STATE, vector_table.names(settings.schema)).fetchone()
    found: tuple[Any, ...] = row or ("", False, False, False, False)
    extension = Extension(*found)
    if extension.home and not extension.has_parts:
        may_use = connection.execute("SELECT has_schema_privilege(%s, 'USAGE')", (extension.home,)).fetchone()
        if may_use != (True,):
            return extension._replace(home="")  # For this user the extension might as well not be installed.
    return extension


def _refuse_other_version(settings: PostgresUrl, found: int) -> None:
    if found == 0:
        raise MigrationRequired(
            f"{settings.name} has no Perdure schema {settings.schema!r}; run `{settings.migrate}`, or "
            "connect with migrate=True"
        )
    if found != SCHEMA_VERSION:
        raise other_version_error(settings.name, found, *schema.find_readable_versions(), settings.migrate)


def _read_version(connection: psycopg.Connection, settings: PostgresUrl) -> int:
    """Return the schema's version, 0 if its table does not exist."""
    table = f"{schema.quote(settings.schema)}.schema"
    exists = connection.execute("SELECT to_regclass(%s) IS NOT NULL", (table,)).fetchone()
    if exists != (True,):
        return 0
    (version,) = connection.execute(f"SELECT version FROM {table}".encode()).fetchone() or (0,)
    return int(version)


@contextmanager
def _connect(settings: PostgresUrl) -> Iterator[psycopg.Connection]:
    link = ServerConnection(settings)
    try:
        yield link.require_connection()
    except psycopg.Error as error:
        raise translate(error, settings) from error
    finally:
        link.drop()
