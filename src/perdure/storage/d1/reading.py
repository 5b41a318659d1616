"""Translates the storage requests that read to statements for Cloudflare D1, and their rows to answers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from perdure.model.ops import (
    Bound,
    Find,
    FindItems,
    FindListed,
    FindRecords,
    FindThreads,
    Get,
    IndexHit,
    Range,
)
from perdure.model.records import DOCUMENT, ITEM, Kind, Partition, Record
from perdure.storage.d1.columns import (
    CATALOGUE,
    PARTITION,
    Rows,
    Statement,
    columns_of,
    from_parameter,
    from_row,
    output,
    pack_rows,
    place_of,
    to_json_row,
    values_of,
)
from perdure.storage.evaluation import get_prefix
from perdure.storage.sql import compile as sql
from perdure.storage.sql import searches
from perdure.storage.sql.schema import PREFIX, table

DROPPED = "dropped"
"""The space to which a dropped partition is moved, where it is never read, until its rows are gone."""


def fetch(partition: Partition, items: Sequence[Get | Range]) -> tuple[list[Statement], list[_RowReader]]:
    """Return the statements that read the items, and for each a reader of its rows."""
    statements: list[Statement] = []
    readers: list[_RowReader] = []
    groups: dict[tuple[Kind, int, bool], list[tuple[int, list[Any]]]] = {}
    names = place_of(partition)
    for position, item in enumerate(items):
        prefix = get_prefix(item)
        if isinstance(item, Get) or _has_no_bounds(item):
            bodies = isinstance(item, Get) or item.bodies
            kind = item.kind
            row = to_json_row(prefix)
            groups.setdefault((kind, len(prefix), bodies), []).append((position, row))
        else:
            text, parameters = _compile_range(item)
            statements.append((text, (*names, *parameters)))
            readers.append(
                _RowReader(partition, item.kind, item.bodies, item.verify, (position,), is_ordered=True)
            )
    for (kind, depth, bodies), rows in groups.items():
        start = 0
        for packed, count in pack_rows(kind, [row for _, row in rows]):
            statements.append((_write_lookup(kind, depth, bodies), (*names, packed)))
            positions = tuple(position for position, _ in rows[start : start + count])
            verify = all(getattr(items[position], "verify", True) for position in positions)
            readers.append(_RowReader(partition, kind, bodies, verify, positions, is_ordered=False))
            start += count
    return statements, readers


class _RowReader(NamedTuple):
    """Reads the rows of one statement into the answers of a fetch. If they are not in order, each begins with
    the number of its item among ``positions``."""

    partition: Partition
    kind: Kind
    bodies: bool
    verify: bool
    positions: tuple[int, ...]
    is_ordered: bool

    def answer(self, rows: Rows, answers: list[list[Record]]) -> None:
        columns = columns_of(self.kind, bodies=self.bodies)
        for row in rows:
            number, values = 0, row
            if not self.is_ordered:
                number, *values = row
            found = values_of(columns, values)
            record = sql.record(self.kind, found, self.partition, bodies=self.bodies, verify=self.verify)
            answers[self.positions[number]].append(record)
        if not self.is_ordered:
            for position in self.positions:
                answers[position].sort(key=lambda record: record.key)


def _has_no_bounds(item: Range) -> bool:
    return item.by is None and item.after is None and item.limit is None and not item.reverse


@lru_cache(maxsize=256)
def _write_lookup(kind: Kind, depth: int, bodies: bool) -> str:
    keys = [f"x.{c.name} = {from_row(c, n)}" for n, c in enumerate(kind.key[:depth])]
    where = " AND ".join([f"x.t = {PARTITION}", *keys])
    out = output(columns_of(kind, bodies=bodies), start=1)
    return f"SELECT r.key AS c0, {out} FROM json_each(?4) AS r CROSS JOIN {table(kind)} AS x WHERE {where}"


def _compile_range(item: Range) -> tuple[str, tuple[str | None, ...]]:
    kind, depth = item.kind, len(item.prefix)
    has_after, has_limit = item.after is not None, item.limit is not None
    parameters = list(item.prefix)
    if has_after:
        parameters += [item.after] if item.by else item.after[depth:]
    if has_limit:
        parameters.append(item.limit)
    text = _compile_range_sql(
        kind, depth, item.by, reverse=item.reverse, after=has_after, limit=has_limit, bodies=item.bodies
    )
    return text, tuple(None if p is None else str(p) for p in to_json_row(parameters))


@lru_cache(maxsize=256)
def _compile_range_sql(
    kind: Kind, depth: int, by: str | None, *, reverse: bool, after: bool, limit: bool, bodies: bool
) -> str:
    order = [c for c in kind.fields if c.name == by] or list(kind.key[depth:])
    where = [f"x.t = {PARTITION}"]
    where += [f"x.{c.name} = {from_parameter(c, 4 + n)}" for n, c in enumerate(kind.key[:depth])]
    next_parameter = 4 + depth
    if after:
        names = ", ".join(f"x.{c.name}" for c in order)
        edge = ", ".join(from_parameter(c, next_parameter + n) for n, c in enumerate(order))
        where.append(f"({names}) {'<' if reverse else '>'} ({edge})")
        next_parameter += len(order)
    text = f"SELECT {output(columns_of(kind, bodies=bodies))} FROM {table(kind)} AS x"
    text += f" WHERE {' AND '.join(where)}"
    if order:
        text += " ORDER BY " + ", ".join(f"x.{c.name}{' DESC' if reverse else ''}" for c in order)
    if limit:
        return f"{text} LIMIT CAST(?{next_parameter} AS INTEGER)"
    return text


def find(effect: Find) -> Statement:
    """Return the statement of a find. All parameters are sent as text."""
    parameters = sql.Parameters()
    bind_text = parameters.bind
    tables = searches.Tables(CATALOGUE, f"{PREFIX}listing", table(DOCUMENT))

    def bind(value: str | int) -> str:
        if isinstance(value, str):
            return bind_text(value)
        return f"CAST({bind_text(str(value))} AS INTEGER)"

    def within(bound: Bound) -> str:
        limit = bind_text(str(bound.limit))
        return sql.write_bound_condition(
            bound, limit if isinstance(bound.limit, str) else f"CAST({limit} AS REAL)"
        )

    syntax = searches.BodySyntax(
        bind,
        holds=lambda body, part: f"instr({body}, unhex({bind_text(part.hex())})) > 0",
        ends=lambda body, part: f"substr({body}, -{len(part)}) = unhex({bind_text(part.hex())})",
        within=within,
    )
    if isinstance(effect, FindThreads):
        query = searches.select_threads(effect, tables, bind)
    elif isinstance(effect, FindListed):
        query = searches.select_listed(effect, tables, syntax)
    elif isinstance(effect, FindItems):
        query = _write_item_query(effect, syntax)
    elif isinstance(effect, FindRecords):
        kind, tenant = effect.kind, bind_text(effect.tenant)
        query = (
            f"SELECT p.tenant AS p0, p.thread AS p1, p.space AS p2, {output((*kind.key, *kind.fields))}"
            f" FROM {table(kind)} AS x JOIN {CATALOGUE} AS p ON p.pk = x.t"
            f" WHERE {sql.write_span_condition(f'x.{kind.index}', *effect.span, bind)}"
            f" AND ({tenant} IS NULL OR p.tenant = {tenant}) AND p.space <> '{DROPPED}'"
            f" ORDER BY x.{kind.index} LIMIT {bind(effect.limit)}"
        )
    else:
        raise TypeError(f"not a request to D1: {type(effect).__name__}")
    return query, tuple(parameters)


def _write_item_query(effect: FindItems, syntax: searches.BodySyntax) -> str:
    where, bind = searches.write_item_conditions(effect, syntax), syntax.bind
    return (
        "SELECT p.tenant AS p0, p.thread AS p1, p.space AS p2,"
        f" {output(columns_of(ITEM, bodies=True), alias='i')} FROM {CATALOGUE} AS p"
        f" JOIN {table(ITEM)} AS i ON i.t = p.pk WHERE {where}"
        f" ORDER BY {searches.ORDER} LIMIT {bind(effect.limit)} OFFSET {bind(effect.skip)}"
    )


def parse_find(effect: Find, rows: Rows) -> tuple[IndexHit, ...]:
    """Return the answer of a find."""
    if not isinstance(effect, FindRecords | FindItems):
        return tuple(map(sql.to_hit, rows))
    partition_size = len(Partition._fields)
    partitions = [Partition(*row[:partition_size]) for row in rows]
    if isinstance(effect, FindItems):
        columns = columns_of(ITEM, bodies=True)
        hit_records = (
            sql.record(ITEM, values_of(columns, row[partition_size:]), p)
            for p, row in zip(partitions, rows, strict=True)
        )
    else:
        kind = effect.kind
        hit_records = (
            sql.hint(kind, values_of((*kind.key, *kind.fields), row[partition_size:])) for row in rows
        )
    return tuple(map(IndexHit, partitions, hit_records))


def now() -> Statement:
    """Return the statement that reads the database's clock in microseconds."""
    return f"SELECT CAST(({sql.NOW}) AS TEXT) AS c0", ()
