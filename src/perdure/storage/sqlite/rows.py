"""Reads rows of a SQLite file: the catalogue, records for expectations, and the items of requests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeGuard, cast

import apsw

from perdure.errors import Corrupt
from perdure.model.ops import Delete, Expect, Fetch, Find, Get, IndexHit, Op, Put, Range
from perdure.model.records import ITEM, Key, Kind, Partition, Record
from perdure.storage.sql import checksums
from perdure.storage.sql import compile as sql

INLINE_ITEMS = 16


class CatalogueRow(NamedTuple):
    """A row of the catalogue; values that are not kept are ``None``."""

    pk: int
    total: int | None
    head: int | None
    commits: int | None


def look_up(connection: apsw.Connection, partition: Partition) -> CatalogueRow | None:
    """Return a partition's row of the catalogue; raise ``Corrupt`` if the catalogue contradicts itself about
    it."""
    row = connection.execute(sql.THREAD_PK, partition).fetchone()
    if row is None:
        if connection.execute(sql.THREAD_TWIN, (checksums.of_partition(partition),)).fetchone() is None:
            return None
        raise checksums.misled(partition, "the catalogue has it and does not find it by its name")
    pk, found, *kept = row
    if any(not isinstance(value, int | None) for value in kept):
        raise checksums.misled(partition, "its row of the catalogue has text for numbers")
    if found is not None and found != checksums.of_partition(partition):
        raise checksums.misled(partition, "the catalogue finds another one by its name")
    return CatalogueRow(cast(int, pk), *cast("list[int | None]", kept))


def new_thread(connection: apsw.Connection, partition: Partition) -> CatalogueRow:
    connection.execute(sql.THREAD_NEW, (*partition, checksums.of_partition(partition)))
    return CatalogueRow(connection.last_insert_rowid(), 0, 0, 0)


def checksum(connection: apsw.Connection, t: int, op: Op) -> int | None:
    """Return the checksum of the record that an operation overwrites; 0 for none.

    Args:
        connection: The connection.
        t: The partition's number.
        op: The operation.
    """
    row = connection.execute(sql.select_version(op.kind), (t, *op.key)).fetchone()
    return 0 if row is None else row[1]


def is_new(op: Op) -> bool:
    """Return True if an operation writes a record that must not exist yet."""
    return isinstance(op, Put) and op.expect is Expect.ABSENT


def holds(connection: apsw.Connection, thread: CatalogueRow | None, op: Op) -> tuple[bool, int | None]:
    """Evaluate an operation's expectation.

    Args:
        connection: The connection.
        thread: The partition's row of the catalogue, ``None`` if there is none.
        op: The operation.

    Returns:
        True if the expectation holds, and the checksum of the record, 0 for none, ``None`` if it is unknown.
    """
    if thread is None:
        return op.expect in (Expect.ANY, Expect.ABSENT) and not getattr(op, "unchanged", None), 0
    if isinstance(op, Delete) and op.unchanged:
        names = tuple(op.unchanged)
        row = connection.execute(sql.select_fields(op.kind, names), (thread.pk, *op.key)).fetchone()
        if row is None or row != tuple(op.unchanged.values()):
            return False, None
    if op.expect is Expect.ANY and not isinstance(op, Put):
        return True, None
    row = connection.execute(sql.select_version(op.kind), (thread.pk, *op.key)).fetchone()
    if row is None:
        return op.expect in (Expect.ANY, Expect.ABSENT), 0
    return op.expect in (Expect.ANY, Expect.PRESENT, row[0]), row[1]


def fetch(connection: apsw.Connection, effect: Fetch) -> tuple[tuple[Record, ...], ...]:
    partition = effect.partition
    thread = look_up(connection, partition)
    if thread is None:
        return tuple(() for _ in effect.items)
    t, required = thread.pk, thread.total is not None
    if len(effect.items) > INLINE_ITEMS and len({i.kind.name for i in effect.items}) == 1:
        gets = [i.key for i in effect.items if isinstance(i, Get)]
        headers = [i.prefix for i in effect.items if _is_header(i)]
        for keys, bodies in ((gets, True), (headers, False)):
            if len(keys) == len(effect.items):
                return _fetch_many(connection, thread, partition, effect.items[0].kind, keys, bodies)
    out: list[tuple[Record, ...]] = []
    for item in effect.items:
        if isinstance(item, Get):
            rows = connection.execute(sql.select_one(item.kind), (t, *item.key)).fetchall()
            if (item.kind, item.key) == checksums.ROOT_HEAD and thread.head is not None:
                found = rows[0][-1] if rows else 0
                if found != thread.head:
                    raise checksums.misled(partition, "its head is not the one that was written last")
            out.append(tuple(sql.record(item.kind, row, partition, required=required) for row in rows))
        else:
            found_rows = connection.execute(*sql.select_range(item, t))
            out.append(
                tuple(
                    sql.record(
                        item.kind, row, partition, bodies=item.bodies, verify=item.verify, required=required
                    )
                    for row in found_rows
                )
            )
    return tuple(out)


def _is_header(item: Get | Range) -> TypeGuard[Range]:
    """Return True if an item is a read of one record without its body."""
    return (
        isinstance(item, Range)
        and len(item.prefix) == len(item.kind.key)
        and not item.bodies
        and item.verify
        and item.after is None
        and item.limit is None
    )


def _fetch_many(
    connection: apsw.Connection,
    thread: CatalogueRow,
    partition: Partition,
    kind: Kind,
    keys: Sequence[Key],
    bodies: bool,
) -> tuple[tuple[Record, ...], ...]:
    rows = connection.executemany(sql.select_one(kind, bodies), [(thread.pk, *key) for key in keys])
    found: dict[Key, Record] = {}
    for row in rows:
        record = sql.record(kind, row, partition, bodies=bodies, required=thread.total is not None)
        found[record.key] = record
    return tuple((found[key],) if key in found else () for key in keys)


def find(connection: apsw.Connection, effect: Find) -> Iterable[IndexHit]:
    if effect.index == "threads":
        page = list(map(_listed, connection.execute(*sql.select_threads(effect))))
        _demand_order(effect.after, page)
        return page
    if effect.index == "listed":
        return map(_listed, connection.execute(*sql.select_listed(effect)))
    if effect.index == "items":
        return map(_item, connection.execute(*sql.select_items(effect)))
    kind, statement = sql.select_indexed(effect)
    own = len(Partition._fields)
    return [
        IndexHit(Partition(*row[:own]), sql.hint(kind, row[own:])) for row in connection.execute(*statement)
    ]


def _item(row: tuple[Any, ...]) -> IndexHit:
    required, *own = row[: 1 + len(Partition._fields)]
    partition = _named(own)
    return IndexHit(partition, sql.record(ITEM, row[1 + len(own) :], partition, required=bool(required)))


def _listed(row: tuple[Any, ...]) -> IndexHit:
    _named(row[: len(Partition._fields)])
    try:
        return sql.found(row)
    except (TypeError, ValueError) as error:
        raise Corrupt(f"the listing of threads is damaged; {checksums.ADVICE}") from error


def _named(names: Sequence[Any]) -> Partition:
    """Return the partition of a row of the catalogue; raise ``Corrupt`` if its names are no text."""
    if not all(isinstance(name, str) for name in names):
        raise Corrupt(f"the catalogue of threads has a name that is no text; {checksums.ADVICE}")
    return Partition(*names)


def _demand_order(after: Partition | None, page: Sequence[IndexHit]) -> None:
    """Raise ``Corrupt`` unless a page of the catalogue continues behind the one before: with a damaged index,
    reading page by page would never end."""
    last = None if after is None else (after.tenant, after.thread)
    for each in page:
        place = (each.partition.tenant, each.partition.thread)
        if last is not None and place <= last:
            raise Corrupt(f"the catalogue of threads is not in order; {checksums.ADVICE}")
        last = place
