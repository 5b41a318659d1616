"""Orders the records of a partition's item collection, so that the records of a load are contiguous. Pure.

A process that is new to a thread needs its latest checkpoint, the writes on that, the chunks that are not
packed yet, and the packs, newest first. Each of these ends where the next one begins, if the checkpoint is
the newest one of the root namespace: one query reads them all. Checkpoints and writes share a range of
places, in which each checkpoint comes before the writes on it.
"""

from __future__ import annotations

from perdure.model.records import CHECKPOINT, CHUNK, KINDS, PACK, WRITE, Key, Kind
from perdure.storage.kv import keys

_NESTED, _ROOT = b"\x01", b"\x02"
"""Checkpoints and writes of the namespaces of subgraphs, and of the root namespace."""

_PLACES = {
    "chunk": b"\x03",
    "pack": b"\x04",
    "blob": b"\x05",
    "head": b"\x06",
    "tag": b"\x07",
    "seal": b"\x08",
    "item": b"\x09",
    "lane": b"\x0a",
    "inbox": b"\x0b",
    "dedupe": b"\x0c",
    "run": b"\x0d",
    "outbox": b"\x0e",
    "effect": b"\x0f",
    "document": b"\x10",
    "event": b"\x11",
}
PARTS = b"\xf0"
"""The place of the parts of bodies."""

_KINDS = {_PLACES[kind.name]: kind for kind in KINDS if kind.name in _PLACES}
_MIRROR = bytes(range(255, -1, -1))


def shares_place(kind: Kind) -> bool:
    """Return True if records of another kind are between those of this kind."""
    return kind is CHECKPOINT or kind is WRITE


def is_mirrored(kind: Kind) -> bool:
    """Return True if the greatest key comes first: the newest packs are needed first."""
    return kind is PACK


def find_place_prefixes(kind: Kind, prefix: Key) -> tuple[bytes, ...]:
    """Return the beginnings that the places of all records have whose key begins with ``prefix``, in the
    order of the keys."""
    if shares_place(kind):
        if not prefix:
            return _ROOT, _NESTED
        return ((_NESTED if prefix[0] else _ROOT) + keys.encode_parts(kind, prefix),)
    encoded = keys.encode_parts(kind, prefix)
    return (_PLACES[kind.name] + (encoded.translate(_MIRROR) if is_mirrored(kind) else encoded),)


def place_of(kind: Kind, key: Key) -> bytes:
    """Return the place of a record."""
    (place,) = find_place_prefixes(kind, key)
    return place


def record_at(place: bytes) -> tuple[Kind, Key]:
    """Return the kind and the key of the record at a place."""
    first, encoded = place[:1], place[1:]
    if first in (_NESTED, _ROOT):
        key = keys.decode_parts(WRITE, encoded)
        return (CHECKPOINT if len(key) == len(CHECKPOINT.key) else WRITE), key
    kind = _KINDS[first]
    return kind, keys.decode_parts(kind, encoded.translate(_MIRROR) if is_mirrored(kind) else encoded)


def is_followed(kind: Kind, prefix: Key, place: bytes) -> bool:
    """Return True if a place directly follows the records of a kind whose keys begin with ``prefix``. For the
    writes on the newest checkpoint of the root namespace this is likely, but not certain."""
    if kind is WRITE:
        return len(prefix) == len(CHECKPOINT.key) and not prefix[0] and place == _PLACES[CHUNK.name]
    return not shares_place(kind) and keys.successor(find_place_prefixes(kind, prefix)[0]) == place
