"""Checks a SQLite file: its pages and indexes, its catalogue, and that records are the latest ones.

A record with a valid checksum may still be an older version of itself, if a page was overwritten with an
older state of itself; a missing record has no checksum at all. The sum of a partition's checksums shows both.
"""

from __future__ import annotations

import apsw

from perdure.errors import Corrupt
from perdure.model.records import KINDS, Partition
from perdure.storage.port import NOT_LATEST
from perdure.storage.sql import checksums, schema
from perdure.storage.sql import compile as sql
from perdure.storage.sqlite.rows import CatalogueRow, look_up, read_transaction

_SHOWN = 20


def examine_file(connection: apsw.Connection) -> list[str]:
    """Return the damage found in the file as a whole."""
    damage: list[str] = []
    try:
        lines = [str(row[0]) for row in connection.execute(f"PRAGMA integrity_check({_SHOWN})")]
        damage += [f"SQLite's integrity check: {line}" for line in lines if line != "ok"]
        catalogue = f"{schema.PREFIX}thread"
        names = f"SELECT tenant, thread, space, checksum FROM {catalogue} NOT INDEXED"
        damaged = sum(
            checksums.of_partition(Partition(*row[:3])) != row[3] for row in connection.execute(names)
        )
        if damaged:
            damage.append(f"{damaged} rows of the catalogue are not what was written")
        for kind in KINDS:
            count_lost = (
                f"SELECT count(*) FROM {schema.table(kind)} WHERE t NOT IN (SELECT pk FROM {catalogue})"
            )
            ((count,),) = connection.execute(count_lost).fetchall()
            if count:
                damage.append(f"{count} records of kind {kind.name} belong to nothing that the catalogue has")
    except (apsw.Error, UnicodeDecodeError) as error:
        damage.append(f"SQLite cannot read the whole file: {error}")
    return damage


def examine_partition(connection: apsw.Connection, partition: Partition) -> list[str]:
    """Return the damage found in the records of a partition as a whole."""
    with read_transaction(connection):
        thread = look_up(connection, partition)
        if thread is None:
            return []
        total, head, damage = _survey(connection, thread, partition)
    if (thread.checksum_sum, thread.head_checksum) != (total, head):
        damage.append(NOT_LATEST)
    return damage


def settle_partition(connection: apsw.Connection, partition: Partition) -> bool:
    """Set the sums that the catalogue has for a partition to those of its stored records; return True if that
    changed them. Nothing is changed if a record is damaged. Called within a transaction that writes."""
    thread = look_up(connection, partition)
    if thread is None:
        return False
    total, head, damaged = _survey(connection, thread, partition)
    if damaged or (thread.checksum_sum, thread.head_checksum) == (total, head):
        return False
    connection.execute(sql.THREAD_SUM, (total, head, thread.commits, thread.pk))
    return True


def _survey(
    connection: apsw.Connection, thread: CatalogueRow, partition: Partition
) -> tuple[int, int, list[str]]:
    """Return the sum of the checksums of a partition's records, the checksum of its root head, 0 without one,
    and the damage found in single records."""
    damage: list[str] = []
    total = head = 0
    for kind in KINDS:
        if kind.grows is not None:
            continue
        for row in connection.execute(sql.select_all(kind), (thread.pk,)):
            record_checksum = checksums.read(row[-1])
            total = checksums.add(total, record_checksum)
            if (kind, row[: len(kind.key)]) == checksums.ROOT_HEAD:
                head = record_checksum
            try:
                sql.record(kind, row, partition)
            except Corrupt as error:
                damage.append(str(error))
    return total, head, damage
