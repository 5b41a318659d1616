"""Evaluates requests in this process, for drivers whose database has no language for it: whether an
expectation holds, the records of a range, and a page of partitions.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable

from perdure.model.ops import Expect, Expectation, FindThreads, Get, IndexHit, Op, Range
from perdure.model.records import RESERVED, Key, Partition, Record


def get_prefix(item: Get | Range) -> Key:
    """Return the prefix of the keys of the wanted records; of a ``Get``, the key."""
    if isinstance(item, Get):
        return item.key
    return item.prefix


def meets(version: int | None, expect: Expectation) -> bool:
    """Return True if a record with a version, ``None`` for no record, is as expected."""
    if expect is Expect.ABSENT or version is None:
        return version is None and expect in (Expect.ABSENT, Expect.ANY)
    return expect in (Expect.ANY, Expect.PRESENT, version)


def holds(op: Op, record: Record | None) -> bool:
    """Return True if an operation's expectation holds for the stored record."""
    wanted = getattr(op, "unchanged", {})
    if wanted and (record is None or any(record.fields[name] != value for name, value in wanted.items())):
        return False
    return meets(None if record is None else record.version, op.expect)


def select(item: Get | Range, keys: Collection[Key], read: Callable[[Key], Record]) -> list[Record]:
    """Return the records that an item of a fetch asks for.

    Args:
        item: The item.
        keys: The keys of the partition's records of the item's kind.
        read: Returns the record of a key. It is called for the keys of the returned records only, or, if a
            field orders them, for all keys of the prefix.
    """
    if isinstance(item, Get):
        return [read(item.key)] if item.key in keys else []
    matching = sorted(key for key in keys if key[: len(item.prefix)] == item.prefix)
    if item.by is not None:
        records = order_by_field(item, map(read, matching))
    else:
        after = item.after
        if after is not None:
            matching = [key for key in matching if (key < after if item.reverse else key > after)]
        if item.reverse:
            matching.reverse()
        records = list(map(read, matching[: item.limit]))
    return records if item.bodies else [record._replace(body=b"") for record in records]


def order_by_field(item: Range, records: Iterable[Record]) -> list[Record]:
    """Return the records that a range by a field asks for, in its order."""

    def get_value(record: Record) -> int:
        number: int = record.fields[str(item.by)]
        return number

    after = item.after
    if after is not None:
        records = [r for r in records if (get_value(r) < after if item.reverse else get_value(r) > after)]
    return sorted(records, key=get_value, reverse=item.reverse)[: item.limit]


def select_threads(effect: FindThreads, partitions: Iterable[Partition]) -> tuple[IndexHit, ...]:
    """Return the partitions that a search asks for. ``partitions`` are those that hold a record."""
    found = sorted(
        partition
        for partition in partitions
        if partition != RESERVED
        and partition.space == effect.space
        and effect.tenant in (None, partition.tenant)
        and partition.thread.startswith(effect.prefix)
    )
    start = 0 if effect.after is None else bisect_right(found, effect.after)
    return tuple(map(IndexHit, found[start : start + effect.limit]))
