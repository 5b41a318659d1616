"""Reads a table of PostgreSQL that has a row for each session, with its messages as JSON."""

from __future__ import annotations

from collections.abc import Iterator

from perdure.imports.histories.session_tables import PAGE, SessionTable, quote, session_of, write_page_queries
from perdure.imports.histories.sessions import SourceSession
from perdure.imports.postgres_rows import PostgresRows


class PostgresSessions:
    """A table of PostgreSQL, which others may write to."""

    def __init__(self, url: str, names: SessionTable) -> None:
        self._rows = PostgresRows(url)
        self.name = self._rows.name
        try:
            columns = set(self._rows.columns(".".join(map(quote, names.table.split(".")))))
            self._query = write_page_queries(self.name, names, columns, "{key}::text, {key}")
        except BaseException:
            self.close()
            raise

    def sessions(self) -> Iterator[SourceSession]:
        """Yield the sessions in the order of their keys."""
        first_query, next_query = self._query
        self._rows.begin()
        page = self._rows(f"{first_query} LIMIT {PAGE}")
        while page:
            for text, _, messages in page:
                yield session_of(text, messages, repr(text))
            self._rows.begin()
            page = self._rows(f"{next_query} LIMIT {PAGE}", page[-1][1])

    def close(self) -> None:
        """Close the connection."""
        self._rows.close()
