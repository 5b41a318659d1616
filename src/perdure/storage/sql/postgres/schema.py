"""The tables and functions of a PostgreSQL database, and the steps from one version of them to the next."""

from __future__ import annotations

from perdure.model.records import KINDS, Column, Kind
from perdure.storage.sql.postgres import functions

SCHEMA_VERSION = 1
"""The version that this release reads and writes."""

_TEXT = 'text COLLATE "C"'
_TYPES = {"text": _TEXT, "integer": "bigint", "bytes": "bytea"}
_FUNCTIONS = (functions.commit, functions.fetch, functions.drop)

# One entry a version: the statements that lead to it from the version before, with {schema} for the schema's
# name. They are history: a later change of the declarations must not change what they do. An empty database
# gets the present schema at once. A step leaves the functions of the version before, which running processes
# of the release before still call.
STEPS: dict[int, tuple[str, ...]] = {}


def quoted(name: str) -> str:
    """A name as an identifier of SQL."""
    return '"' + name.replace('"', '""') + '"'


def whole(name: str) -> tuple[str, ...]:
    """The statements that make an empty database ready, in order."""
    schema = quoted(name)
    statements = [
        f"CREATE SCHEMA IF NOT EXISTS {schema}",
        f"CREATE TABLE {schema}.thread (pk bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,"
        f" tenant {_TEXT} NOT NULL, thread {_TEXT} NOT NULL, space {_TEXT} NOT NULL,"
        " UNIQUE (space, tenant, thread))",
        f"CREATE TABLE {schema}.dropped (pk bigint PRIMARY KEY)",
    ]
    for kind in KINDS:
        statements += _table(schema, kind)
    statements += [make(schema, SCHEMA_VERSION) for make in _FUNCTIONS]
    statements += [
        f"CREATE TABLE {schema}.schema (version integer NOT NULL, one integer PRIMARY KEY CHECK (one = 1))",
        f"INSERT INTO {schema}.schema (version, one) VALUES ({SCHEMA_VERSION}, 1)",
    ]
    return tuple(statements)


def pending(name: str, found: int) -> tuple[str, ...]:
    """The statements that lead from a version, 0 for none, to this release's."""
    if found == 0:
        return whole(name)
    if found >= SCHEMA_VERSION:
        return ()
    schema = quoted(name)
    steps = [s.replace("{schema}", schema) for n in range(found + 1, SCHEMA_VERSION + 1) for s in STEPS[n]]
    return (*steps, f"UPDATE {schema}.schema SET version = {SCHEMA_VERSION}")


def _table(schema: str, kind: Kind) -> list[str]:
    columns = ["t bigint NOT NULL", *(_column(c) for c in (*kind.key, *kind.fields))]
    if kind.versioned:
        columns.append("version bigint NOT NULL")
    if kind.body:
        columns.append("body bytea NOT NULL")
    columns.append(f"PRIMARY KEY ({', '.join(['t', *(c.name for c in kind.key)])})")
    out = [f"CREATE TABLE {schema}.{kind.name} ({', '.join(columns)})"]
    prefix = ", ".join(["t", *(functions.ordered_by_field(c.name) for c in kind.key[:-1])])
    out += [f"CREATE INDEX {kind.name}_{by} ON {schema}.{kind.name} ({prefix}, {by})" for by in kind.by]
    if kind.index is not None:
        out.append(
            f"CREATE INDEX {kind.name}_{kind.index} ON {schema}.{kind.name} ({kind.index})"
            f" WHERE {kind.index} IS NOT NULL"
        )
    return out


def _column(column: Column) -> str:
    return f"{column.name} {_TYPES[column.kind]}{'' if column.nullable else ' NOT NULL'}"
