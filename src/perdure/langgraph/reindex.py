"""Indexing of items that are stored already: after the embedding model, or its first use, has changed.

An item is indexed if its entry is missing, was made by another model, or for another value. What is done is
stored page by page, so that an interrupted run is continued by the next one, which passes over it. Items can
be written meanwhile: an entry is stored only beside the value that it was made for.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import NamedTuple

from perdure.engine import search_index
from perdure.engine.search_index import IndexEntry, StoredIndexEntry, content_of
from perdure.langgraph.search_index import SearchIndex
from perdure.model.items import is_over, labels_of
from perdure.model.json_values import unpack
from perdure.model.ops import Fetch, Range
from perdure.model.program import Program, ask
from perdure.model.records import ITEM, Key, Partition, Record

_PAGE = 50
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
    keys: list[str] = []
    after: Key | None = None
    while True:
        (records,) = yield from ask(Fetch(partition, (Range(ITEM, after=after, limit=_PAGE),)))
        living = [record for record in records if not is_over(record, now)]
        keys += [record.key[0] for record in living]
        known = yield from search_index.read(partition, [record.key[0] for record in living])
        stale = [record for record in living if _is_stale(record, known, index)]
        indexed = yield from _index(partition, index, stale, known)
        done = done.plus(Reindexed(len(living), indexed, len(stale) - indexed))
        report(done)
        if len(records) < _PAGE:
            break
        after = records[-1].key
    left = yield from search_index.orphans(partition, keys)
    for key in left:
        removed = yield from search_index.store_entries(partition, {}, [key], _version())
        done = done.plus(Reindexed(removed=int(removed)))
    report(done)
    return done


def _is_stale(record: Record, known: Mapping[str, StoredIndexEntry], index: SearchIndex) -> bool:
    found = known.get(record.key[0])
    if found is None:
        return True
    entry = found.entry
    return entry.content != content_of(record.body) or (bool(entry.vectors) and entry.model != index.model)


def _index(
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
        texts[key] = index.texts(value, paths[key])
    vectors = index.vectors(list(dict.fromkeys(text for some in texts.values() for text in some)))
    indexed = 0
    for record in stale:
        key = record.key[0]
        own = tuple(vectors[text] for text in texts[key])
        entry = search_index.pack(IndexEntry(index.model, content_of(record.body), paths[key], own))
        entries = {key: (entry, record.version)}
        indexed += yield from search_index.store_entries(partition, entries, (), _version())
    return indexed


def _version() -> int:
    return secrets.randbits(_VERSION_BITS) + 1
