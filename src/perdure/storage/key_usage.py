"""Counts the stored values by the data key that encrypts them. Nothing is decrypted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from perdure.model.ops import Fetch, FindThreads, Range
from perdure.model.records import KINDS, SPACES, Kind, Partition, Record
from perdure.storage.encryption import data_key_of
from perdure.storage.port import Driver

_PARTITIONS_AT_ONCE = 1000
_BODIES_AT_ONCE = 100
"""Maximum number of records of one kind in an answer, each with its body."""

_WITH_BODIES = tuple(kind for kind in KINDS if kind.body)


def count_by_data_key(driver: Driver) -> Counter[str]:
    """Return the number of values under each data key, by its id, and of those in the clear under ``""``.
    Reads the whole database, blocking.

    Args:
        driver: The driver of the database, without the layer that decrypts.
    """
    counts: Counter[str] = Counter()
    for space in SPACES:
        for partition in _list_partitions(driver, space):
            for record in _list_records(driver, partition):
                counts[(data_key_of(record.body) or b"").hex()] += 1
    return counts


def _list_partitions(driver: Driver, space: str) -> Iterator[Partition]:
    after: Partition | None = None
    while True:
        hits = driver.perform(FindThreads(None, after=after, limit=_PARTITIONS_AT_ONCE, space=space))
        yield from (hit.partition for hit in hits)
        if len(hits) < _PARTITIONS_AT_ONCE:
            return
        after = hits[-1].partition


def _list_records(driver: Driver, partition: Partition) -> Iterator[Record]:
    after: dict[Kind, Any] = dict.fromkeys(_WITH_BODIES)
    while after:
        ranges = tuple(
            Range(kind, after=last, limit=_BODIES_AT_ONCE, verify=False) for kind, last in after.items()
        )
        following: dict[Kind, Any] = {}
        for kind, records in zip(after, driver.perform(Fetch(partition, ranges)), strict=True):
            yield from records
            if len(records) == _BODIES_AT_ONCE:
                following[kind] = records[-1].key
        after = following
