"""Decoding of a thread's records with errors that name the thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from perdure.errors import Corrupt
from perdure.model.records import Partition, Record

T = TypeVar("T")


def read_one(partition: Partition, read: Callable[[Record], T], record: Record) -> T:
    """Decode a record; a ``Corrupt`` that ``read`` raises is raised again with the thread's name."""
    try:
        return read(record)
    except Corrupt as error:
        raise Corrupt(f"thread {partition.thread!r}: {error}") from error


def read_each(partition: Partition, read: Callable[[Record], T], records: Iterable[Record]) -> Iterator[T]:
    """Decode records one by one, lazily, like ``read_one``."""
    return (read_one(partition, read, record) for record in records)
