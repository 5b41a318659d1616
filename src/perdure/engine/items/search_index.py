"""Search index of the store: an entry beside each item, written in the item's own commit.

An entry is a document of the item's partition with the vectors of the item's texts. Each commit of entries
changes the partition's generation, so that a reader who knows the present one has nothing to read. The
generation's record names the entries that the last commits have changed, so that a reader who is a little
behind reads no more than those. An entry also has the digest of the value that it was made for. So an entry
of an earlier value, left by a writer without an index, is recognised, and never found.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import ormsgpack

from perdure.engine.complete_reads import read_all
from perdure.engine.requests import read_records, try_commit, version_of
from perdure.errors import Corrupt, TooLarge
from perdure.model.ops import Check, Delete, Expect, Fetch, Get, Op, Put, Range
from perdure.model.program import Program, ask
from perdure.model.records import DOCUMENT, ITEM, Key, Partition, Record
from perdure.model.store_items import labels_of

_COLLECTION = "search"
_GENERATION: Key = (_COLLECTION, "")
_OF_ITEM = "="
_UNREADABLE = (
    "the record of a search index's generation cannot be read; `perdure store reindex` cannot repair "
    "it: delete the namespace's items and put them again, or restore a backup"
)
_EMPTY = ormsgpack.packb([])
_BODIES = 200
_AGAIN = 3
"""Maximum number of attempts to read changes of one moment while others write; after that the changes may be
of several moments."""

LOG_COMMITS = 24
"""Maximum number of commits that the record of a generation names."""

LOG_BYTES = 900
"""Maximum bytes of a generation's record: with its keys it is one write unit of DynamoDB."""


class IndexEntry(NamedTuple):
    """Entry of an item in the index.

    Attributes:
        model: Digest of the embedding model and its dimensions, or of an index without one.
        content: Digest of the item's stored value, made by ``content_of``.
        paths: The paths whose texts are indexed; ``None`` for those of the configuration, an empty tuple if
            the item is kept out of the index.
        vectors: A vector for each text: 32-bit floats, little-endian.
    """

    model: bytes
    content: bytes
    paths: tuple[str, ...] | None
    vectors: tuple[bytes, ...]


class Generation(NamedTuple):
    """Generation of a namespace's index.

    Attributes:
        version: Its number, which is used once.
        log: The last commits that changed entries, the last one last, as they are stored: for each the
            generation before it, and the keys of the items whose entries it changed. Not to be changed.
    """

    version: int
    log: list[Any]


class StoredIndexEntry(NamedTuple):
    """Entry with the version of its record, which changes each time that it is written."""

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


def make_stored_entry_op(key: str, entry: bytes, version: int) -> Op:
    """Return the operation that stores an item's entry."""
    return Put(DOCUMENT, (_COLLECTION, _OF_ITEM + key), {"updated_at": 0}, entry, version=version)


def make_removal(key: str) -> Op:
    """Return the operation that removes an item's entry, if there is one."""
    return Delete(DOCUMENT, (_COLLECTION, _OF_ITEM + key))


GENERATION = Get(DOCUMENT, _GENERATION)
"""The read of a namespace's generation, which writers add to their own reads."""


def make_generation_op(version: int) -> Op:
    """Return the operation that gives the namespace a new generation, a number that is used once. It says
    only that entries have changed, and not which."""
    return Put(DOCUMENT, _GENERATION, {"updated_at": 0}, version=version)


def log_generation(before: Generation, version: int, keys: Sequence[str]) -> tuple[Op, Generation]:
    """Return the operation that gives the namespace a new generation, which names the entries that changed,
    and that generation.

    The operation is refused if another commit has changed the generation.

    Args:
        before: The generation that the writer knows.
        version: The new generation, a number that is used once.
        keys: The items whose entries the commit changes.
    """
    log = [*before.log, [before.version, list(keys)]][-LOG_COMMITS:]
    body = ormsgpack.packb(log)
    while len(body) > LOG_BYTES:
        log = log[1:]
        body = ormsgpack.packb(log)
    if not log:
        body = b""
    op = Put(DOCUMENT, _GENERATION, {"updated_at": 0}, body, expect=before.version, version=version)
    return op, Generation(version, log)


def generation_of(record: Record) -> Generation:
    """Return the generation that a record has; raise ``Corrupt`` for one that cannot be read."""
    return Generation(record.version, _read_log(record))


def _read_log(record: Record) -> list[Any]:
    """Return the commits that a generation's record names, the last one last, each as it is stored: the
    generation before it, and the keys of the items whose entries it changed."""
    try:
        log: Any = ormsgpack.unpackb(record.body or _EMPTY)
    except ValueError as error:
        raise Corrupt(_UNREADABLE) from error
    if not isinstance(log, list):
        raise Corrupt(_UNREADABLE)
    return log


def _find_changed(record: Record, generation: int | None) -> list[str] | None:
    """Return the keys of the entries that changed since a generation; ``None`` if that is not known."""
    try:
        log = [(int(before), [str(key) for key in keys]) for before, keys in _read_log(record)]
    except (ValueError, TypeError) as error:
        raise Corrupt(_UNREADABLE) from error
    for place, (before, _) in enumerate(log):
        if before == generation:
            return list(dict.fromkeys(key for _, keys in log[place:] for key in keys))
    return None


def make_generation_removal() -> Op:
    """Return the operation that removes the generation, for a commit that only removes entries: readers look
    at all entries again afterwards. For a namespace without an index, which has no generation, nothing is
    stored."""
    return Delete(DOCUMENT, _GENERATION)


def read_changes(
    partition: Partition, generation: int | None, versions: Mapping[str, int], most: int
) -> Program[IndexChanges | None]:
    """Read what has changed in a namespace's entries, ``None`` for nothing.

    Args:
        partition: The namespace.
        generation: The generation that the caller knows, ``None`` for none.
        versions: The versions of the entries that the caller knows, by the keys of their items.
        most: Maximum number of entries that the caller takes.

    Raises:
        TooLarge: There are more.
    """
    entries: dict[str, StoredIndexEntry] = {}
    left = _AGAIN
    while True:
        left -= 1
        (found,) = yield from ask(Fetch(partition, (GENERATION,)))
        current = version_of(found)
        if found and current == generation:
            return None
        changed = None
        if found and generation:
            changed = _find_changed(found[0], generation)
        if changed is not None:
            wanted, kept, absent = changed, {}, []
        else:
            present = yield from _read_versions(partition)
            if len(present) > most:
                raise TooLarge(
                    f"{labels_of(partition.thread)!r} has {len(present):,} indexed items, more than the "
                    f"{most:,} that one search compares; search a narrower namespace, such as one user's"
                )
            kept = {key: entry for key, entry in entries.items() if present.get(key) == entry.version}
            known = {**versions, **{key: entry.version for key, entry in kept.items()}}
            wanted = [key for key, version in present.items() if known.get(key) != version]
            absent = [key for key in versions if key not in present]
        read, is_of_one_moment = yield from _read_entries(partition, wanted, current)
        entries = {**kept, **read}
        if is_of_one_moment or not left:
            break
    written = {key: entry for key, entry in entries.items() if versions.get(key) != entry.version}
    # An entry that was removed between two reads is removed for this reader, too.
    return IndexChanges(current, written, [*absent, *(key for key in wanted if key not in read)])


def _read_entries(
    partition: Partition, keys: Sequence[str], generation: int
) -> Program[tuple[dict[str, StoredIndexEntry], bool]]:
    """Return the entries of some items, and True if the index had ``generation`` during each of the reads."""
    out: dict[str, StoredIndexEntry] = {}
    is_same = True
    for start in range(0, len(keys), _BODIES):
        gets = _make_gets(keys[start : start + _BODIES])
        found, *answers = yield from ask(Fetch(partition, (GENERATION, *gets)))
        out.update(
            (_item_key(record), _read_entry(partition, record)) for answer in answers for record in answer
        )
        is_same = is_same and version_of(found) == generation
    return out, is_same


def read_values(partition: Partition, entries: Mapping[str, StoredIndexEntry]) -> Program[dict[str, bytes]]:
    """Return the stored values of those items of some entries whose value has not changed since."""
    out: dict[str, bytes] = {}
    keys = list(entries)
    for start in range(0, len(keys), _BODIES):
        wanted = [(key,) for key in keys[start : start + _BODIES]]
        for record in (yield from read_records(partition, ITEM, wanted)):
            if content_of(record.body) == entries[record.key[0]].entry.content:
                out[record.key[0]] = record.body
    return out


def read(partition: Partition, keys: Sequence[str]) -> Program[dict[str, StoredIndexEntry]]:
    """Return the entries of some items, those that exist."""
    records = yield from _read_records(partition, keys)
    return {_item_key(record): _read_entry(partition, record) for record in records}


def make_copies(partition: Partition, keys: Sequence[str]) -> Program[dict[str, Op]]:
    """Return the operations that store the entries of some items in another database, by key."""
    records = yield from _read_records(partition, keys)
    return {
        _item_key(record): make_stored_entry_op(_item_key(record), record.body, record.version)
        for record in records
    }


def _read_records(partition: Partition, keys: Sequence[str]) -> Program[list[Record]]:
    return (yield from read_records(partition, DOCUMENT, [get.key for get in _make_gets(keys)]))


def _make_gets(keys: Sequence[str]) -> tuple[Get, ...]:
    return tuple(Get(DOCUMENT, (_COLLECTION, _OF_ITEM + key)) for key in keys)


def _read_versions(partition: Partition) -> Program[dict[str, int]]:
    (records,) = yield from read_all(partition, Range(DOCUMENT, (_COLLECTION,), bodies=False))
    return {_item_key(record): record.version for record in records if record.key != _GENERATION}


def orphans(partition: Partition, items: Iterable[str]) -> Program[list[str]]:
    """Return the keys of entries whose items are not among ``items``."""
    present = yield from _read_versions(partition)
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
        ops += (Check(ITEM, (key,), expected), make_stored_entry_op(key, body, version))
    for key, item in removed.items():
        ops += (Check(ITEM, (key,), item or Expect.ABSENT), make_removal(key))
    return (yield from try_commit(partition, (*ops, make_generation_op(version))))


def _item_key(record: Record) -> str:
    name: str = record.key[1]
    return name[len(_OF_ITEM) :]


def _read_entry(partition: Partition, record: Record) -> StoredIndexEntry:
    try:
        model, content, paths, vectors = ormsgpack.unpackb(record.body)
        entry = IndexEntry(bytes(model), bytes(content), _paths(paths), tuple(map(bytes, vectors)))
    except (ValueError, TypeError) as error:
        raise Corrupt(
            f"the search index of item {_item_key(record)!r} of {labels_of(partition.thread)!r} cannot be "
            "read; rebuild it with `perdure store reindex`"
        ) from error
    return StoredIndexEntry(record.version, entry)


def _paths(stored: Any) -> tuple[str, ...] | None:
    if stored is None:
        return None
    return tuple(str(path) for path in stored)
