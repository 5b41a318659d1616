"""Opens tables of the plain layout in a SQLite file and in Cloudflare D1, whose engine is SQLite."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perdure.errors import BadUrl, Unavailable
from perdure.imports.homemade_tables import (
    Dialect,
    PlainRows,
    PlainSource,
    open_tables,
    refuse_missing,
    write_optional,
)
from perdure.imports.sqlite_rows import SqliteRows

if TYPE_CHECKING:
    from perdure.storage.d1.url import D1Url


def open_file(path: Path) -> PlainSource:
    """Open a SQLite file of the plain layout; raise ``BadUrl`` if it does not have that layout."""
    if not path.is_file():
        raise BadUrl(f"{path} is not a file; pass a SQLite file, postgresql://… or d1://account/database")
    return open_rows(str(path), SqliteRows(path))


def open_d1(url: str) -> PlainSource:
    """Open a D1 database of the plain layout; raise ``BadUrl`` if it does not have that layout."""
    from perdure.storage.d1.url import D1Url

    target = D1Url.of(url)
    return open_rows(target.name, _D1Rows(target))


def open_rows(name: str, rows: PlainRows) -> PlainSource:
    """Open tables of the plain layout in SQLite's dialect; raise ``BadUrl`` if they do not have that
    layout."""
    return open_tables(name, rows, lambda: _make_dialect(name, rows))


class _D1Rows:
    """The rows of a D1 database."""

    def __init__(self, target: D1Url) -> None:
        self._name, self._transport = target.name, target.connect()

    def __call__(self, query: str, *parameters: str) -> Sequence[Sequence[Any]]:
        from perdure.storage.d1.rest import AnswerLost, Rejected

        try:
            return self._transport.batch([(query, parameters)])[0]
        except (AnswerLost, Rejected) as error:
            raise Unavailable(f"{self._name} cannot be read: {error}") from error

    def begin(self) -> None:
        """Do nothing: each query reads the state of its own moment."""

    def close(self) -> None:
        self._transport.close()


def _make_dialect(name: str, rows: PlainRows) -> Dialect:
    checkpoints, writes = (
        {row[0].lower() for row in rows("SELECT name FROM pragma_table_info(?1)", table)}
        for table in ("checkpoints", "writes")
    )
    refuse_missing(name, checkpoints, writes)
    return Dialect(
        checkpoints="checkpoints",
        writes="writes" if writes else "",
        text="{}",
        state=_make_form_sql("state"),
        value=_make_form_sql("value"),
        time=write_optional(checkpoints, "created_at", "CAST(created_at AS TEXT)"),
        newest="created_at DESC" if "created_at" in checkpoints else "checkpoint_id",
        task=write_optional(writes, "task_id", "task_id"),
        idx=write_optional(writes, "idx", "CAST(idx AS TEXT)"),
        order="rowid" if writes and _has_row_ids(rows) else "channel, value",
        odd="typeof(thread_id) <> 'text' OR typeof(checkpoint_id) <> 'text' OR thread_id = ''",
    )


def _make_form_sql(column: str) -> str:
    text = f"CASE typeof({column}) WHEN 'blob' THEN hex({column}) ELSE {column} END"
    return f"CASE typeof({column}) WHEN 'blob' THEN 'blob' WHEN 'null' THEN 'null' ELSE 'text' END, {text}"


def _has_row_ids(rows: PlainRows) -> bool:
    """Return True if the table of writes has SQLite's row ids, which grow with each row; a view has none."""
    found = rows("SELECT type, sql FROM sqlite_master WHERE name = 'writes' COLLATE NOCASE")
    return any(kind == "table" and "WITHOUT ROWID" not in str(sql).upper() for kind, sql in found)
