"""Indexing of items that are stored already: when an embedding model is used first, or has changed.

An item is indexed if its entry is missing, was made by another model, or for another value. Entries are
stored page by page, so that the next run continues an interrupted one and skips its entries. Items can be
written meanwhile: an entry is stored only beside the value that it was made for.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import NamedTuple

from perdure.engine.items import search_index
from perdure.engine.items.search_index import IndexEntry, StoredIndexEntry, content_of
from perdure.langgraph.search.index import SearchIndex
from perdure.model.ops import Fetch, Get, Range
from perdure.model.program import Program, ask
from perdure.model.records import ITEM, Key, Partition, Record
from perdure.model.store_items import is_over, labels_of
from perdure.model.values.json_values import unpack

_PAGE = 50
_ATTEMPTS = 8
_VERSION_BITS = 52


class Reindexed(NamedTuple):
    """Counts of the items of a namespace: all, those that were indexed now, those that others wrote
    meanwhile, and entries without an item, which were removed."""

    items: int = 0
    indexed: int = 0
    changed: int = 0
    removed: int = 0

    def plus(self, other: Reindexed) -> Reindexed:
        """Return the sums."""
        return Reindexed(*(a + b for a, b in zip(self, other, strict=True)))


def reindex(
    partition: Partition,
    index: SearchIndex,
    now: int,
    report: Callable[[Reindexed], None] = lambda _: None,
) -> Program[Reindexed]:
    """Index the items of a namespace that are not indexed as ``index`` would, and return their counts.

    Args:
        partition: The namespace.
        index: The index.
        now: The time in microseconds.
        report: Called after each page with the counts so far.
    """
    done = Reindexed()
    stored: dict[str, int] = {}
    expired: dict[str, int] = {}
    after: Key | None = None
    while True:
        (records,) = yield from ask(Fetch(partition, (Range(ITEM, after=after, limit=_PAGE),)))
        living = [record for record in records if not is_over(record, now)]
        stored |= {record.key[0]: record.version for record in records}
        expired |= {record.key[0]: record.version for record in records if is_over(record, now)}
        known = yield from search_index.read(partition, [record.key[0] for record in living])
        stale = [record for record in living if _is_stale(record, known, index)]
        indexed = yield from _index_items(partition, index, stale, known)
        done = done.plus(Reindexed(len(living), indexed, len(stale) - indexed))
        report(done)
        if len(records) < _PAGE:
            break
        after = records[-1].key
    living_keys = stored.keys() - expired.keys()
    for key in (yield from search_index.orphans(partition, living_keys)):
        gone = {key: expired.get(key)}
        removed = yield from search_index.store_entries(partition, {}, gone, _draw_version())
        done = done.plus(Reindexed(removed=int(removed)))
    report(done)
    return done


def _is_stale(record: Record, known: Mapping[str, StoredIndexEntry], index: SearchIndex) -> bool:
    found = known.get(record.key[0])
    if found is None:
        return True
    return index.is_outdated(found.entry) or found.entry.content != content_of(record.body)


def _index_items(
    partition: Partition,
    index: SearchIndex,
    stale: list[Record],
    known: Mapping[str, StoredIndexEntry],
) -> Program[int]:
    texts: dict[str, list[str]] = {}
    paths: dict[str, tuple[str, ...] | None] = {}
    for record in stale:
        key = record.key[0]
        value = unpack(record.body, f"item {key!r} of {labels_of(partition.thread)!r}")
        paths[key] = known[key].entry.paths if key in known else None
        texts[key] = [] if index.embedder is None else index.texts(value, paths[key])
    vectors = index.vectors(list(dict.fromkeys(text for some in texts.values() for text in some)))
    indexed = 0
    for record in stale:
        key = record.key[0]
        own = tuple(vectors[text] for text in texts[key])
        entry = IndexEntry(index.mark(paths[key]), content_of(record.body), paths[key], own)
        indexed += yield from _store_entry(partition, record, entry)
    return indexed


def _store_entry(partition: Partition, record: Record, entry: IndexEntry) -> Program[bool]:
    """Store the entry of an item that still has the value that was embedded. Its version may be
    another by now, as a read may have renewed the item."""
    key, version = record.key[0], record.version
    for _ in range(_ATTEMPTS):
        entries = {key: (search_index.pack(entry), version)}
        if (yield from search_index.store_entries(partition, entries, {}, _draw_version())):
            return True
        (found,) = yield from ask(Fetch(partition, (Get(ITEM, record.key),)))
        if not found or content_of(found[0].body) != entry.content:
            return False
        version = found[0].version
    return False


def _draw_version() -> int:
    return secrets.randbits(_VERSION_BITS) + 1
