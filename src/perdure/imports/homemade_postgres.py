"""Opens tables of the plain layout in PostgreSQL; their names may be in any letter case."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from uuid import UUID

from perdure.errors import BadUrl
from perdure.imports.homemade_tables import (
    Dialect,
    PlainSource,
    open_tables,
    refuse_missing,
    write_optional,
)
from perdure.imports.postgres_rows import PostgresRows

_JSON = {"json", "jsonb"}
_TEXT = {"text", "character varying", "character"}
_ZONED = "timestamp with time zone"
_MOMENTS = {_ZONED, "timestamp without time zone", "date"}
_NUMBERS = {"smallint", "integer", "bigint", "numeric", "real", "double precision"}


def open_postgres(url: str) -> PlainSource:
    """Open a PostgreSQL database of the plain layout; raise ``BadUrl`` if it does not have that layout."""
    rows = PostgresRows(url)
    return open_tables(rows.name, rows, lambda: _make_dialect(rows))


def _make_dialect(rows: PostgresRows) -> Dialect:
    schema, checkpoints = _find_checkpoints(rows)
    columns = rows.columns(checkpoints)
    writes = _find_table(rows, "writes", schema)
    write_columns = rows.columns(writes) if writes else {}
    refuse_missing(rows.name, columns, write_columns)
    _refuse_other_types(rows.name, "checkpoints", columns, {"state": {*_JSON, *_TEXT, "bytea"}})
    _refuse_other_types(rows.name, "checkpoints", columns, {"created_at": {*_MOMENTS, *_TEXT, *_NUMBERS}})
    _refuse_other_types(
        rows.name, "writes", write_columns, {"value": {*_JSON, *_TEXT, "bytea"}, "channel": _TEXT}
    )
    _refuse_ids(rows, checkpoints, columns)
    if writes:
        _refuse_ids(rows, writes, write_columns)
        _refuse_unequal_ids(rows.name, columns, write_columns)
    time = columns.get("created_at")
    return Dialect(
        checkpoints=checkpoints,
        writes=writes,
        text="{}::text",
        state=_make_form_sql("state", columns["state"]),
        value=_make_form_sql("value", write_columns.get("value", "")),
        time=_make_time_sql(time),
        newest=_make_newest_order(time),
        task=write_optional(write_columns, "task_id", "task_id::text"),
        idx=write_optional(write_columns, "idx", "idx::text"),
        order=_find_write_order(rows, writes),
        odd="thread_id IS NULL OR checkpoint_id IS NULL OR thread_id::text = ''",
        can_hold=_is_uuid if columns["thread_id"] == "uuid" else lambda name: "\0" not in name,
    )


def _is_uuid(text: str) -> bool:
    """Return True for a UUID as PostgreSQL prints it."""
    try:
        return str(UUID(text)) == text
    except ValueError:
        return False


def _find_checkpoints(rows: PostgresRows) -> tuple[str, str]:
    """Return the schema that has the table of checkpoints, and the table, both as SQL."""
    schemas = [
        name
        for (name,) in rows(
            "SELECT quote_ident(nspname) "
            "FROM unnest(current_schemas(false)) WITH ORDINALITY AS s (nspname, at) ORDER BY at"
        )
    ]
    for schema in schemas:
        if table := _find_table(rows, "checkpoints", schema):
            return schema, table
    others = rows(
        f"SELECT DISTINCT nspname FROM {_RELATIONS} AND lower(relname) = ?1 "  # noqa: S608 - a constant
        "AND nspname NOT IN ('pg_catalog', 'information_schema') ORDER BY 1 LIMIT 3",
        "checkpoints",
    )
    hint = ""
    if others:
        hint = f" (there is one in {', '.join(name for (name,) in others)})"
    raise BadUrl(
        f"{rows.name} has no table checkpoints on its search_path{hint}; for another schema add "
        "?options=-csearch_path%3Dname"
    )


_RELATIONS = "pg_class JOIN pg_namespace n ON n.oid = relnamespace WHERE relkind IN ('r', 'p', 'v', 'm', 'f')"


def _find_table(rows: PostgresRows, name: str, schema: str) -> str:
    """Return a schema's table of a name as SQL, empty if there is none. A table whose name differs in letter
    case is taken if it is the only one."""
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
            kind = f"of type {columns[column]}"
            if loose:
                kind = "of a nondeterministic collation"
            raise BadUrl(
                f"{rows.name}: the column {column} of {table} is {kind}, so ids are not text; give them as "
                f'text, e.g. with a view that has CAST({column} AS TEXT) COLLATE "C" AS {column}'
            )


def _refuse_unequal_ids(name: str, columns: Mapping[str, str], write_columns: Mapping[str, str]) -> None:
    """Refuse thread ids of different types in the two tables: when PostgreSQL compares them, it fails, or
    finds different ids equal."""
    checkpoints_type, writes_type = columns["thread_id"], write_columns["thread_id"]
    if checkpoints_type != writes_type and {checkpoints_type, writes_type} != {"text", "character varying"}:
        raise BadUrl(
            f"{name}: the column thread_id is of type {checkpoints_type} in checkpoints and "
            f"{writes_type} in writes; give both as one type, e.g. with a view that has "
            "CAST(thread_id AS TEXT) AS thread_id"
        )


def _make_form_sql(column: str, kind: str) -> str:
    form, text = "text", f"{column}::text"
    if kind == "bytea":
        form, text = "blob", f"encode({column}, 'hex')"
    return f"CASE WHEN {column} IS NULL THEN 'null' ELSE '{form}' END, {text}"


def _make_time_sql(kind: str | None) -> str:
    if kind is None:
        return "NULL"
    if kind not in _MOMENTS:
        return "created_at::text"
    moment = "created_at::timestamp"
    if kind == _ZONED:
        moment = "created_at AT TIME ZONE 'UTC'"
    return f"(to_json({moment}) #>> '{{}}') || '+00:00'"


def _make_newest_order(kind: str | None) -> str:
    if kind is None:
        return "checkpoint_id"
    collation = ' COLLATE "C"' if kind in _TEXT else ""
    return f"created_at{collation} DESC NULLS LAST"


def _find_write_order(rows: PostgresRows, writes: str) -> str:
    """Return the order in which the writes came, as SQL: by a column that counts them, or else by the rows'
    places, which change only if rows are changed or removed. A view has neither: order by its content."""
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
