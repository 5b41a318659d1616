"""Arrival of a store's items from another store: they keep their times, and of two with one key the newer is
kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from perdure.engine.complete_reads import read_all
from perdure.engine.transact import Budget, split_into_batches
from perdure.errors import Contention
from perdure.model.ops import Commit, Committed, Expect, Fetch, Get, Op, Put, Range
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
        fields = {
            "created_at": self.created_at,
            "updated_at": self.updated_at,
            "ttl": self.ttl,
            "expires_at": None if self.expires_at is None else min(LAST, self.expires_at),
        }
        expect = Expect.ABSENT if stored is None else stored.version
        return Put(ITEM, (self.key,), fields, self.body, expect=expect, version=self.version)


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
            stored = found[0] if found else None
            if stored is None or is_over(stored, now) or _is_to_replace(item, stored):
                ops.append(item.put(stored))
        if dry_run:
            return len(ops)
        is_refused = False
        for batch in split_into_batches(ops, budget):
            outcome = yield from ask(Commit(partition, tuple(batch)))
            is_refused = is_refused or not isinstance(outcome, Committed)
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
    expiry = stored.fields["expires_at"]
    is_longer = expiry is not None and (item.expires_at is None or item.expires_at > expiry)
    return stored.body != item.body or stored.fields["updated_at"] < item.updated_at or is_longer
