"""Arrival of a store's items from another store: they keep their times, and of two with one key the newer is
kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from perdure.engine.complete_reads import read_all
from perdure.engine.requests import expect_unchanged, first_of, try_commit
from perdure.engine.transact import Budget, split_into_batches
from perdure.errors import Contention
from perdure.model.ops import Fetch, Get, Op, Put, Range
from perdure.model.program import Program, ask
from perdure.model.records import ITEM, Partition, Record
from perdure.model.store_items import LAST, is_over, labels_of

ATTEMPTS = 8


class ArrivingItem(NamedTuple):
    """An item to be stored. Times are microseconds since 1970, ``ttl`` is a duration in microseconds;
    ``version`` is unique to this write."""

    key: str
    body: bytes
    created_at: int
    updated_at: int
    ttl: int | None
    expires_at: int | None
    version: int

    def put(self, stored: Record | None) -> Put:
        """Return the operation that stores the item in place of ``stored``, if there is one."""
        ends_at = self.expires_at
        if ends_at is not None:
            ends_at = min(LAST, ends_at)
        fields = {
            "created_at": self.created_at,
            "updated_at": self.updated_at,
            "ttl": self.ttl,
            "expires_at": ends_at,
        }
        return Put(ITEM, (self.key,), fields, self.body, expect_unchanged(stored), self.version)


def put_items(
    partition: Partition, items: Sequence[ArrivingItem], now: int, budget: Budget, *, dry_run: bool = False
) -> Program[int]:
    """Store the items of one namespace that the target lacks, or has in an older state; return their number.

    Raises:
        Contention: the namespace keeps being written to.
    """
    for _ in range(ATTEMPTS):
        answers = yield from ask(Fetch(partition, tuple(Get(ITEM, (item.key,)) for item in items)))
        ops: list[Op] = []
        for item, found in zip(items, answers, strict=True):
            stored = first_of(found)
            if stored is None or is_over(stored, now) or _is_to_replace(item, stored):
                ops.append(item.put(stored))
        if dry_run:
            return len(ops)
        is_refused = False
        for batch in split_into_batches(ops, budget):
            is_refused |= not (yield from try_commit(partition, batch))
        if not is_refused:
            return len(ops)
    raise Contention(
        f"the store's namespace {labels_of(partition.thread)!r} keeps being written to; run the import again"
    )


def read_keys(partition: Partition, now: int) -> Program[set[str]]:
    """Return the keys of a namespace's items that have not expired."""
    (found,) = yield from read_all(partition, Range(ITEM, bodies=False))
    return {record.key[0] for record in found if not is_over(record, now)}


def _is_to_replace(item: ArrivingItem, stored: Record) -> bool:
    """Return True if an item is to replace the stored one. The times of LangGraph's own stores may be whole
    seconds, so an item with a different value and the same time replaces the stored one, too."""
    if stored.fields["updated_at"] > item.updated_at:
        return False
    ends_at = stored.fields["expires_at"]
    is_longer = ends_at is not None and (item.expires_at is None or item.expires_at > ends_at)
    return stored.body != item.body or stored.fields["updated_at"] < item.updated_at or is_longer
