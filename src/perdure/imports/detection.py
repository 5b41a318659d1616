"""Detects the kind of a source, from its first bytes, or from the names of tables, columns and keys.

A kind is returned only if no other kind fits. If several fit, the error names them.
"""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping, Set
from contextlib import closing
from pathlib import Path
from typing import Any

from perdure.errors import BadUrl
from perdure.imports.histories.session_sources import SQLITE_MAGIC
from perdure.imports.histories.session_tables import COLUMNS, KEY, SessionTable
from perdure.imports.homemade_tables import CHECKPOINT_COLUMNS
from perdure.imports.kinds import SourceKind, require_extra
from perdure.imports.sqlite import STOCK_TABLES
from perdure.imports.sqlite_rows import SqliteRows
from perdure.storage.archive import MAGIC as ARCHIVE_MAGIC
from perdure.storage.url import redact

_POSTGRES = ("postgresql://", "postgres://")
_REDIS = ("redis://", "rediss://")
_HTTP = ("http://", "https://")
_HEAD = 1 << 16
"""Number of bytes at the beginning of a file that are examined."""

Tables = Mapping[str, Set[str]]
"""Columns by table, all names in lower case."""


def detect_kind(where: str) -> SourceKind:
    """Return the kind of a source.

    Args:
        where: The source's path or URL.

    Raises:
        BadUrl: There is no such source, it is a database of Perdure's, or it fits no known kind or several.
        MissingExtra: The client library of the source is not installed.
        Unavailable: The source does not answer.
    """
    if where.startswith(_POSTGRES):
        tables = _read_postgres_tables(where)
        kinds = list(_find_kinds_of_tables(tables, SourceKind.LANGGRAPH_POSTGRES))
        return _require_single(redact(where), kinds, _is_own(tables))
    if where.startswith(_REDIS):
        return SourceKind.LANGGRAPH_REDIS
    if where.startswith(_HTTP):
        return SourceKind.LANGGRAPH_SERVER
    if where.startswith("dynamodb://"):
        return _detect_dynamodb_kind(where)
    if where.startswith("d1://"):
        return SourceKind.PLAIN
    if "://" in where and not where.startswith("sqlite:///"):
        raise BadUrl(
            f"{redact(where)} cannot be imported; pass a file, or postgresql://…, redis://…, dynamodb://…, "
            "d1://…, or http://… of a LangGraph server"
        )
    path = Path(where.removeprefix("sqlite:///"))
    if not path.is_file():
        raise BadUrl(f"{path} is not a file; pass the path of a file, or the URL of a database")
    with path.open("rb") as file:
        head = file.read(_HEAD)
    if head.startswith(ARCHIVE_MAGIC):
        return SourceKind.ARCHIVE
    if head.startswith(SQLITE_MAGIC):
        tables = _read_sqlite_tables(path)
        kinds = list(_find_kinds_of_tables(tables, SourceKind.LANGGRAPH_SQLITE))
        return _require_single(str(path), kinds, _is_own(tables))
    return _require_single(str(path), list(_find_kinds_of_text(path, head)))


_CHOICE = f"pass --from with one of {', '.join(SourceKind)}"


def _require_single(name: str, found: list[SourceKind], is_own: bool = False) -> SourceKind:
    if len(found) == 1 and not is_own:
        return found[0]
    if found and not is_own:
        raise BadUrl(f"{name} may be {' or '.join(found)}; pass --from with one of them")
    if is_own and not found:
        raise BadUrl(f"{name} is a database of Perdure's; copy it with `perdure copy SOURCE TARGET`")
    if is_own:
        raise BadUrl(
            f"{name} has tables of Perdure's, which `perdure copy` reads, and of {' and '.join(found)}, for "
            "which pass --from"
        )
    raise BadUrl(f"{name} is of no kind that is recognised; {_CHOICE}")


def _find_kinds_of_tables(tables: Tables, stock: SourceKind) -> Iterator[SourceKind]:
    if any(tables.get(name, set()) >= columns for name, columns in STOCK_TABLES):
        yield stock
    if tables.get("checkpoints", set()) >= CHECKPOINT_COLUMNS:
        yield SourceKind.PLAIN
    sessions = tables.get(SessionTable().table, set())
    if KEY in sessions and not sessions.isdisjoint(COLUMNS):
        yield SourceKind.SESSIONS


def _is_own(tables: Tables) -> bool:
    return "perdure_schema" in tables


def _read_sqlite_tables(path: Path) -> Tables:
    with closing(SqliteRows(path)) as rows:
        return _group_by_table(
            rows(
                "SELECT m.name, c.name FROM sqlite_master AS m, pragma_table_info(m.name) AS c "
                "WHERE m.type IN ('table', 'view')"
            )
        )


def _read_postgres_tables(url: str) -> Tables:
    with require_extra("postgres"):
        from perdure.imports.postgres_rows import PostgresRows
    with closing(PostgresRows(url)) as rows:
        own = rows("SELECT 'perdure_schema', 'version' WHERE to_regclass('perdure.schema') IS NOT NULL")
        found = rows(
            "SELECT relname, attname FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid "
            "WHERE pg_table_is_visible(pg_class.oid) AND attnum > 0 AND relkind IN ('r', 'p', 'v', 'm', 'f') "
            "AND lower(relname) IN ('checkpoints', 'store', ?1)",
            SessionTable().table,
        )
    tables = _group_by_table(found)
    # Perdure's tables are often in a database with others: report them only if they are the only ones.
    if any(_find_kinds_of_tables(tables, SourceKind.LANGGRAPH_POSTGRES)):
        return tables
    return _group_by_table(own)


def _group_by_table(rows: Any) -> Tables:
    tables: dict[str, set[str]] = {}
    for table, column in rows:
        tables.setdefault(str(table).lower(), set()).add(str(column).lower())
    return tables


def _detect_dynamodb_kind(url: str) -> SourceKind:
    with require_extra("dynamodb"):
        from perdure.imports.dynamodb import KEYS, read_key_names_at
    names = read_key_names_at(url)
    if set(names) == set(KEYS):
        return SourceKind.AWS_DYNAMODB
    if names == [KEY]:
        return SourceKind.SESSIONS
    return _require_single(redact(url), [], is_own=set(names) == {"pk", "sk"})


def _find_kinds_of_text(path: Path, head: bytes) -> Iterator[SourceKind]:
    start = head.removeprefix(BOM_UTF8).lstrip()
    if start.startswith(b"["):
        yield SourceKind.HISTORY
    if not start.startswith(b"{"):
        return
    with path.open("rb") as file:
        line = next((line for line in file if line.removeprefix(BOM_UTF8).strip()), b"")
    try:
        first = json.loads(line)
    except (ValueError, RecursionError):
        return
    if isinstance(first, dict) and "messages" in first:
        if "thread_id" in first:
            yield SourceKind.HISTORY
        if KEY in first:
            yield SourceKind.SESSIONS
