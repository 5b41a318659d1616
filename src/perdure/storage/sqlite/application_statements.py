"""Statements on the application's own tables, which a commit on SQLite executes beside its own."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import apsw

from perdure.errors import StatementRefused
from perdure.model.ops import ApplicationStatement
from perdure.model.statement_texts import DEFERRED, check_statement, refusal, shorten
from perdure.storage.sql.schema import PREFIX

TIME_S = 5.0
"""Seconds that the statements of one commit may take together: all writers of the file wait for them."""

_STEPS = 10_000
_FORBIDDEN = {
    apsw.SQLITE_TRANSACTION,
    apsw.SQLITE_SAVEPOINT,
    apsw.SQLITE_ATTACH,
    apsw.SQLITE_DETACH,
    apsw.SQLITE_PRAGMA,
}
_WRITES = {
    apsw.SQLITE_INSERT,
    apsw.SQLITE_UPDATE,
    apsw.SQLITE_DELETE,
    apsw.SQLITE_ALTER_TABLE,
    apsw.SQLITE_DROP_TABLE,
    apsw.SQLITE_DROP_INDEX,
    apsw.SQLITE_DROP_TRIGGER,
    apsw.SQLITE_CREATE_TRIGGER,
}
_REFUSALS = (
    apsw.SQLError,
    apsw.ConstraintError,
    apsw.MismatchError,
    apsw.BindingsError,
    apsw.TooBigError,
    apsw.RangeError,
    apsw.AuthError,
    apsw.InterruptError,
    apsw.AbortError,
    apsw.SchemaChangeError,
    OverflowError,
)


class SqliteStatements:
    """See ``port.MakesStatements``."""

    dialect = "sqlite"

    def make(self, text: str, parameters: Mapping[str, object]) -> ApplicationStatement:
        size = len(text)
        values: dict[str, object] = {}
        for name in check_statement(text, parameters):
            value = parameters[name]
            if isinstance(value, bytearray | memoryview):
                value = bytes(value)
            if value is not None and not isinstance(value, int | float | str | bytes):
                raise TypeError(
                    f"parameter {name!r} is a {type(value).__name__}; SQLite takes text, numbers, bytes and "
                    f"None: {shorten(text)!r}"
                )
            if isinstance(value, str | bytes):
                size += len(value)
            else:
                size += 8
            values[name] = value
        return ApplicationStatement(text=text, sql=text, values=values, size=size)


@contextmanager
def enforce_foreign_keys(writer: apsw.Connection) -> Iterator[None]:
    """Enforce foreign keys in the transactions of a block, as PostgreSQL does; Perdure's tables have none."""
    writer.execute("PRAGMA foreign_keys = ON")
    try:
        yield
    finally:
        writer.execute("PRAGMA foreign_keys = OFF")


def execute_all(writer: apsw.Connection, statements: Sequence[ApplicationStatement]) -> None:
    """Execute statements in the open transaction.

    Raises:
        StatementRefused: SQLite refused one, or they took too long.
    """
    until = time.monotonic() + TIME_S
    writer.set_authorizer(_authorize)
    writer.set_progress_handler(lambda: time.monotonic() > until, _STEPS)
    try:
        for statement in statements:
            try:
                # The cache may have this text as a statement of Perdure, prepared without the authorizer.
                for _ in writer.execute(statement.sql, statement.values, can_cache=False):
                    pass
            except _REFUSALS as error:
                raise StatementRefused(refusal(statement.text, error)) from error
        if writer.status(apsw.SQLITE_DBSTATUS_DEFERRED_FKS)[0]:
            raise StatementRefused(refusal(DEFERRED, None, "a foreign key"))
    finally:
        writer.set_progress_handler(None)
        writer.set_authorizer(None)


def _authorize(
    action: int, first: str | None, second: str | None, database: str | None, trigger: str | None
) -> int:
    is_ours = action in _WRITES and any((name or "").lower().startswith(PREFIX) for name in (first, second))
    if is_ours or action in _FORBIDDEN:
        return apsw.SQLITE_DENY
    return apsw.SQLITE_OK
