"""Statements on the application's own tables, which a commit on PostgreSQL executes beside its own."""

from __future__ import annotations

from collections.abc import Mapping

from psycopg import Error, ProgrammingError, pq
from psycopg.adapt import PyFormat, Transformer

from perdure.errors import StatementRefused
from perdure.model.ops import ApplicationStatement
from perdure.model.statement_texts import DEFERRED, check_statement, refusal, replace_names, shorten

TIME_S = 5
"""Seconds that the statements of one commit may take together, and for which they wait for locks: the
thread's row is locked meanwhile."""

BEGIN = (
    "BEGIN; "
    f"SET LOCAL statement_timeout = '{TIME_S}s'; SET LOCAL lock_timeout = '{TIME_S}s'; "
    f"SET LOCAL idle_in_transaction_session_timeout = '{2 * TIME_S}s'"
).encode()
"""Begins a transaction with time limits: a process that stops in the middle must not keep its locks."""

COMMIT, ROLLBACK = b"COMMIT", b"ROLLBACK"


class PostgresStatements:
    """See ``port.MakesStatements``. Values are adapted as psycopg does it."""

    dialect = "postgresql"

    def make(self, text: str, parameters: Mapping[str, object]) -> ApplicationStatement:
        names = check_statement(text, parameters)
        numbers = {name: number for number, name in enumerate(names, 1)}
        values: list[bytes | None] = []
        types: list[int] = []
        formats: list[int] = []
        transformer = Transformer()
        for name in names:
            try:
                (value,) = transformer.dump_sequence([parameters[name]], [PyFormat.AUTO])
            except ProgrammingError as error:
                raise TypeError(f"parameter {name!r}: {error}: {shorten(text)!r}") from error
            values.append(None if value is None else bytes(value))
            types += transformer.types or (0,)
            formats += transformer.formats or (pq.Format.TEXT,)
        return ApplicationStatement(
            text=text,
            sql=replace_names(text, lambda name: f"${numbers[name]}"),
            values=tuple(values),
            types=tuple(types),
            formats=tuple(map(int, formats)),
            size=len(text) + sum(len(value or b"") for value in values),
        )


def statement_error(error: Error, statement: ApplicationStatement | None) -> StatementRefused:
    """Return the error for a statement that was refused with this one; without a statement, for a constraint
    that is checked when the transaction ends."""
    if statement is None:
        return StatementRefused(refusal(DEFERRED, error))
    return StatementRefused(refusal(statement.text, error))
