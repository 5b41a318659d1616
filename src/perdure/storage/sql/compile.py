"""Translates operations to SQL; the only place that writes SQL for records.

Statements take positional parameters marked ``?``, the partition's integer first. Every read and write is
by the key, by a prefix of it, or by a declared order: there is no statement that scans.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from perdure.model.ops import (
    Bound,
    FindItems,
    FindListed,
    FindRecords,
    FindThreads,
    IndexHit,
    ListedThread,
    Put,
    Range,
)
from perdure.model.records import DOCUMENT, ITEM, Kind, Partition, Record
from perdure.model.values.compression import compress_body
from perdure.storage.sql import checksums, searches
from perdure.storage.sql.schema import PREFIX, table

Statement = tuple[str, tuple[Any, ...]]

NOW = "SELECT CAST(unixepoch('subsec') * 1000000 AS INTEGER)"
THREAD_PK = (
    f"SELECT pk, checksum, total, head, commits FROM {PREFIX}thread"
    " WHERE tenant = ? AND thread = ? AND space = ?"
)
THREAD_TWIN = f"SELECT tenant, thread, space FROM {PREFIX}thread WHERE checksum = ?"
THREAD_NEW = (
    f"INSERT INTO {PREFIX}thread (tenant, thread, space, checksum, total, head, commits)"
    " VALUES (?, ?, ?, ?, 0, 0, 0)"
)
THREAD_SUM = f"UPDATE {PREFIX}thread SET total = ?, head = ?, commits = ? WHERE pk = ?"
THREAD_DROP = f"DELETE FROM {PREFIX}thread WHERE pk = ?"


class Parameters(list[Any]):
    """Parameters of a statement that is being written."""

    def bind(self, value: str | int | float | bytes | None) -> str:
        """Add a parameter; return its expression."""
        self.append(value)
        return f"?{len(self)}"


def select_threads(effect: FindThreads | FindListed) -> Statement:
    """Return the statement for a page of the catalogue or of the listing."""
    parameters = Parameters()
    tables = searches.Tables(f"{PREFIX}thread", f"{PREFIX}listing", table(DOCUMENT))
    if isinstance(effect, FindThreads):
        return searches.select_threads(effect, tables, parameters.bind), tuple(parameters)
    return searches.select_listed(effect, tables, _make_syntax(parameters)), tuple(parameters)


def _make_syntax(parameters: Parameters) -> searches.BodySyntax:
    bind = parameters.bind
    return searches.BodySyntax(
        bind,
        holds=lambda body, part: f"instr({body}, {bind(part)}) > 0",
        ends=lambda body, part: f"substr({body}, -{len(part)}) = {bind(part)}",
        within=lambda bound: write_bound_condition(bound, bind(bound.limit)),
    )


def select_items(effect: FindItems) -> Statement:
    """Return the statement for a page of items, the latest written first, each with its namespace."""
    parameters = Parameters()
    bind = parameters.bind
    where = searches.write_item_conditions(effect, _make_syntax(parameters))
    columns = ", ".join(f"i.{name}" for name in (*ITEM.columns(), checksums.NAME))
    # Rows are sorted without their bodies, and read whole when the page is known.
    page = (
        "SELECT i.rowid AS place, p.tenant AS tenant, p.thread AS thread,"
        f" p.space AS space FROM {PREFIX}thread p JOIN {table(ITEM)} i ON i.t = p.pk"
        f" WHERE {where} ORDER BY {searches.ORDER} LIMIT {bind(effect.limit)} OFFSET {bind(effect.skip)}"
    )
    sql = (
        f"SELECT f.tenant, f.thread, f.space, {columns} FROM ({page}) f"
        f" JOIN {table(ITEM)} i ON i.rowid = f.place ORDER BY i.updated_at DESC, f.thread, i.key"
    )
    return sql, tuple(parameters)


def write_bound_condition(bound: Bound, limit: str) -> str:
    """Return the condition that an item's value is within a bound. A body that is not JSON fulfils it, so
    that reading the item reports the damage.

    Args:
        bound: The bound.
        limit: The expression for the bound's limit.
    """
    text = "CAST(i.body AS TEXT)"
    value = f"json_extract({text}, '$.{bound.name}')"
    within = f"{value} {'>=' if bound.is_lower else '<='} {limit}"
    if isinstance(bound.limit, str):
        # SQLite may end text that it extracts at a NUL.
        condition = f"typeof({value}) = 'text' AND ({within} OR instr({text}, '\\u0000') > 0)"
    else:
        condition = f"typeof({value}) = 'text' OR {within}"
    return f"CASE WHEN json_valid({text}) THEN {condition} ELSE 1 END"


def to_hit(row: Sequence[Any]) -> IndexHit:
    """Return the result for a row of ``select_threads`` or ``select_listed``."""
    created, updated, status, *numbers = row[3:]
    listed: ListedThread | None = None
    if status is not None:
        listed = ListedThread(int(created), int(updated), status, *map(int, numbers))
    return IndexHit(Partition(*row[:3]), None, listed)


@lru_cache(maxsize=256)
def select_some(kind: Kind, count: int, bodies: bool = True) -> str:
    """Return the statement that reads ``count`` records by their keys, which are among the results."""
    return f"SELECT {_list_columns(kind, bodies)} FROM {table(kind)} WHERE {_match_keys(kind, count)}"


def _list_columns(kind: Kind, bodies: bool = True) -> str:
    return ", ".join((*(name for name in kind.columns() if bodies or name != "body"), checksums.NAME))


@lru_cache(maxsize=64)
def select_versions(kind: Kind, count: int) -> str:
    """Return the statement that reads, of ``count`` records, the key, the version (0 for kinds without
    versions), and the checksum."""
    version = "version" if kind.versioned else "0"
    columns = ", ".join((*(c.name for c in kind.key), version, checksums.NAME))
    return f"SELECT {columns} FROM {table(kind)} WHERE {_match_keys(kind, count)}"


def select_all(kind: Kind) -> str:
    """Return the statement that reads a partition's records of one kind, in no order."""
    return f"SELECT {_list_columns(kind)} FROM {table(kind)} WHERE t = ?"


def select_range(item: Range, t: int) -> Statement:
    """Return the statement that reads a range in its order."""
    sql = _write_range_sql(
        item.kind, len(item.prefix), item.by, item.reverse, item.after is not None, item.bodies
    )
    parameters: tuple[Any, ...] = (t, *item.prefix)
    if item.after is not None:
        if item.by:
            parameters += (item.after,)
        else:
            parameters += tuple(item.after[len(item.prefix) :])
    return sql, (*parameters, -1 if item.limit is None else item.limit)


@lru_cache(maxsize=256)
def _write_range_sql(
    kind: Kind, depth: int, by: str | None, reverse: bool, has_after: bool, bodies: bool
) -> str:
    where = ["t = ?", *(f"{c.name} = ?" for c in kind.key[:depth])]
    order = [by] if by else [c.name for c in kind.key[depth:]]
    if has_after:
        sign = "<" if reverse else ">"
        where.append(f"({', '.join(order)}) {sign} ({', '.join('?' for _ in order)})")
    direction = " DESC" if reverse else ""
    ordering = ", ".join(f"{c}{direction}" for c in order)
    tail = f" ORDER BY {ordering}" if order else ""
    return (
        f"SELECT {_list_columns(kind, bodies)} FROM {table(kind)} WHERE {' AND '.join(where)}{tail} LIMIT ?"
    )


@lru_cache(maxsize=64)
def insert(kind: Kind, count: int = 1) -> str:
    """Return the statement that writes ``count`` records that must not exist yet."""
    columns = ("t", *kind.columns(), checksums.NAME)
    row = f"({', '.join('?' for _ in columns)})"
    return f"INSERT INTO {table(kind)} ({', '.join(columns)}) VALUES {', '.join([row] * count)}"


@lru_cache(maxsize=64)
def upsert(kind: Kind, count: int = 1) -> str:
    """Return the statement that writes ``count`` records, each over an existing one, if any."""
    return insert(kind, count) + on_conflict(kind)


def on_conflict(kind: Kind) -> str:
    """Return the clause with which a record is written over an existing one; a kind that ``grows`` is
    rewritten only to raise that field."""
    columns = ("t", *kind.columns(), checksums.NAME)
    key = {c.name for c in kind.key} | {"t"}
    rest = [c for c in columns if c not in key]
    if kind.grows is not None:
        action = f"UPDATE SET {kind.grows} = excluded.{kind.grows} WHERE excluded.{kind.grows} > {kind.grows}"
    elif rest:
        action = "UPDATE SET " + ", ".join(f"{c} = excluded.{c}" for c in rest)
    else:
        action = "NOTHING"
    target = ", ".join(["t", *(c.name for c in kind.key)])
    return f" ON CONFLICT ({target}) DO {action}"


def checksum(op: Put, partition: Partition) -> int:
    """Return the checksum of the record that an operation writes."""
    kind = op.kind
    version, body = op.version if kind.versioned else 0, op.body if kind.body else b""
    return checksums.checksum(partition, kind, op.key, fields(op), version, body)


def fields(op: Put) -> list[Any]:
    """Return the fields of an operation in the order of their declaration."""
    return list(map(op.fields.__getitem__, _list_fields(op.kind)))


def row(op: Put, fields: Sequence[Any], t: int, partition: Partition) -> tuple[Any, ...]:
    """Return the values of one record, its checksum last, for ``insert`` and ``upsert``.

    Args:
        op: The operation.
        fields: The result of ``fields`` for the operation, except for a field that the existing record keeps.
        t: The partition's number.
        partition: The partition.
    """
    kind, key, _, _, _, version, _ = op
    if not kind.versioned:
        version = 0
    body = compress_body(op) if kind.body else b""
    record_checksum = checksums.checksum(partition, kind, key, fields, version, body)
    if kind.versioned and kind.body:
        return (t, *key, *fields, version, body, record_checksum)
    if kind.versioned:
        return (t, *key, *fields, version, record_checksum)
    if kind.body:
        return (t, *key, *fields, body, record_checksum)
    return (t, *key, *fields, record_checksum)


@lru_cache(maxsize=64)
def delete(kind: Kind, count: int) -> str:
    """Return the statement that removes ``count`` records by their keys, and returns the checksums of those
    that existed."""
    return f"DELETE FROM {table(kind)} WHERE {_match_keys(kind, count)} RETURNING {checksums.NAME}"


def first(kind: Kind) -> str:
    """Return the statement that reads one record of a kind in a partition, to see whether there is any."""
    return f"SELECT 1 FROM {table(kind)} WHERE t = ? LIMIT 1"


def drop(kind: Kind) -> str:
    """Return the statement that removes a partition's records of one kind."""
    return f"DELETE FROM {table(kind)} WHERE t = ?"


def select_indexed(effect: FindRecords) -> Statement:
    """Return the statement that finds records by their indexed field, with the partition."""
    kind, (low, high) = effect.kind, effect.span
    columns = ", ".join(f"r.{c.name}" for c in (*kind.key, *kind.fields))
    parameters = Parameters()
    tenant = parameters.bind(effect.tenant)
    sql = (
        f"SELECT p.tenant, p.thread, p.space, {columns} FROM {table(kind)} r"
        f" JOIN {PREFIX}thread p ON p.pk = r.t"
        f" WHERE {write_span_condition(f'r.{kind.index}', low, high, parameters.bind)}"
        f" AND ({tenant} IS NULL OR p.tenant = {tenant}) ORDER BY r.{kind.index}"
        f" LIMIT {parameters.bind(effect.limit)}"
    )
    return sql, tuple(parameters)


def write_span_condition(field: str, low: Any, high: Any, bind: Callable[[Any], str]) -> str:
    """Return the condition that a field is in the span of a ``FindRecords``."""
    if low == high:
        return f"{field} = {bind(high)}"
    above = "" if low is None else f" AND {field} >= {bind(low)}"
    return f"{field} <= {bind(high)}{above}"


def record(
    kind: Kind,
    row: tuple[Any, ...],
    partition: Partition,
    *,
    bodies: bool = True,
    verify: bool = True,
) -> Record:
    """Return the record of a row of ``select_some`` or ``select_range``.

    Args:
        kind: The kind of the record.
        row: The row.
        partition: Its partition.
        bodies: True if the row has the body.
        verify: Compare the record with its checksum.

    Raises:
        Corrupt: The record differs from what was written.
    """
    names, key_size = _list_fields(kind), len(kind.key)
    end = key_size + len(names)
    key, values, stored_checksum = row[:key_size], row[key_size:end], row[-1]
    version = row[end] if kind.versioned else 0
    body = row[-2] if kind.body and bodies else b""
    if body is None or (verify and not isinstance(body, bytes)):
        raise checksums.damage_error(partition, kind, key)
    if verify:
        read_body = body if bodies or not kind.body else None
        if not checksums.matches(stored_checksum, partition, kind, key, values, version, body=read_body):
            raise checksums.damage_error(partition, kind, key)
    return Record(kind, key, dict(zip(names, values, strict=True)), version, body)


def header(kind: Kind, row: tuple[Any, ...], partition: Partition) -> Sequence[Any]:
    """Return the fields of a row without its body, in the order of their declaration; arguments and errors as
    for ``record``."""
    key_size = len(kind.key)
    key, values, stored_checksum = row[:key_size], row[key_size : key_size + len(kind.fields)], row[-1]
    version = row[-2] if kind.versioned else 0
    if not checksums.matches(
        stored_checksum, partition, kind, key, values, version, body=None if kind.body else b""
    ):
        raise checksums.damage_error(partition, kind, key)
    return values


def hint(kind: Kind, row: tuple[Any, ...]) -> Record:
    """Return the record of a row of ``select_indexed``: the key and the fields, which a commit verifies."""
    key_size = len(kind.key)
    return Record(kind, row[:key_size], dict(zip(_list_fields(kind), row[key_size:], strict=True)))


@lru_cache(maxsize=64)
def _list_fields(kind: Kind) -> tuple[str, ...]:
    return tuple(c.name for c in kind.fields)


def _match_keys(kind: Kind, count: int) -> str:
    names = [c.name for c in kind.key]
    if count == 1:
        return _match_key(kind)
    if len(names) == 1:
        return f"t = ? AND {names[0]} IN ({', '.join('?' for _ in range(count))})"
    key = f"({', '.join('?' for _ in names)})"
    return f"t = ? AND ({', '.join(names)}) IN (VALUES {', '.join([key] * count)})"


def _match_key(kind: Kind) -> str:
    return " AND ".join(["t = ?", *(f"{c.name} = ?" for c in kind.key)])
