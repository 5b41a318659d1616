"""Search index of the store: an entry beside each item, written in the item's own commit.

An entry is a document of the item's partition with the vectors of the item's texts. Each commit of entries
changes the partition's generation, so that a reader who knows it has nothing to read. An entry also has the
digest of the value that it was made for: one that is left behind by a writer without an index is recognised,
and never found.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import ormsgpack

from perdure.errors import Corrupt, TooLarge
from perdure.model.items import labels_of
from perdure.model.ops import Check, Commit, Committed, Delete, Expect, Fetch, Get, Op, Put, Range
from perdure.model.program import Program, ask
from perdure.model.records import DOCUMENT, ITEM, Key, Partition, Record

_COLLECTION = "search"
_GENERATION: Key = (_COLLECTION, "")
_OF_ITEM = "="
_HEADERS = 1000
_BODIES = 200


class IndexEntry(NamedTuple):
    """IndexEntry of the index.

    Attributes:
        model: Digest of the embedding model and its dimensions.
        content: Digest of the item's stored value, of ``content_of``.
        paths: The paths whose texts are indexed; ``None`` for those of the configuration, none if the item
            is kept out of the index.
        vectors: A vector for each text: 32-bit floats, little-endian.
    """

    model: bytes
    content: bytes
    paths: tuple[str, ...] | None
    vectors: tuple[bytes, ...]


class StoredIndexEntry(NamedTuple):
    """IndexEntry with the version of its record, which changes each time that it is written."""

    version: int
    entry: IndexEntry


class IndexChanges(NamedTuple):
    """Difference of a namespace's entries from those that a reader knows, by the keys of their items."""

    generation: int
    written: Mapping[str, StoredIndexEntry]
    removed: Sequence[str]


def content_of(body: bytes) -> bytes:
    """Return the digest of an item's stored value."""
    return blake2b(body, digest_size=16, person=b"perdure.search").digest()


def pack(entry: IndexEntry) -> bytes:
    """Encode an entry."""
    return ormsgpack.packb(list(entry))


def entry_op(key: str, entry: bytes, version: int) -> Op:
    """Return the operation that stores an item's entry."""
    return Put(DOCUMENT, (_COLLECTION, _OF_ITEM + key), {"updated_at": 0}, entry, version=version)


def removal(key: str) -> Op:
    """Return the operation that removes an item's entry, if there is one."""
    return Delete(DOCUMENT, (_COLLECTION, _OF_ITEM + key))


def generation_op(version: int) -> Op:
    """Return the operation that gives the namespace a new generation, a number that is used once."""
    return Put(DOCUMENT, _GENERATION, {"updated_at": 0}, version=version)


def generation_removal() -> Op:
    """Return the operation after which readers look at all entries again, in a commit that only removes
    some. A namespace without an index has no generation, and nothing is stored for it."""
    return Delete(DOCUMENT, _GENERATION)


def changes(
    partition: Partition, generation: int | None, versions: Mapping[str, int], most: int
) -> Program[IndexChanges | None]:
    """Read what has changed in a namespace's entries, ``None`` for nothing.

    Args:
        partition: The namespace.
        generation: The generation that the caller knows, ``None`` for none.
        versions: The versions of the entries that the caller knows, by the keys of their items.
        most: The most entries that the caller takes.

    Raises:
        TooLarge: There are more.
    """
    (found,) = yield from ask(Fetch(partition, (Get(DOCUMENT, _GENERATION),)))
    now = found[0].version if found else 0
    if found and now == generation:
        return None
    present = yield from _versions(partition)
    if len(present) > most:
        raise TooLarge(
            f"{labels_of(partition.thread)!r} has {len(present):,} indexed items, more than the {most:,} "
            "that one search compares; search a narrower namespace, such as one user's"
        )
    written: dict[str, StoredIndexEntry] = {}
    wanted = [key for key, version in present.items() if versions.get(key) != version]
    for place in range(0, len(wanted), _BODIES):
        some = wanted[place : place + _BODIES]
        written |= yield from read(partition, some)
    # One that was removed between the two reads is removed for this reader, too.
    gone = [key for key in wanted if key not in written]
    return IndexChanges(now, written, [*(key for key in versions if key not in present), *gone])


def read(partition: Partition, keys: Sequence[str]) -> Program[dict[str, StoredIndexEntry]]:
    """Return the entries of some items, those that exist."""
    records = yield from _records(partition, keys)
    return {_item(record): _stored(partition, record) for record in records}


def copies(partition: Partition, keys: Sequence[str]) -> Program[dict[str, Op]]:
    """Return the operations that store the entries of some items in another database, by key."""
    records = yield from _records(partition, keys)
    return {_item(record): entry_op(_item(record), record.body, record.version) for record in records}


def _records(partition: Partition, keys: Sequence[str]) -> Program[list[Record]]:
    wanted = tuple(Get(DOCUMENT, (_COLLECTION, _OF_ITEM + key)) for key in keys)
    answers = (yield from ask(Fetch(partition, wanted))) if wanted else ()
    return [record for records in answers for record in records]


def _versions(partition: Partition) -> Program[dict[str, int]]:
    out: dict[str, int] = {}
    after: Key | None = None
    while True:
        page = Range(DOCUMENT, (_COLLECTION,), after=after, limit=_HEADERS, bodies=False)
        (records,) = yield from ask(Fetch(partition, (page,)))
        out.update({_item(record): record.version for record in records if record.key != _GENERATION})
        if len(records) < _HEADERS:
            return out
        after = records[-1].key


def orphans(partition: Partition, items: Iterable[str]) -> Program[list[str]]:
    """Return the keys of entries whose items are not among ``items``."""
    present = yield from _versions(partition)
    return sorted(set(present) - set(items))


def store_entries(
    partition: Partition,
    entries: Mapping[str, tuple[bytes, int]],
    removed: Mapping[str, int | None],
    version: int,
) -> Program[bool]:
    """Store entries of items that are there already, and remove others, in one commit.

    Args:
        partition: The namespace.
        entries: By the item's key: the entry, and the version that the item must still have.
        removed: Keys whose entries are removed: with the version that the item must still have, ``None`` if
            it must be absent.
        version: A number that is used once.

    Returns:
        False if an item was written meanwhile; then nothing was stored.
    """
    ops: list[Op] = []
    for key, (body, expected) in entries.items():
        ops += (Check(ITEM, (key,), expected), entry_op(key, body, version))
    for key, item in removed.items():
        ops += (Check(ITEM, (key,), Expect.ABSENT if item is None else item), removal(key))
    outcome = yield from ask(Commit(partition, (*ops, generation_op(version))))
    return isinstance(outcome, Committed)


def _item(record: Record) -> str:
    name: str = record.key[1]
    return name[len(_OF_ITEM) :]


def _stored(partition: Partition, record: Record) -> StoredIndexEntry:
    try:
        model, content, paths, vectors = ormsgpack.unpackb(record.body)
        entry = IndexEntry(bytes(model), bytes(content), _paths(paths), tuple(map(bytes, vectors)))
    except (ValueError, TypeError) as error:
        raise Corrupt(
            f"the search index of item {_item(record)!r} of {labels_of(partition.thread)!r} cannot be read; "
            "rebuild it with `perdure store reindex`"
        ) from error
    return StoredIndexEntry(record.version, entry)


def _paths(stored: Any) -> tuple[str, ...] | None:
    return None if stored is None else tuple(str(path) for path in stored)
