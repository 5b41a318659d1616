"""Reads rows of a SQLite file: the catalogue, records for expectations, and the items of requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from itertools import chain
from typing import Any, NamedTuple, TypeGuard, TypeVar

import apsw

from perdure.errors import Corrupt
from perdure.model.ops import (
    Delete,
    Expect,
    Fetch,
    Find,
    FindItems,
    FindListed,
    FindRecords,
    FindThreads,
    Get,
    IndexHit,
    Op,
    Put,
    Range,
)
from perdure.model.records import ITEM, KINDS, Key, Kind, Partition, Record
from perdure.storage.evaluation import meets
from perdure.storage.sql import checksums
from perdure.storage.sql import compile as sql

_SINGLE_READS_MOST = 16

Row = tuple[Any, ...]
R = TypeVar("R")
_BLOCKS = (64, 16, 4, 2, 1)


class CatalogueRow(NamedTuple):
    """A partition's row of the catalogue: its number, the sum of its records' checksums, the checksum of its
    root head, and the count of its commits."""

    pk: int
    checksum_sum: int
    head_checksum: int
    commits: int


def look_up(connection: apsw.Connection, partition: Partition) -> CatalogueRow | None:
    """Return a partition's row of the catalogue; raise ``Corrupt`` if the catalogue contradicts itself about
    it."""
    row = connection.execute(sql.THREAD_PK, partition).fetchone()
    if row is None:
        if connection.execute(sql.THREAD_TWIN, (checksums.of_partition(partition),)).fetchone() is None:
            return None
        raise checksums.contradiction_error(
            partition, "the catalogue has it and does not find it by its name"
        )
    pk, stored_checksum, checksum_sum, head_checksum, commits = row
    if not (isinstance(checksum_sum, int) and isinstance(head_checksum, int) and isinstance(commits, int)):
        raise checksums.contradiction_error(partition, "its row of the catalogue lacks numbers")
    if stored_checksum != checksums.of_partition(partition):
        raise checksums.contradiction_error(partition, "the catalogue finds another one by its name")
    return CatalogueRow(pk, checksum_sum, head_checksum, commits)


def insert_thread(connection: apsw.Connection, partition: Partition) -> CatalogueRow:
    connection.execute(sql.THREAD_NEW, (*partition, checksums.of_partition(partition)))
    return CatalogueRow(connection.last_insert_rowid(), 0, 0, 0)


ExistingRecord = tuple[int, int, Row]
"""A record that exists: its version, its checksum, and the row that was read. The row has all columns but the
body if the commit keeps or compares fields of the record's kind. These are plain tuples, as there may be
thousands at a time and the garbage collector visits such tuples only once."""

Existing = Mapping[tuple[Kind, Key], ExistingRecord]


def read_existing(connection: apsw.Connection, t: int, ops: Sequence[Op], *, optimistic: bool) -> Existing:
    """Read the versions and checksums of records that a commit expects, or overwrites.

    Args:
        connection: The connection.
        t: The partition's number.
        ops: The operations of the commit.
        optimistic: Leave out the records that must not exist: the table's constraint checks that.
    """
    kinds_with_fields = {
        op.kind for op in ops if (op.keep if isinstance(op, Put) else getattr(op, "unchanged", None))
    }
    keys: dict[Kind, list[Key]] = {}
    for op in ops:
        if isinstance(op, Put) and op.expect is Expect.ABSENT:
            is_read = not optimistic
        else:
            # A put without an expectation overwrites, so the old checksum is needed; but records of kinds
            # that grow have no part in the sum.
            is_read_anyway = (
                op.kind.grows is None if isinstance(op, Put) else bool(getattr(op, "unchanged", None))
            )
            is_read = op.expect is not Expect.ANY or is_read_anyway
        if is_read:
            keys.setdefault(op.kind, []).append(op.key)
    existing: dict[tuple[Kind, Key], ExistingRecord] = {}
    for kind, wanted in keys.items():
        statement: Callable[[Kind, int], str] = sql.select_versions
        if kind in kinds_with_fields:
            statement = partial(sql.select_some, bodies=False)
        for row in _execute_by_keys(connection, statement, kind, t, wanted):
            existing[kind, row[: len(kind.key)]] = row[-2], row[-1], row
    return existing


def keep_field(fields: list[Any], put: Put, before: ExistingRecord, partition: Partition) -> None:
    """Replace the field that a put keeps, if any, by that of the stored record, unless this has expired.

    Args:
        fields: The fields of the put, in the order of their declaration.
        put: The put.
        before: The record that it overwrites.
        partition: The partition.

    Raises:
        Corrupt: The record of which a field is to be kept is damaged.
    """
    if put.keep is None:
        return
    stored_fields = sql.header(put.kind, before[2], partition)
    position, expiry_position = _find_positions(put.kind, put.keep)
    expires_at = None if expiry_position is None else stored_fields[expiry_position]
    if expires_at is None or expires_at > fields[position]:
        fields[position] = stored_fields[position]


@lru_cache(maxsize=64)
def _find_positions(kind: Kind, field: str) -> tuple[int, int | None]:
    """Return the positions, among the fields of a kind, of one field and of the time of expiry, if any."""
    names = [column.name for column in kind.fields]
    return names.index(field), names.index(str(kind.index)) if kind.expires else None


def has_records(connection: apsw.Connection, pk: int) -> bool:
    """Return True if the partition of a number has records of any kind."""
    return any(connection.execute(sql.first(kind), (pk,)).fetchone() is not None for kind in KINDS)


def holds(op: Op, existing: Existing) -> bool:
    """Return True if an operation's expectation holds.

    Args:
        op: The operation.
        existing: The result of ``read_existing`` for the commit; empty for a partition that is not there.
    """
    existing_record = existing.get((op.kind, op.key))
    if (
        isinstance(op, Delete)
        and op.unchanged
        and (existing_record is None or not _is_unchanged(op, existing_record[2]))
    ):
        return False
    return meets(None if existing_record is None else existing_record[0], op.expect)


def _is_unchanged(op: Delete, row: Row) -> bool:
    start = len(op.kind.key)
    return all(
        row[start + _find_positions(op.kind, name)[0]] == value for name, value in op.unchanged.items()
    )


def write(connection: apsw.Connection, kind: Kind, rows: Sequence[tuple[Any, ...]], *, new: bool) -> None:
    """Write records of one kind.

    Args:
        connection: The connection.
        kind: The kind.
        rows: The values of each record, of ``compile.row``.
        new: The records must not exist yet.
    """
    statement = sql.insert if new else sql.upsert
    for block in _divide(rows):
        connection.execute(statement(kind, len(block)), tuple(chain.from_iterable(block)))


def delete(connection: apsw.Connection, kind: Kind, t: int, keys: Sequence[Key]) -> list[Any]:
    """Remove records of one kind, and return the checksums of those that existed."""
    return [checksum for (checksum,) in _execute_by_keys(connection, sql.delete, kind, t, keys)]


def _execute_by_keys(
    connection: apsw.Connection,
    statement: Callable[[Kind, int], str],
    kind: Kind,
    t: int,
    keys: Sequence[Key],
) -> list[tuple[Any, ...]]:
    """Return the rows of the records with these keys. ``statement`` returns the SQL for a number of keys."""
    out: list[tuple[Any, ...]] = []
    for block in _divide(keys):
        out += connection.execute(statement(kind, len(block)), (t, *chain.from_iterable(block))).fetchall()
    return out


def _divide(rows: Sequence[R]) -> list[Sequence[R]]:
    """Divide rows into blocks, one for each statement. Blocks are of few sizes, so that few statements are
    prepared. There are as few blocks as possible: another OS thread may run between two statements, and
    waiting for busy threads costs more than a statement."""
    if len(rows) == 1:
        return [rows]
    blocks: list[Sequence[R]] = []
    start = 0
    for size in _BLOCKS:
        while len(rows) - start >= size:
            blocks.append(rows[start : start + size])
            start += size
    return blocks


def read(connection: apsw.Connection, effect: Fetch | Find) -> Any:
    """Answer a request that reads, in the state of one moment."""
    with read_transaction(connection):
        if isinstance(effect, Fetch):
            return fetch(connection, effect)
        return tuple(find(connection, effect))


@contextmanager
def read_transaction(connection: apsw.Connection) -> Iterator[None]:
    """Surround reads that see the state of one moment."""
    connection.execute("BEGIN")
    try:
        yield
    finally:
        # Some errors, such as those of the disk, have ended it.
        if connection.in_transaction:
            connection.execute("COMMIT")


def fetch(connection: apsw.Connection, effect: Fetch) -> tuple[tuple[Record, ...], ...]:
    partition = effect.partition
    thread = look_up(connection, partition)
    if thread is None:
        return tuple(() for _ in effect.items)
    t = thread.pk
    if len(effect.items) > _SINGLE_READS_MOST and len({i.kind.name for i in effect.items}) == 1:
        gets = [i.key for i in effect.items if isinstance(i, Get)]
        headers = [i.prefix for i in effect.items if _is_header(i)]
        for keys, bodies in ((gets, True), (headers, False)):
            if len(keys) == len(effect.items):
                return _fetch_many(connection, thread, partition, effect.items[0].kind, keys, bodies)
    out: list[tuple[Record, ...]] = []
    for item in effect.items:
        if isinstance(item, Get):
            rows = connection.execute(sql.select_some(item.kind, 1), (t, *item.key)).fetchall()
            if (item.kind, item.key) == checksums.ROOT_HEAD:
                head_checksum = rows[0][-1] if rows else 0
                if head_checksum != thread.head_checksum:
                    raise checksums.contradiction_error(
                        partition, "its head is not the one that was written last"
                    )
            out.append(tuple(sql.record(item.kind, row, partition) for row in rows))
        else:
            found_rows = connection.execute(*sql.select_range(item, t))
            out.append(
                tuple(
                    sql.record(item.kind, row, partition, bodies=item.bodies, verify=item.verify)
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
    statement = partial(sql.select_some, bodies=bodies)
    rows = _execute_by_keys(connection, statement, kind, thread.pk, keys)
    records: dict[Key, Record] = {}
    for row in rows:
        record = sql.record(kind, row, partition, bodies=bodies)
        records[record.key] = record
    return tuple((records[key],) if key in records else () for key in keys)


def find(connection: apsw.Connection, effect: Find) -> Iterable[IndexHit]:
    if isinstance(effect, FindThreads | FindListed):
        page = list(map(_read_listed, connection.execute(*sql.select_threads(effect))))
        if isinstance(effect, FindThreads):
            _demand_order(effect.after, page)
        return page
    if isinstance(effect, FindItems):
        return map(_read_item, connection.execute(*sql.select_items(effect)))
    if not isinstance(effect, FindRecords):
        raise TypeError(f"not a request to SQLite: {type(effect).__name__}")
    partition_size = len(Partition._fields)
    return [
        IndexHit(Partition(*row[:partition_size]), sql.hint(effect.kind, row[partition_size:]))
        for row in connection.execute(*sql.select_indexed(effect))
    ]


def _read_item(row: tuple[Any, ...]) -> IndexHit:
    partition_size = len(Partition._fields)
    partition = _read_partition(row[:partition_size])
    return IndexHit(partition, sql.record(ITEM, row[partition_size:], partition))


def _read_listed(row: tuple[Any, ...]) -> IndexHit:
    _read_partition(row[: len(Partition._fields)])
    try:
        return sql.to_hit(row)
    except (TypeError, ValueError) as error:
        raise Corrupt(f"the listing of threads is damaged; {checksums.ADVICE}") from error


def _read_partition(names: Sequence[Any]) -> Partition:
    """Return the partition of a row of the catalogue; raise ``Corrupt`` if its names are not text."""
    if not all(isinstance(name, str) for name in names):
        raise Corrupt(f"the catalogue of threads has a name that is not text; {checksums.ADVICE}")
    return Partition(*names)


def _demand_order(after: Partition | None, page: Sequence[IndexHit]) -> None:
    """Raise ``Corrupt`` unless a page of the catalogue is in order and follows the previous page: with a
    damaged index, reading page by page might never end."""
    previous = None if after is None else (after.tenant, after.thread)
    for hit in page:
        name = (hit.partition.tenant, hit.partition.thread)
        if previous is not None and name <= previous:
            raise Corrupt(f"the catalogue of threads is not in order; {checksums.ADVICE}")
        previous = name
