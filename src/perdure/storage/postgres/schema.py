"""The tables and functions of a PostgreSQL database, and the migration steps from each version to the
next."""

from __future__ import annotations

from perdure.model.records import KINDS, Column, Kind
from perdure.storage.layout_version import first_version
from perdure.storage.postgres import functions
from perdure.storage.sql import listing

SCHEMA_VERSION = 7
"""The version that this release reads and writes."""

_TEXT = 'text COLLATE "C"'
_TYPES = {"text": _TEXT, "integer": "bigint", "bytes": "bytea"}


def grant_statement(*tables: str) -> str:
    """Return a statement for a step that adds ``tables``: it extends the rights on existing tables to
    these."""
    names = ", ".join(f"'{table}'" for table in tables)
    return (
        "DO $perdure$ DECLARE _right record; _table text; BEGIN FOR _right IN SELECT a.privilege_type what,"
        " CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END AS whom"
        " FROM pg_class c CROSS JOIN aclexplode(c.relacl) a"
        " WHERE c.oid = to_regclass($name${schema}.head$name$) AND a.grantee <> c.relowner LOOP"
        f" FOREACH _table IN ARRAY ARRAY[{names}] LOOP"
        " EXECUTE concat('GRANT ', _right.what, $name$ ON {schema}.$name$, _table, ' TO ', _right.whom);"
        " END LOOP; END LOOP; END $perdure$"
    )


STEPS: dict[int, tuple[str, ...]] = {}
"""The statements that migrate the tables to a version from the previous one, with {schema} in place of the
schema's name. The oldest version that can be migrated is the one before the first step. Steps are frozen:
later changes of the declarations must not change them. An empty database gets the current schema at once."""


def quote(name: str) -> str:
    """Return a name as a quoted SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def setup_statements(name: str) -> tuple[str, ...]:
    """Return the statements that set up an empty database, in order."""
    schema = quote(name)
    statements = [
        f"CREATE SCHEMA IF NOT EXISTS {schema}",
        f"CREATE TABLE {schema}.thread (pk bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,"
        f" tenant {_TEXT} NOT NULL, thread {_TEXT} NOT NULL, space {_TEXT} NOT NULL,"
        " UNIQUE (space, tenant, thread))",
        f"CREATE TABLE {schema}.dropped (pk bigint PRIMARY KEY)",
    ]
    for kind in KINDS:
        statements += _write_table(schema, kind)
    statements += listing.make_postgres_statements(schema)
    statements += functions.write_functions(schema, SCHEMA_VERSION)
    statements += [
        f"CREATE TABLE {schema}.schema (version integer NOT NULL, one integer PRIMARY KEY CHECK (one = 1))",
        f"INSERT INTO {schema}.schema (version, one) VALUES ({SCHEMA_VERSION}, 1)",
    ]
    return tuple(statements)


def find_readable_versions() -> tuple[int, int]:
    """Return the first and the last version that can be migrated to this release's."""
    return first_version(STEPS, SCHEMA_VERSION), SCHEMA_VERSION


def plan_migration(name: str, found: int) -> tuple[str, ...]:
    """Return the statements that migrate a version, 0 for an empty database, to this release's."""
    if found == 0:
        return setup_statements(name)
    if found == SCHEMA_VERSION:
        return ()
    schema = quote(name)
    steps = [s.replace("{schema}", schema) for n in range(found + 1, SCHEMA_VERSION + 1) for s in STEPS[n]]
    # Functions of earlier versions are kept for running processes, unless a step removes them.
    steps += functions.write_functions(schema, SCHEMA_VERSION)
    steps.append(functions.drop_by(schema, found, SCHEMA_VERSION))
    return (*steps, f"UPDATE {schema}.schema SET version = {SCHEMA_VERSION}")


def _write_table(schema: str, kind: Kind) -> list[str]:
    columns = ["t bigint NOT NULL", *(_write_column(c) for c in (*kind.key, *kind.fields))]
    if kind.versioned:
        columns.append("version bigint NOT NULL")
    if kind.body:
        columns.append("body bytea NOT NULL")
    columns.append(f"PRIMARY KEY ({', '.join(['t', *(c.name for c in kind.key)])})")
    out = [f"CREATE TABLE {schema}.{kind.name} ({', '.join(columns)})"]
    prefix = ", ".join(["t", *(functions.write_field_order_column(c.name) for c in kind.key[:-1])])
    out += [f"CREATE INDEX {kind.name}_{by} ON {schema}.{kind.name} ({prefix}, {by})" for by in kind.by]
    if kind.index is not None:
        out.append(
            f"CREATE INDEX {kind.name}_{kind.index} ON {schema}.{kind.name} ({kind.index})"
            f" WHERE {kind.index} IS NOT NULL"
        )
    return out


def _write_column(column: Column) -> str:
    return f"{column.name} {_TYPES[column.kind]}{'' if column.nullable else ' NOT NULL'}"
