"""Searches of the store by meaning: items in the order of their scores, each as it is when it is read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Generic, NamedTuple, TypeVar

from perdure.engine.items import search_index
from perdure.engine.items.items import Hit
from perdure.engine.requests import read_records, version_of
from perdure.model.ops import Fetch, FindNearest, IndexHit
from perdure.model.program import Program, ask
from perdure.model.records import ITEM, Key, Partition, Record
from perdure.model.store_items import Labels, is_over, labels_of

_WHOLE = 64
_SPARE = 2
_GROWTH = 8
_ORPHANS = 20
_AGAIN = 3
"""Times that a search starts again because items that it had ranked were written meanwhile."""

V = TypeVar("V")


class Candidate(NamedTuple):
    """An item that a search by meaning ranks, the digest of the value that was ranked, and the generation of
    the index that ranked it."""

    score: float
    partition: Partition
    key: str
    content: bytes
    generation: int | None


def find_nearest(
    rank: Callable[[], Program[Iterable[Candidate]]],
    judge: Callable[[Labels, Record], V | None],
    *,
    offset: int,
    limit: int,
    now: int,
    removal: int | None = None,
) -> Program[list[Hit[V]]]:
    """Return the living items of candidates that ``judge`` accepts, in the order of the candidates; those
    whose value is not the indexed one are left out. If such an item was written since it was ranked, the
    search starts again, a few times. Other arguments as for ``search``.

    Args:
        rank: Returns the items that the search index has, the best first.
        judge: Returns the result for an item, ``None`` to leave it out.
        offset: Number of accepted items that are passed over.
        limit: Maximum number of items that are returned.
        now: The time in microseconds.
        removal: A number that is used once, for the generation in which some entries without items are
            removed from each namespace; ``None`` to leave them.
    """
    left = _AGAIN
    while True:
        left -= 1
        page = _Page[V](judge, offset, limit, now)
        yield from page.fill(iter((yield from rank())))
        if not left or not (yield from _has_changed(page.outdated)):
            break
    for partition, gone in page.orphans.items():
        if gone and removal is not None:
            absent = dict.fromkeys(gone[:_ORPHANS])
            yield from search_index.store_entries(partition, {}, absent, removal)
    return page.hits


class _Page(Generic[V]):
    """The hits of a search by meaning, and facts about the search.

    ``outdated`` has the generations of indexes that ranked an item by another value than it has, ``orphans``
    the keys of entries without an item.
    """

    def __init__(
        self, judge: Callable[[Labels, Record], V | None], offset: int, limit: int, now: int
    ) -> None:
        self._judge = judge
        self._offset = offset
        self._limit = limit
        self._now = now
        self.hits: list[Hit[V]] = []
        self.outdated: dict[Partition, int | None] = {}
        self.orphans: dict[Partition, list[str]] = {}

    def fill(self, candidates: Iterator[Candidate]) -> Program[None]:
        size = min(_WHOLE, self._offset + self._limit + _SPARE)
        passed = 0
        while len(self.hits) < self._limit and (some := list(islice(candidates, size))):
            size = _WHOLE
            found = yield from self._read(some)
            for each in some:
                item = found.get((each.partition, each.key))
                if item is None or search_index.content_of(item.body) != each.content:
                    self.outdated[each.partition] = each.generation
                    continue
                labels = labels_of(each.partition.thread)
                if is_over(item, self._now) or (value := self._judge(labels, item)) is None:
                    continue
                passed += 1
                if self._offset < passed <= self._offset + self._limit:
                    self.hits.append(Hit(labels, item, value, each.score))

    def _read(self, some: Sequence[Candidate]) -> Program[dict[tuple[Partition, str], Record]]:
        wanted: dict[Partition, list[str]] = {}
        for each in some:
            wanted.setdefault(each.partition, []).append(each.key)
        found: dict[tuple[Partition, str], Record] = {}
        for partition, keys in wanted.items():
            read = yield from read_records(partition, ITEM, [(key,) for key in keys])
            records = {record.key[0]: record for record in read}
            found |= {(partition, key): record for key, record in records.items()}
            self.orphans.setdefault(partition, []).extend(key for key in keys if key not in records)
        return found


def _has_changed(ranked_by: Mapping[Partition, int | None]) -> Program[bool]:
    """Return True if an index now has another generation than the one by which it ranked."""
    for partition, generation in ranked_by.items():
        (found,) = yield from ask(Fetch(partition, (search_index.GENERATION,)))
        if version_of(found) != (generation or 0):
            return True
    return False


def find_nearest_stored(
    find: FindNearest,
    judge: Callable[[Labels, Record], V | None],
    *,
    offset: int,
    limit: int,
    everything: bool,
) -> Program[list[Hit[V]]]:
    """Return the result of ``find_nearest`` where the database compares the vectors, by ``find``: the request
    for the items nearest to the query. Other arguments as for ``search``."""
    size = 2 * (offset + limit) + _WHOLE
    if everything:
        size = offset + limit + _SPARE
    exact = False
    while limit:
        found = yield from ask(replace(find, limit=size, exact=exact))
        out = _judge_all(found, judge)[offset : offset + limit]
        is_complete = exact or (len(found) > 0 and all(hit.ranked and hit.ranked.is_whole for hit in found))
        if len(out) == limit or (len(found) < size and is_complete):
            return out
        if len(found) < size:
            # The database's index finds too few items of these namespaces: search without it.
            exact = True
        else:
            size *= _GROWTH
    return []


def _judge_all(found: Sequence[IndexHit], judge: Callable[[Labels, Record], V | None]) -> list[Hit[V]]:
    """Return those of the found items that are accepted, each once with its best score, the best first, equal
    ones by name; those whose value has changed since it was indexed are left out."""
    out: dict[tuple[Partition, Key], Hit[V]] = {}
    whole = [
        (hit.ranked, hit.partition, hit.record)
        for hit in found
        if hit.ranked is not None and hit.record is not None
    ]
    for ranked, partition, record in sorted(whole, key=lambda hit: (-hit[0].score, hit[1], hit[2].key)):
        if (partition, record.key) in out or search_index.content_of(record.body) != ranked.content:
            continue
        labels = labels_of(partition.thread)
        value = judge(labels, record)
        if value is not None:
            out[partition, record.key] = Hit(labels, record, value, ranked.score)
    return list(out.values())
