"""Opens tables of the plain layout in PostgreSQL, and finds them by their names in any case."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from uuid import UUID

from perdure.errors import BadUrl
from perdure.imports.homemade_tables import Dialect, PlainSource, open_tables, refuse_missing
from perdure.imports.postgres_rows import PostgresRows

_JSON = {"json", "jsonb"}
_TEXT = {"text", "character varying", "character"}
_ZONED = "timestamp with time zone"
_MOMENTS = {_ZONED, "timestamp without time zone", "date"}
_NUMBERS = {"smallint", "integer", "bigint", "numeric", "real", "double precision"}


def of_postgres(url: str) -> PlainSource:
    """Open a PostgreSQL database of the plain layout; raise ``BadUrl`` if it does not have that layout."""
    rows = PostgresRows(url)
    return open_tables(rows.name, rows, lambda: _dialect_of(rows))


def _dialect_of(rows: PostgresRows) -> Dialect:
    schema, checkpoints = _checkpoints(rows)
    columns = rows.columns(checkpoints)
    writes = _one_of(rows, "writes", schema)
    of_writes = rows.columns(writes) if writes else {}
    refuse_missing(rows.name, columns, of_writes)
    _refuse_other_types(rows.name, "checkpoints", columns, {"state": {*_JSON, *_TEXT, "bytea"}})
    _refuse_other_types(rows.name, "checkpoints", columns, {"created_at": {*_MOMENTS, *_TEXT, *_NUMBERS}})
    _refuse_other_types(
        rows.name, "writes", of_writes, {"value": {*_JSON, *_TEXT, "bytea"}, "channel": _TEXT}
    )
    _refuse_ids(rows, checkpoints, columns)
    if writes:
        _refuse_ids(rows, writes, of_writes)
        _refuse_unequal_ids(rows.name, columns, of_writes)
    time = columns.get("created_at")
    return Dialect(
        checkpoints=checkpoints,
        writes=writes,
        text="{}::text",
        state=_form("state", columns["state"]),
        value=_form("value", of_writes.get("value", "")),
        time=_time(time),
        newest=_newest(time),
        task="task_id::text" if "task_id" in of_writes else "NULL",
        idx="idx::text" if "idx" in of_writes else "NULL",
        order=_order(rows, writes),
        odd="thread_id IS NULL OR checkpoint_id IS NULL OR thread_id::text = ''",
        can_hold=_is_uuid if columns["thread_id"] == "uuid" else lambda name: "\0" not in name,
    )


def _is_uuid(text: str) -> bool:
    """Return True for a UUID as PostgreSQL prints it."""
    try:
        return str(UUID(text)) == text
    except ValueError:
        return False


def _checkpoints(rows: PostgresRows) -> tuple[str, str]:
    """Return the schema that has the table of checkpoints, and the table, both as SQL."""
    schemas = [
        name
        for (name,) in rows(
            "SELECT quote_ident(nspname) "
            "FROM unnest(current_schemas(false)) WITH ORDINALITY AS s (nspname, at) ORDER BY at"
        )
    ]
    for schema in schemas:
        if table := _one_of(rows, "checkpoints", schema):
            return schema, table
    others = rows(
        f"SELECT DISTINCT nspname FROM {_RELATIONS} AND lower(relname) = ?1 "  # noqa: S608 - a constant
        "AND nspname NOT IN ('pg_catalog', 'information_schema') ORDER BY 1 LIMIT 3",
        "checkpoints",
    )
    there = ""
    if others:
        there = f" (there is one in {', '.join(name for (name,) in others)})"
    raise BadUrl(
        f"{rows.name} has no table checkpoints on its search_path{there}; for another schema add "
        "?options=-csearch_path%3Dname"
    )


_RELATIONS = "pg_class JOIN pg_namespace n ON n.oid = relnamespace WHERE relkind IN ('r', 'p', 'v', 'm', 'f')"


def _one_of(rows: PostgresRows, name: str, schema: str) -> str:
    """Return a schema's table of a name as SQL, empty if it has none; one in other letters is taken if it is
    the only one."""
    found = rows(
        f"SELECT relname, quote_ident(nspname) || '.' || quote_ident(relname) FROM {_RELATIONS} "  # noqa: S608 - a constant
        "AND lower(relname) = ?1 AND quote_ident(nspname) = ?2 ORDER BY relname",
        name,
        schema,
    )
    tables: dict[str, str] = dict(found)
    if name not in tables and len(tables) > 1:
        raise BadUrl(
            f"{rows.name} has the tables {', '.join(tables)}; make a view {name} of the one that is meant"
        )
    return tables.get(name) or next(iter(tables.values()), "")


def _refuse_other_types(
    name: str, table: str, columns: Mapping[str, str], wanted: Mapping[str, Iterable[str]]
) -> None:
    for column, types in wanted.items():
        if column in columns and columns[column] not in types:
            raise BadUrl(
                f"{name}: the column {column} of the table {table} is of type {columns[column]}, not "
                f"{' or '.join(sorted(types))}; give it as one of them, e.g. with a view"
            )


def _refuse_ids(rows: PostgresRows, table: str, columns: Mapping[str, str]) -> None:
    """Refuse ids that are not text or UUIDs, and collations under which different ids are equal."""
    for column in ("thread_id", "checkpoint_id"):
        loose = rows(
            "SELECT 1 FROM pg_attribute JOIN pg_collation c ON c.oid = attcollation "
            "WHERE attrelid = to_regclass(?1) AND attname = ?2 AND NOT collisdeterministic",
            table,
            column,
        )
        if loose or columns[column] not in {*_TEXT, "uuid"}:
            if loose:
                kind = "of a nondeterministic collation"
            else:
                kind = f"of type {columns[column]}"
            raise BadUrl(
                f"{rows.name}: the column {column} of {table} is {kind}, so ids are not text; give them as "
                f'text, e.g. with a view that has CAST({column} AS TEXT) COLLATE "C" AS {column}'
            )


def _refuse_unequal_ids(name: str, columns: Mapping[str, str], of_writes: Mapping[str, str]) -> None:
    """Refuse threads' ids of one type in one table and of another in the other: PostgreSQL compares them with
    an error, or calls different ones equal."""
    ids, of_ids = columns["thread_id"], of_writes["thread_id"]
    if ids != of_ids and {ids, of_ids} != {"text", "character varying"}:
        raise BadUrl(
            f"{name}: the column thread_id is of type {ids} in checkpoints and {of_ids} in writes; give both "
            "as one type, e.g. with a view that has CAST(thread_id AS TEXT) AS thread_id"
        )


def _form(column: str, kind: str) -> str:
    if kind == "bytea":
        form, text = ("blob", f"encode({column}, 'hex')")
    else:
        form, text = ("text", f"{column}::text")
    return f"CASE WHEN {column} IS NULL THEN 'null' ELSE '{form}' END, {text}"


def _time(kind: str | None) -> str:
    if kind is None:
        return "NULL"
    if kind in _MOMENTS:
        if kind == _ZONED:
            moment = "created_at AT TIME ZONE 'UTC'"
        else:
            moment = "created_at::timestamp"
        return f"(to_json({moment}) #>> '{{}}') || '+00:00'"
    return "created_at::text"


def _newest(kind: str | None) -> str:
    if kind is None:
        return "checkpoint_id"
    if kind in _TEXT:
        time = 'created_at COLLATE "C"'
    else:
        time = "created_at"
    return f"{time} DESC NULLS LAST"


def _order(rows: PostgresRows, writes: str) -> str:
    """Return the order in which rows of a table came: of a column that counts them; else of their places,
    which change only where rows are changed or removed. A view has neither."""
    if not writes:
        return ""
    counted = rows(
        "SELECT quote_ident(attname) FROM pg_attribute "
        "LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum "
        "WHERE attrelid = to_regclass(?1) AND attnum > 0 AND NOT attisdropped "
        "AND (attidentity <> '' OR pg_get_expr(adbin, adrelid) LIKE 'nextval(%') ORDER BY attnum LIMIT 1",
        writes,
    )
    if counted:
        return str(counted[0][0])
    kind = rows("SELECT relkind FROM pg_class WHERE oid = to_regclass(?1)", writes)[0][0]
    if kind in ("r", "p", b"r", b"p"):
        return "tableoid, ctid"
    return 'channel COLLATE "C", value::text COLLATE "C"'
