"""Translates the storage requests that write to statements for Cloudflare D1.

Each request is a part of one batch, which D1 runs as one transaction. A commit first writes its verdict into
its receipt: the position of the first expectation that failed, if any. The writes after it are conditional on
the verdict, so that a refusal is an answer and no error, and the outcome of a batch whose answer was lost can
be looked up.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any

from perdure.model.ops import Delete, Expect, Op, Put
from perdure.model.records import KINDS, Kind, Partition
from perdure.model.values.compression import compress_body
from perdure.storage.d1.columns import (
    CATALOGUE,
    PARTITION,
    Statement,
    columns_of,
    from_row,
    pack_rows,
    place_of,
    to_json_row,
    to_sql_integer,
)
from perdure.storage.d1.reading import DROPPED
from perdure.storage.sql import compile as sql
from perdure.storage.sql.schema import PREFIX, table

DROP_ROWS = 500
"""The rows of a kind that one step of a drop removes."""

RECEIPT = f"{PREFIX}receipt"
RECEIPT_DAYS = 7

SCHEMA = (
    f"CREATE TABLE {RECEIPT} (id TEXT PRIMARY KEY, n INTEGER NOT NULL, at INTEGER NOT NULL, refused INTEGER)"
    " WITHOUT ROWID",
    f"CREATE INDEX {RECEIPT}_at ON {RECEIPT} (at)",
)
"""The statements for D1's own table, besides those for the tables of the kinds."""

_NOT_REFUSED = f"EXISTS (SELECT 1 FROM {RECEIPT} WHERE id = ?4 AND refused IS NULL)"
_NONE_FAILED = 1 << 40


def receipt(partition: Partition, ops: Sequence[Op], id_: str, n: int) -> Statement:
    """Return the statement that evaluates the expectations of a commit and writes the verdict into its
    receipt: the position of the first that failed, or NULL. A receipt's number has to rise, so that a second
    copy of the same batch is refused as a whole.

    Args:
        partition: The partition of the commit.
        ops: Its operations.
        id_: The receipt's id.
        n: The receipt's number.
    """
    parameters: list[str | None] = [*place_of(partition), id_, str(n)]
    failing: list[str] = []
    groups: dict[tuple[Kind, tuple[str, ...] | None, bool], list[list[Any]]] = {}
    for position, op in enumerate(ops):
        for form, versions, values in _list_demands(op):
            row = [position, *to_json_row(op.key), *values]
            groups.setdefault((op.kind, form, versions), []).append(row)
    for (kind, form, versions), rows in groups.items():
        for packed, _ in pack_rows(kind, rows):
            parameters.append(packed)
            failing.append(_write_first_failing(kind, form, versions, len(parameters)))
    verdict = "NULL"
    if failing:
        firsts = ", ".join(f"coalesce({f}, {_NONE_FAILED})" for f in failing)
        verdict = f"nullif(min({firsts}, {_NONE_FAILED}), {_NONE_FAILED})"
    return (
        f"INSERT INTO {RECEIPT} (id, n, at, refused) VALUES (?4, CAST(?5 AS INTEGER), unixepoch(), {verdict})"
        " ON CONFLICT (id) DO UPDATE SET n = CASE WHEN excluded.n > n THEN excluded.n END,"
        " refused = excluded.refused"
    ), tuple(parameters)


def select_receipts(ids: Sequence[str]) -> Statement:
    """Return the statement that reads receipts: id, number, and the position of the refusal."""
    return (
        f"SELECT id AS c0, CAST(n AS TEXT) AS c1, refused AS c2 FROM {RECEIPT}"
        " WHERE id IN (SELECT value FROM json_each(?1))"
    ), (json.dumps(list(ids)),)


def forget_receipts() -> Statement:
    """Return the statement that removes receipts that no client can ask for any more."""
    return f"DELETE FROM {RECEIPT} WHERE at < unixepoch() - {RECEIPT_DAYS * 86400}", ()


def write(partition: Partition, ops: Sequence[Op], id_: str | None) -> list[Statement]:
    """Return the statements that write the operations of a commit, unless its receipt has a refusal, or of a
    stage.

    Args:
        partition: The partition.
        ops: The operations.
        id_: The receipt's id, ``None`` for a stage, which has none.
    """
    out: list[Statement] = []
    parameters = place_of(partition) if id_ is None else (*place_of(partition), id_)
    puts = [op for op in ops if isinstance(op, Put)]
    if puts:
        out.append((_insert_new_thread(guarded=id_ is not None), parameters))
    for kind, group in _group_by_kind(puts):
        for packed, _ in pack_rows(kind, [_make_row(op, partition) for op in group if isinstance(op, Put)]):
            out.append((_write_put(kind, id_ is not None), (*parameters, packed)))
    for kind, group in _group_by_kind([op for op in ops if isinstance(op, Delete)]):
        rows = [to_json_row(op.key) for op in group]
        for packed, _ in pack_rows(kind, rows):
            out.append((_write_delete(kind), (*parameters, packed)))
    return out


def drop(partition: Partition, id_: str) -> Statement:
    """Return the statement that hides a partition from all readers at once."""
    return (
        f"UPDATE {CATALOGUE} SET space = '{DROPPED}', tenant = '', thread = CAST(pk AS TEXT)"
        f" WHERE space = ?1 AND tenant = ?2 AND thread = ?3 AND {_NOT_REFUSED}"
    ), (*place_of(partition), id_)


def drop_empty(partition: Partition) -> Statement:
    """Return the statement that removes a partition without records."""
    empty = " AND ".join(
        f"NOT EXISTS (SELECT 1 FROM {table(kind)} WHERE t = {CATALOGUE}.pk)" for kind in KINDS
    )
    text = f"DELETE FROM {CATALOGUE} WHERE space = ?1 AND tenant = ?2 AND thread = ?3 AND {empty}"
    return text, place_of(partition)


def sweep() -> list[Statement]:
    """Return the statements that remove a page of rows of a dropped partition; the last one returns 1 if
    dropped partitions are left."""
    pk = f"(SELECT pk FROM {CATALOGUE} WHERE space = '{DROPPED}' ORDER BY tenant, thread LIMIT 1)"
    out: list[Statement] = []
    for kind in KINDS:
        name = table(kind)
        key = "rowid"
        if kind.compact:
            key = ", ".join(["t", *(c.name for c in kind.key)])
        page = f"SELECT {key} FROM {name} WHERE t = {pk} LIMIT {DROP_ROWS}"
        out.append((f"DELETE FROM {name} WHERE ({key}) IN ({page})", ()))
    empty = " AND ".join(f"NOT EXISTS (SELECT 1 FROM {table(kind)} WHERE t = {pk})" for kind in KINDS)
    out.append((f"DELETE FROM {CATALOGUE} WHERE pk = {pk} AND {empty}", ()))
    out.append((f"SELECT EXISTS (SELECT 1 FROM {CATALOGUE} WHERE space = '{DROPPED}') AS c0", ()))
    return out


def _list_demands(op: Op) -> Iterator[tuple[tuple[str, ...] | None, bool, list[Any]]]:
    """Yield the demands of an operation on its record: ``None`` for absence, else the fields that have to be
    equal; True if the version has to be equal as well; and the values."""
    if isinstance(op, Delete) and op.unchanged:
        named = tuple(c.name for c in op.kind.fields if c.name in op.unchanged)
        yield named, False, to_json_row(op.unchanged[name] for name in named)
    if op.expect is Expect.ABSENT:
        yield None, False, []
    elif op.expect is Expect.PRESENT:
        yield (), False, []
    elif isinstance(op.expect, int):
        yield (), True, [to_sql_integer(op.expect)]


@lru_cache(maxsize=256)
def _write_first_failing(kind: Kind, form: tuple[str, ...] | None, versions: bool, parameter: int) -> str:
    where = [f"x.t = {PARTITION}", *(f"x.{c.name} = {from_row(c, n)}" for n, c in enumerate(kind.key, 1))]
    position = 1 + len(kind.key)
    for name in form or ():
        column = next(c for c in kind.fields if c.name == name)
        where.append(f"x.{name} IS {from_row(column, position)}")
        position += 1
    if versions:
        where.append(f"{'x.version' if kind.versioned else '0'} = r.value ->> {position}")
    exists = f"EXISTS (SELECT 1 FROM {table(kind)} AS x WHERE {' AND '.join(where)})"
    fails = exists if form is None else f"NOT {exists}"
    return f"(SELECT min(r.value ->> 0) FROM json_each(?{parameter}) AS r WHERE {fails})"


@lru_cache(maxsize=2)
def _insert_new_thread(*, guarded: bool) -> str:
    not_refused = f"{_NOT_REFUSED} AND " if guarded else ""
    is_new = f"{not_refused}{PARTITION} IS NULL"
    return f"INSERT INTO {CATALOGUE} (space, tenant, thread) SELECT ?1, ?2, ?3 WHERE {is_new}"


@lru_cache(maxsize=64)
def _write_put(kind: Kind, guarded: bool) -> str:
    columns = columns_of(kind)
    names = ", ".join(["t", *(c.name for c in columns)])
    values = ", ".join(["p.pk", *(from_row(c, n) for n, c in enumerate(columns))])
    not_refused = f" AND {_NOT_REFUSED}" if guarded else ""
    return (
        f"INSERT INTO {table(kind)} ({names}) SELECT {values} FROM {CATALOGUE} AS p"
        f" CROSS JOIN json_each(?{5 if guarded else 4}) AS r"
        f" WHERE p.space = ?1 AND p.tenant = ?2 AND p.thread = ?3{not_refused}"
        f"{sql.on_conflict(kind)}"
    )


@lru_cache(maxsize=64)
def _write_delete(kind: Kind) -> str:
    where = [f"t = {PARTITION}", _NOT_REFUSED]
    if kind.key:
        names = ", ".join(c.name for c in kind.key)
        values = ", ".join(from_row(c, n) for n, c in enumerate(kind.key))
        where.append(f"({names}) IN (SELECT {values} FROM json_each(?5) AS r)")
    else:
        where.append("json_array_length(?5) > 0")
    return f"DELETE FROM {table(kind)} WHERE {' AND '.join(where)}"


def _make_row(op: Put, partition: Partition) -> list[Any]:
    op = op._replace(body=compress_body(op))
    kind = op.kind
    values: list[Any] = [*op.key, *(op.fields[c.name] for c in kind.fields)]
    if kind.versioned:
        values.append(op.version)
    if kind.body:
        values.append(op.body)
    return [*to_json_row(values), sql.checksum(op, partition)]


def _group_by_kind(ops: Sequence[Put | Delete]) -> Iterator[tuple[Kind, list[Put | Delete]]]:
    def name(op: Put | Delete) -> str:
        return op.kind.name

    for _, group in groupby(sorted(ops, key=name), key=name):
        members = list(group)
        yield members[0].kind, members
