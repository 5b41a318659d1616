"""Reads a table of PostgreSQL that has a row for each session, with its messages as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import psycopg

from perdure.errors import BadUrl, Unavailable
from perdure.imports.session_tables import PAGE, SessionTable, page_queries, quote, session_of
from perdure.imports.sessions import SourceSession
from perdure.storage.url import redacted


class PostgresSessions:
    """A table of PostgreSQL, which others may write to."""

    def __init__(self, url: str, names: SessionTable) -> None:
        self.name = redacted(url)
        try:
            self._connection: psycopg.Connection[Any] = psycopg.connect(
                url, connect_timeout=10, autocommit=True
            )
        except psycopg.ProgrammingError:
            raise BadUrl(f"{self.name}: not a PostgreSQL URL that libpq can read") from None
        except psycopg.OperationalError as error:
            raise Unavailable(f"{self.name} does not answer: {type(error).__name__}") from None
        try:
            self._connection.read_only = True
            columns = self._columns(names.table)
            self._query = page_queries(self.name, names, columns, "{key}::text, {key}")
        except BaseException:
            self.close()
            raise

    def _columns(self, table: str) -> set[str]:
        name = ".".join(map(quote, table.split(".")))
        rows = self._ask(
            "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 "
            "AND NOT attisdropped",
            name,
        )
        return {name for (name,) in rows}

    def _ask(self, query: str, *values: Any) -> list[Any]:
        try:
            return self._connection.execute(query.encode(), values or None).fetchall()
        except psycopg.Error as error:
            raise Unavailable(f"{self.name} cannot be read: {type(error).__name__}") from error

    def sessions(self) -> Iterator[SourceSession]:
        """Yield the sessions in the order of their keys."""
        query, further = self._query
        page = self._ask(f"{query} LIMIT {PAGE}")
        while page:
            for text, _, messages in page:
                yield session_of(text, messages, repr(text))
            page = self._ask(f"{further.replace('?', '%s')} LIMIT {PAGE}", page[-1][1])

    def close(self) -> None:
        """Close the connection."""
        with suppress(psycopg.Error):
            self._connection.close()
