"""Translates storage requests to statements for Cloudflare D1: each request is a part of one batch, which D1
runs as one transaction.

Rows travel as one JSON parameter a statement, whatever their number; bytes as hexadecimal digits and integers
as text on the way back, because JSON's numbers end at 2^53. A commit first writes its verdict into its
receipt: the position of the first expectation that failed, if any. The writes after it depend on it, so a
refusal is an answer and no error, and the outcome of a batch whose answer was lost can be looked up.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any

from perdure.errors import TooLarge, Unserialisable
from perdure.model.ops import Delete, Expect, Find, Get, IndexHit, Op, Put, Range
from perdure.model.records import INDEXED, ITEM, KINDS, Column, Kind, Partition, Record
from perdure.storage.sql import checksums
from perdure.storage.sql import compile as sql
from perdure.storage.sql.schema import PREFIX, table

Statement = tuple[str, tuple[str | None, ...]]
"""SQL with parameters ``?1``, ``?2``…, all of them text."""

Rows = list[list[Any]]

VALUE_BYTES = 1_900_000
"""The most bytes of one parameter; D1 takes 2,000,000 bytes."""

DROPPED = "dropped"
"""The space to which a dropped partition is moved, where it is never read, until its rows are gone."""

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

_PK = f"(SELECT pk FROM {PREFIX}thread WHERE space = ?1 AND tenant = ?2 AND thread = ?3)"
_HELD = f"EXISTS (SELECT 1 FROM {RECEIPT} WHERE id = ?4 AND refused IS NULL)"
_NONE_FAILED = 1 << 40


# Reading


def fetch(partition: Partition, items: Sequence[Get | Range]) -> tuple[list[Statement], list[_Look]]:
    """Return the statements that read the items, and for each a reader of its rows."""
    statements: list[Statement] = []
    looks: list[_Look] = []
    groups: dict[tuple[Kind, int, bool], list[tuple[int, list[Any]]]] = {}
    place_of = _place(partition)
    for place, item in enumerate(items):
        prefix = item.key if isinstance(item, Get) else item.prefix
        if isinstance(item, Get) or _is_whole(item):
            bodies = isinstance(item, Get) or item.bodies
            kind = item.kind
            row = _row(zip(prefix, kind.key, strict=False))
            groups.setdefault((kind, len(prefix), bodies), []).append((place, row))
        else:
            text, parameters = _ordered(item)
            statements.append((text, (*place_of, *parameters)))
            looks.append(_Look(partition, item.kind, item.bodies, item.verify, (place,), ordered=True))
    for (kind, depth, bodies), rows in groups.items():
        start = 0
        for packed, count in _packed(kind, [row for _, row in rows]):
            statements.append((_lookup(kind, depth, bodies), (*place_of, packed)))
            places = tuple(place for place, _ in rows[start : start + count])
            verify = all(getattr(items[place], "verify", True) for place in places)
            looks.append(_Look(partition, kind, bodies, verify, places, ordered=False))
            start += count
    return statements, looks


class _Look:
    """Reads the rows of one statement into the answers of a fetch."""

    def __init__(
        self,
        partition: Partition,
        kind: Kind,
        bodies: bool,
        verify: bool,
        places: tuple[int, ...],
        *,
        ordered: bool,
    ) -> None:
        self._partition = partition
        self._verify = verify
        self._kind = kind
        self._bodies = bodies
        self._places = places
        self._ordered = ordered

    def answer(self, rows: Rows, answers: list[list[Record]]) -> None:
        columns = _columns(self._kind, bodies=self._bodies)
        for row in rows:
            values = row if self._ordered else row[1:]
            found = _values(columns, values)
            record = sql.record(self._kind, found, self._partition, bodies=self._bodies, verify=self._verify)
            answers[self._places[0 if self._ordered else row[0]]].append(record)
        if not self._ordered:
            for place in self._places:
                answers[place].sort(key=lambda record: record.key)


def _is_whole(item: Range) -> bool:
    return item.by is None and item.after is None and item.limit is None and not item.reverse


@lru_cache(maxsize=256)
def _lookup(kind: Kind, depth: int, bodies: bool) -> str:
    keys = [f"x.{c.name} = {_given(c, n)}" for n, c in enumerate(kind.key[:depth])]
    where = " AND ".join([f"x.t = {_PK}", *keys])
    out = _output(_columns(kind, bodies=bodies), start=1)
    return f"SELECT r.key AS c0, {out} FROM json_each(?4) AS r CROSS JOIN {table(kind)} AS x WHERE {where}"


def _ordered(item: Range) -> tuple[str, tuple[str | None, ...]]:
    kind, depth = item.kind, len(item.prefix)
    by = [c for c in kind.fields if c.name == item.by] or list(kind.key[depth:])
    after: list[Any] = []
    if item.after is not None:
        after = [item.after] if item.by else list(item.after[depth:])
    parameters = [*_row(zip(item.prefix, kind.key, strict=False)), *_row(zip(after, by, strict=False))]
    limit = [] if item.limit is None else [item.limit]
    text = _ordered_sql(
        kind, depth, item.by, reverse=item.reverse, after=bool(after), limit=bool(limit), bodies=item.bodies
    )
    return text, tuple(None if p is None else str(p) for p in [*parameters, *limit])


@lru_cache(maxsize=256)
def _ordered_sql(
    kind: Kind, depth: int, by: str | None, *, reverse: bool, after: bool, limit: bool, bodies: bool
) -> str:
    order = [c for c in kind.fields if c.name == by] or list(kind.key[depth:])
    where = [f"x.t = {_PK}"]
    where += [f"x.{c.name} = {_bound(c, 4 + n)}" for n, c in enumerate(kind.key[:depth])]
    next_one = 4 + depth
    if after:
        names = ", ".join(f"x.{c.name}" for c in order)
        edge = ", ".join(_bound(c, next_one + n) for n, c in enumerate(order))
        where.append(f"({names}) {'<' if reverse else '>'} ({edge})")
        next_one += len(order)
    text = f"SELECT {_output(_columns(kind, bodies=bodies))} FROM {table(kind)} AS x"
    text += f" WHERE {' AND '.join(where)}"
    if order:
        text += " ORDER BY " + ", ".join(f"x.{c.name}{' DESC' if reverse else ''}" for c in order)
    return f"{text} LIMIT CAST(?{next_one} AS INTEGER)" if limit else text


def find(effect: Find) -> Statement:
    """Return the statement of a find."""
    if effect.index == "threads":
        text, parameters = sql.select_threads(effect)
        return text, tuple(str(p) for p in parameters)
    if effect.index == "listed":
        text, parameters = sql.select_listed(effect)
        return text, tuple(str(p) for p in parameters)
    if effect.index == "items":
        return _items(effect)
    kind = INDEXED[effect.index]
    column = next(c for c in kind.fields if c.name == kind.index)
    sign, value = ("=", effect.value) if effect.index == "runs" else ("<=", str(effect.until))
    text = (
        f"SELECT p.tenant AS p0, p.thread AS p1, p.space AS p2, {_output((*kind.key, *kind.fields))}"
        f" FROM {table(kind)} AS x JOIN {PREFIX}thread AS p ON p.pk = x.t"
        f" WHERE x.{kind.index} {sign} {_bound(column, 1)} AND (?2 IS NULL OR p.tenant = ?2)"
        f" AND p.space <> '{DROPPED}'"
        f"{'' if effect.since is None else f' AND x.{kind.index} >= CAST(?4 AS INTEGER)'}"
        f" ORDER BY x.{kind.index} LIMIT CAST(?3 AS INTEGER)"
    )
    since = () if effect.since is None else (str(effect.since),)
    return text, (value, effect.tenant, str(effect.limit), *since)


def _items(effect: Find) -> Statement:
    """Return the statement of a find of items, as ``compile.select_items``."""
    where = ["p.space = ?1", "p.tenant = ?2"]
    parameters = [effect.space, effect.tenant or ""]

    def bound(value: str) -> str:
        parameters.append(value)
        return f"?{len(parameters)}"

    if effect.prefix:
        where.append(f"p.thread >= {bound(effect.prefix)} AND p.thread < {bound(effect.prefix_end)}")
    where.append(f"(x.expires_at IS NULL OR x.expires_at > CAST({bound(str(effect.until))} AS INTEGER))")
    where += [
        f"({' OR '.join(f'instr(x.body, unhex({bound(part.hex())})) > 0' for part in any_of)})"
        for any_of in effect.holding
    ]
    for each in effect.bounds:
        is_text = isinstance(each.limit, str)
        limit = bound(str(each.limit))
        where.append(sql.keeps(each, "x.body", limit if is_text else f"CAST({limit} AS REAL)"))
    if effect.last is not None:
        time = f"CAST({bound(str(effect.last.updated_at))} AS INTEGER)"
        thread, key = bound(effect.last.thread), bound(effect.last.key)
        where.append(
            f"(x.updated_at < {time} OR x.updated_at = {time} AND (p.thread, x.key) > ({thread}, {key}))"
        )
    limit, skip = bound(str(effect.limit)), bound(str(effect.skip))
    text = (
        "SELECT p.tenant AS p0, p.thread AS p1, p.space AS p2,"
        f" {_output(_columns(ITEM, bodies=True))} FROM {PREFIX}thread AS p"
        f" JOIN {table(ITEM)} AS x ON x.t = p.pk WHERE {' AND '.join(where)}"
        " ORDER BY x.updated_at DESC, p.thread, x.key"
        f" LIMIT CAST({limit} AS INTEGER) OFFSET CAST({skip} AS INTEGER)"
    )
    return text, tuple(parameters)


def found(effect: Find, rows: Rows) -> tuple[IndexHit, ...]:
    """Return the answer of a find."""
    if effect.index in ("threads", "listed"):
        return tuple(map(sql.found, rows))
    if effect.index == "items":
        columns = _columns(ITEM, bodies=True)
        at = [Partition(*row[: len(Partition._fields)]) for row in rows]
        return tuple(
            IndexHit(partition, sql.record(ITEM, _values(columns, row[len(partition) :]), partition))
            for partition, row in zip(at, rows, strict=True)
        )
    kind = INDEXED[effect.index]
    columns = (*kind.key, *kind.fields)
    own = len(Partition._fields)
    return tuple(
        IndexHit(
            Partition(*row[:own]),
            sql.hint(kind, _values(columns, row[own:])),
        )
        for row in rows
    )


def now() -> Statement:
    """Return the statement that reads the database's clock in microseconds."""
    return f"SELECT CAST(({sql.NOW}) AS TEXT) AS c0", ()


# Writing


def receipt(partition: Partition, ops: Sequence[Op], id_: str, n: int) -> Statement:
    """Return the statement that evaluates the expectations of a commit and writes the verdict into its
    receipt: the position of the first that failed, or NULL. A receipt's number only rises: a second copy of
    the same batch is refused as a whole.

    Args:
        partition: The partition of the commit.
        ops: Its operations.
        id_: The receipt's id.
        n: The receipt's number.
    """
    parameters: list[str | None] = [*_place(partition), id_, str(n)]
    failing: list[str] = []
    groups: dict[tuple[Kind, tuple[str, ...] | None, bool], list[list[Any]]] = {}
    for place, op in enumerate(ops):
        for form, versions, values in _demands(op):
            row = [place, *_row(zip(op.key, op.kind.key, strict=True)), *values]
            groups.setdefault((op.kind, form, versions), []).append(row)
    for (kind, form, versions), rows in groups.items():
        for packed, _ in _packed(kind, rows):
            parameters.append(packed)
            failing.append(_first_failing(kind, form, versions, len(parameters)))
    verdict = "NULL"
    if failing:
        firsts = ", ".join(f"coalesce({f}, {_NONE_FAILED})" for f in failing)
        verdict = f"nullif(min({firsts}, {_NONE_FAILED}), {_NONE_FAILED})"
    return (
        f"INSERT INTO {RECEIPT} (id, n, at, refused) VALUES (?4, CAST(?5 AS INTEGER), unixepoch(), {verdict})"
        " ON CONFLICT (id) DO UPDATE SET n = CASE WHEN excluded.n > n THEN excluded.n END,"
        " refused = excluded.refused"
    ), tuple(parameters)


def receipts(ids: Sequence[str]) -> Statement:
    """Return the statement that reads receipts: id, number, and the position of the refusal."""
    return (
        f"SELECT id AS c0, CAST(n AS TEXT) AS c1, refused AS c2 FROM {RECEIPT}"
        " WHERE id IN (SELECT value FROM json_each(?1))"
    ), (json.dumps(list(ids)),)


def forget_receipts() -> Statement:
    """Return the statement that removes receipts that no client can ask for any more."""
    return f"DELETE FROM {RECEIPT} WHERE at < unixepoch() - {RECEIPT_DAYS * 86400}", ()


def write(partition: Partition, ops: Sequence[Op], id_: str | None) -> list[Statement]:
    """Return the statements of a commit whose receipt holds, or of a stage.

    Args:
        partition: The partition.
        ops: The operations.
        id_: The receipt's id, ``None`` for a stage, which has none.
    """
    out: list[Statement] = []
    place = _place(partition) if id_ is None else (*_place(partition), id_)
    puts = [op for op in ops if isinstance(op, Put)]
    if puts:
        out.append((_new_thread(guarded=id_ is not None), place))
    for kind, group in _by_kind(puts):
        for packed, _ in _packed(kind, [_put_row(op, partition) for op in group if isinstance(op, Put)]):
            out.append((_put(kind, id_ is not None), (*place, packed)))
    for kind, group in _by_kind([op for op in ops if isinstance(op, Delete)]):
        rows = [_row(zip(op.key, kind.key, strict=True)) for op in group]
        for packed, _ in _packed(kind, rows):
            out.append((_delete(kind), (*place, packed)))
    return out


def drop(partition: Partition, id_: str) -> Statement:
    """Return the statement that hides a partition from all readers at once."""
    return (
        f"UPDATE {PREFIX}thread SET space = '{DROPPED}', tenant = '', thread = CAST(pk AS TEXT)"
        f" WHERE space = ?1 AND tenant = ?2 AND thread = ?3 AND {_HELD}"
    ), (*_place(partition), id_)


def sweep() -> list[Statement]:
    """Return the statements that remove a page of rows of a dropped partition; the last one reads 1 if there
    are more."""
    pk = f"(SELECT pk FROM {PREFIX}thread WHERE space = '{DROPPED}' ORDER BY tenant, thread LIMIT 1)"
    out: list[Statement] = []
    for kind in KINDS:
        name = table(kind)
        key = ", ".join(["t", *(c.name for c in kind.key)]) if kind.compact else "rowid"
        left = f"({key})" if kind.compact and kind.key else key
        page = f"SELECT {key} FROM {name} WHERE t = {pk} LIMIT {DROP_ROWS}"
        out.append((f"DELETE FROM {name} WHERE {left} IN ({page})", ()))
    empty = " AND ".join(f"NOT EXISTS (SELECT 1 FROM {table(kind)} WHERE t = {pk})" for kind in KINDS)
    out.append((f"DELETE FROM {PREFIX}thread WHERE pk = {pk} AND {empty}", ()))
    out.append((f"SELECT EXISTS (SELECT 1 FROM {PREFIX}thread WHERE space = '{DROPPED}') AS c0", ()))
    return out


def _demands(op: Op) -> Iterator[tuple[tuple[str, ...] | None, bool, list[Any]]]:
    """Yield the demands of an operation on its record: ``None`` for absence, else the fields that have to be
    equal; True if the version is given as well; and the given values."""
    if isinstance(op, Delete) and op.unchanged:
        named = [c for c in op.kind.fields if c.name in op.unchanged]
        yield tuple(c.name for c in named), False, _row((op.unchanged[c.name], c) for c in named)
    if op.expect is Expect.ABSENT:
        yield None, False, []
    elif op.expect is Expect.PRESENT:
        yield (), False, []
    elif isinstance(op.expect, int):
        yield (), True, [_integer(op.expect)]


@lru_cache(maxsize=256)
def _first_failing(kind: Kind, form: tuple[str, ...] | None, versions: bool, parameter: int) -> str:
    where = [f"x.t = {_PK}", *(f"x.{c.name} = {_given(c, n)}" for n, c in enumerate(kind.key, 1))]
    given = 1 + len(kind.key)
    for name in form or ():
        column = next(c for c in kind.fields if c.name == name)
        where.append(f"x.{name} IS {_given(column, given)}")
        given += 1
    if versions:
        where.append(f"{'x.version' if kind.versioned else '0'} = r.value ->> {given}")
    there = f"EXISTS (SELECT 1 FROM {table(kind)} AS x WHERE {' AND '.join(where)})"
    fails = there if form is None else f"NOT {there}"
    return f"(SELECT min(r.value ->> 0) FROM json_each(?{parameter}) AS r WHERE {fails})"


@lru_cache(maxsize=2)
def _new_thread(*, guarded: bool) -> str:
    held = f"{_HELD} AND " if guarded else ""
    return f"INSERT INTO {PREFIX}thread (space, tenant, thread) SELECT ?1, ?2, ?3 WHERE {held}{_PK} IS NULL"


@lru_cache(maxsize=64)
def _put(kind: Kind, guarded: bool) -> str:
    columns = _columns(kind)
    names = ", ".join(["t", *(c.name for c in columns)])
    given = ", ".join(["p.pk", *(_given(c, n) for n, c in enumerate(columns))])
    held = f" AND {_HELD}" if guarded else ""
    return (
        f"INSERT INTO {table(kind)} ({names}) SELECT {given} FROM {PREFIX}thread AS p"
        f" CROSS JOIN json_each(?{5 if guarded else 4}) AS r"
        f" WHERE p.space = ?1 AND p.tenant = ?2 AND p.thread = ?3{held}"
        f"{sql.upsert(kind).removeprefix(sql.insert(kind))}"
    )


@lru_cache(maxsize=64)
def _delete(kind: Kind) -> str:
    where = [f"t = {_PK}", _HELD]
    if kind.key:
        names = ", ".join(c.name for c in kind.key)
        given = ", ".join(_given(c, n) for n, c in enumerate(kind.key))
        left = f"({names})" if len(kind.key) > 1 else names
        where.append(f"{left} IN (SELECT {given} FROM json_each(?5) AS r)")
    else:
        where.append("json_array_length(?5) > 0")
    return f"DELETE FROM {table(kind)} WHERE {' AND '.join(where)}"


def _put_row(op: Put, partition: Partition) -> list[Any]:
    kind = op.kind
    values: list[Any] = [*op.key, *(op.fields[c.name] for c in kind.fields)]
    if kind.versioned:
        values.append(op.version)
    if kind.body:
        values.append(op.body)
    row = _row(zip(values, _columns(kind), strict=False))
    return [*row, sql.checksum(op, partition)]


def _by_kind(ops: Sequence[Put | Delete]) -> Iterator[tuple[Kind, list[Put | Delete]]]:
    def name(op: Put | Delete) -> str:
        return op.kind.name

    for _, group in groupby(sorted(ops, key=name), key=name):
        members = list(group)
        yield members[0].kind, members


# Columns and values


@lru_cache(maxsize=64)
def _columns(kind: Kind, *, bodies: bool = True) -> tuple[Column, ...]:
    """Return the columns of a kind in the order of ``Kind.columns``, then the checksum."""
    out = [*kind.key, *kind.fields]
    if kind.versioned:
        out.append(Column("version", "integer"))
    if kind.body and bodies:
        out.append(Column("body", "bytes"))
    out.append(Column(checksums.NAME, "integer", nullable=True))
    return tuple(out)


def _output(columns: Iterable[Column], start: int = 0) -> str:
    """Return the columns in forms that JSON can carry, with unique names: equal ones would be merged."""
    forms = {"text": "x.{}", "integer": "CAST(x.{} AS TEXT)", "bytes": "hex(x.{})"}
    names = [f"{forms[c.kind].format(c.name)} AS c{n}" for n, c in enumerate(columns, start)]
    return ", ".join(names) or "1 AS c0"


def _values(columns: Sequence[Column], row: Sequence[Any]) -> tuple[Any, ...]:
    """Return a row of ``_output`` as Python values."""
    readers: dict[str, Callable[[Any], Any]] = {"text": str, "integer": int, "bytes": bytes.fromhex}
    return tuple(
        None if value is None else readers[column.kind](value)
        for column, value in zip(columns, row, strict=False)
    )


def _given(column: Column, place: int) -> str:
    """Return the expression for a value of the JSON row ``r``."""
    return f"unhex(r.value ->> {place})" if column.kind == "bytes" else f"r.value ->> {place}"


def _bound(column: Column, parameter: int) -> str:
    forms = {"text": "?{}", "integer": "CAST(?{} AS INTEGER)", "bytes": "unhex(?{})"}
    return forms[column.kind].format(parameter)


def _place(partition: Partition) -> tuple[str, str, str]:
    return partition.space, partition.tenant, partition.thread


def _row(values: Iterable[tuple[Any, Column]]) -> list[Any]:
    """Return values in forms that JSON can carry."""
    return [
        value.hex() if isinstance(value, bytes) else _integer(value) if isinstance(value, int) else value
        for value, _ in values
    ]


def _integer(value: int) -> int:
    if not -(1 << 63) <= value < 1 << 63:
        raise TooLarge(f"the number {value} has more than 64 bits, which D1 cannot hold; write a smaller one")
    return value


def _packed(kind: Kind, rows: Sequence[Sequence[Any]]) -> Iterator[tuple[str, int]]:
    """Yield JSON arrays of the rows, each as large as a parameter may be, with the number of its rows."""
    texts: list[str] = []
    held = 0
    for row in rows:
        text = json.dumps(row, ensure_ascii=False, separators=(",", ":"))
        try:
            size = len(text.encode()) + 1
        except UnicodeEncodeError as error:
            raise Unserialisable(
                f"a {kind.name} has text that is not well-formed Unicode (a lone surrogate); "
                "D1 cannot hold it"
            ) from error
        if size > VALUE_BYTES:
            raise TooLarge(
                f"one {kind.name} takes {size // 2:,} bytes; D1 takes at most {VALUE_BYTES // 2:,} a "
                "record; write a smaller value"
            )
        if texts and held + size > VALUE_BYTES:
            yield f"[{','.join(texts)}]", len(texts)
            texts, held = [], 0
        texts.append(text)
        held += size
    if texts:
        yield f"[{','.join(texts)}]", len(texts)


def weight(statements: Iterable[Statement]) -> int:
    """Return roughly the bytes that statements take in a request; raise ``Unserialisable`` for text that
    cannot be sent."""
    try:
        return sum(
            len(text) + sum(len(p.encode()) for p in given if p is not None) for text, given in statements
        )
    except UnicodeEncodeError as error:
        raise Unserialisable(
            "a name or id has text that is not well-formed Unicode (a lone surrogate); D1 cannot hold it"
        ) from error
