"""Reads records of a thread; an error about one of them names the thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from perdure.errors import Corrupt
from perdure.model.records import Partition, Record

T = TypeVar("T")


def read_one(partition: Partition, read: Callable[[Record], T], record: Record) -> T:
    """The value of a record. Raises ``Corrupt`` with the thread's name where ``read`` raises it."""
    try:
        return read(record)
    except Corrupt as error:
        raise Corrupt(f"thread {partition.thread!r}: {error}") from error


def read_each(partition: Partition, read: Callable[[Record], T], records: Iterable[Record]) -> Iterator[T]:
    """The values of some records, each read when its turn comes; see ``read_one``."""
    return (read_one(partition, read, record) for record in records)
