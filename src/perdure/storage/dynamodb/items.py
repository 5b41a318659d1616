"""Translates records to items of the table. Pure.

A partition has one *root* item: the incarnation under which its records are stored, the revision that the
latest commit gave it, the records of kinds without a key, the head of the root namespace, and the head of a
session. Other records are in the item collection of the partition's incarnation, in the order of ``places``:
each is an item of its own. A body too large for an item is stored in parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from types import MappingProxyType
from typing import Any, NamedTuple

from perdure.model.ops import Get, Op, Put
from perdure.model.records import (
    HEAD,
    ITEM,
    KINDS,
    NO_FIELDS,
    RESERVED,
    SESSIONS,
    Column,
    Key,
    Kind,
    Partition,
    Record,
)
from perdure.storage.dynamodb import places
from perdure.storage.kv import keys

Item = dict[str, Any]

BODY_MAX = 260 * 1024
"""The largest body, in bytes, that is stored in its record's item: a whole chunk, sealed, and no more. An
item may hold 400 KB."""

PART = 250 * 1024
"""The bytes of a part of a larger body."""

BY_ORDER = "by_order"
FIND = "find"
BUCKETS = 8
ROOT_SK = b"r"
PRESENT = "attribute_exists(pk)"
ABSENT = "attribute_not_exists(pk)"
INCARNATION = 9
"""Bytes of an incarnation's random name."""

_PK_MAX = 1024
_SK_MAX = 1000
_DIGEST = 16
_TIE = 8
KEPT = _SK_MAX
"""The greatest length of a sort key that is the place of its record; a longer one is a shortened place."""
_CATALOGUE = b"k"

ROOT_HEAD: Key = ("",)
"""The key of the head of a thread's root namespace, and of the head of a session."""

EMBEDDED: Mapping[str, tuple[Kind, Key]] = {
    **{kind.name: (kind, ()) for kind in KINDS if not kind.key and not kind.body},
    HEAD.name: (HEAD, ROOT_HEAD),
    ITEM.name: (ITEM, ROOT_HEAD),
}
"""The records that are attributes of the root item, by the name of the attribute. Each commit writes the root
item, so small records in it cost nothing. Of the store's items only the head of a session is there, so that
it is found without the incarnation."""

PLAIN = tuple(kind for kind in KINDS if kind.key)
"""The kinds whose records have items of their own, except for those in the root."""

INDEXED = ("n", "k", *dict.fromkeys(c.name for k in PLAIN if k.index == "run_id" for c in k.fields))
"""The attributes that the index for finding has besides its keys."""


class PartitionRoot(NamedTuple):
    """A partition's root item. ``incarnation`` is empty while the partition holds nothing, ``revision`` if
    there is no such item; ``dead`` names the
    incarnations whose records are still to be removed. ``stored`` has the versions of records that are known
    to be stored at this revision, by kind and key. ``parts`` are those of the body of a session's head, if
    the body is not in the root."""

    incarnation: bytes
    revision: bytes
    records: Mapping[str, Record]
    dead: tuple[bytes, ...] = ()
    stored: Mapping[tuple[str, Key], int] = MappingProxyType({})
    parts: tuple[bytes, int] | None = None


NO_ROOT = PartitionRoot(b"", b"", MappingProxyType({}))
"""The root of a partition that has no root item."""

_NO_BYTES: Item = {"B": b""}


def is_embedded(partition: Partition, at: Op | Get) -> bool:
    """Return True if a record is an attribute of the root item."""
    if at.kind is ITEM and partition.space != SESSIONS:
        return False
    return at.kind.name in EMBEDDED and EMBEDDED[at.kind.name][1] == at.key


def shorten(encoded: bytes, kept: int) -> bytes:
    """Return bytes that identify an encoded key. Up to ``kept`` bytes are returned as they are. Of a longer
    key the rest is replaced by a digest, so that keys with the same first ``kept`` bytes have no order."""
    if len(encoded) <= kept:
        return encoded
    return encoded[:kept] + blake2b(encoded, digest_size=_DIGEST, person=b"perdure.key").digest()


# Where things are


def make_root_key(partition: Partition) -> Item:
    return {
        "pk": {"B": b"r" + shorten(keys.encode_partition(partition), _PK_MAX)},
        "sk": {"B": ROOT_SK},
    }


def collection(partition: Partition, incarnation: bytes) -> bytes:
    """Return the partition key of the item collection of a partition's incarnation."""
    return b"d" + incarnation + shorten(keys.encode_partition(partition), _PK_MAX)


def sort_key(place: bytes) -> bytes:
    return shorten(place, _SK_MAX)


def make_lower_bound(edge: bytes) -> bytes:
    """Return the least sort key that can belong to a place above ``edge``."""
    if len(edge) <= KEPT:
        return edge + b"\x00"
    return edge[:KEPT]


def make_upper_bound(edge: bytes) -> bytes:
    """Return the greatest sort key that can belong to a place below ``edge``."""
    if len(edge) <= KEPT:
        return edge
    return edge[:KEPT] + b"\xff" * _DIGEST


def key_of(partition: Partition, incarnation: bytes, kind: Kind, key: Key) -> Item:
    """Return the key of the item that holds a record."""
    return {
        "pk": {"B": collection(partition, incarnation)},
        "sk": {"B": sort_key(places.place_of(kind, key))},
    }


def partition_of(item: Item) -> Partition:
    """Return the partition of an item that is in the index for finding."""
    if "n" in item:
        return keys.decode_partition(_read_bytes(item["n"]))
    pk = _read_bytes(item["pk"])
    return keys.decode_partition(pk[1:] if pk[:1] == b"r" else pk[1 + INCARNATION :])


def make_part_keys(partition: Partition, incarnation: bytes, nonce: bytes, count: int) -> list[Item]:
    """Return the keys of the parts of a body."""
    pk = {"B": collection(partition, incarnation)}
    return [{"pk": pk, "sk": {"B": places.PARTS + nonce + n.to_bytes(4, "big")}} for n in range(count)]


def encode_order_prefix(kind: Kind, prefix: Key) -> bytes:
    """Return the prefix of the ordering attribute for records of one key prefix."""
    (start,) = places.find_place_prefixes(kind, prefix)
    return shorten(start, _SK_MAX - 8)


# Records


def place_in(item: Item) -> bytes:
    """Return the full place of a record, given its item."""
    return _read_bytes(item.get("k") or item["sk"])


def item_of(partition: Partition, incarnation: bytes, put: Put) -> Item:
    """Return the item of a record, without its body."""
    kind = put.kind
    full = places.place_of(kind, put.key)
    item: Item = {**key_of(partition, incarnation, kind, put.key), "v": {"N": str(put.version)}}
    if len(full) > _SK_MAX:
        item["k"] = {"B": full}
    item.update(fields_of(kind, put.fields))
    for by in kind.by:
        item["o"] = {"B": encode_order_prefix(kind, put.key[:-1]) + keys.encode_integer(put.fields[by])}
    item.update(expiry_of(put))
    if kind.index is not None and not kind.expires and (value := put.fields[kind.index]) is not None:
        item.update(_make_index_entry(kind, partition, full, value))
    return item


def expiry_of(put: Put) -> Item:
    """Return the attribute by which the service removes an item that expires."""
    if not put.kind.expires or (value := put.fields[str(put.kind.index)]) is None:
        return {}
    return {"x": {"N": str(-(-value // 1_000_000))}}


def record_of(kind: Kind, item: Item, body: bytes = b"") -> Record:
    """Return the record of an item.

    Args:
        kind: The kind of the record.
        item: The item.
        body: The body, if it is stored in parts; otherwise the item's own is used.
    """
    _, key = places.record_at(place_in(item))
    return _make_record(kind, key, item, body or _read_bytes(item.get("b", _NO_BYTES)))


def _make_record(kind: Kind, key: Key, attributes: Item, body: bytes) -> Record:
    version = int(attributes.get("v", {"N": "0"})["N"])
    return Record(kind, key, _decode_fields(kind, attributes), version, body)


def parts_of(item: Item) -> tuple[bytes, int] | None:
    """Return the name and number of the parts in which an item's body is stored, if it is."""
    if "p" in item:
        return (_read_bytes(item["p"]), int(item["pn"]["N"]))
    return None


def is_expired(item: Item, now: float) -> bool:
    """Return True if the service may be removing an item."""
    return "x" in item and int(item["x"]["N"]) <= now


def fields_of(kind: Kind, fields: Mapping[str, Any]) -> Item:
    return {c.name: attribute(c, fields[c.name]) for c in kind.fields if fields[c.name] is not None}


def attribute(column: Column, value: Any) -> Item:
    if column.kind == "integer":
        return {"N": str(value)}
    if column.kind == "text":
        return {"S": value}
    return {"B": value}


def _decode_fields(kind: Kind, item: Item) -> Mapping[str, Any]:
    out: dict[str, Any] = {}
    for column in kind.fields:
        ((type_, value),) = item.get(column.name, {"NULL": None}).items()
        out[column.name] = int(value) if type_ == "N" else value
    return out or NO_FIELDS


def _read_bytes(attribute: Item) -> bytes:
    return bytes(attribute["B"])


# Finding


def name_catalogue_bucket(space: str, number: int) -> bytes:
    """Return the index's partition key for one bucket of the catalogue of a space."""
    return b"c" + bytes((number,)) + space.encode("utf-8", "surrogatepass")


def encode_catalogue_order(tenant: str | None, thread: str = "") -> bytes:
    """Return the encoded position of a partition in the catalogue, unshortened. The prefix of a thread's name
    gives the prefix of the positions of these threads, and no tenant the prefix of all positions."""
    if tenant is None:
        return _CATALOGUE
    return _CATALOGUE + keys.encode_text(tenant) + thread.encode("utf-8", "surrogatepass")


def run_entry(kind: Kind, value: str) -> bytes:
    return shorten(b"i" + kind.name.encode() + b"\x00" + value.encode("utf-8", "surrogatepass"), _SK_MAX)


def encode_tenant(tenant: str) -> bytes:
    return shorten(keys.encode_text(tenant), _SK_MAX)


def name_due_bucket(kind: Kind, number: int) -> bytes:
    """Return the index's partition key for one bucket of a kind's records that are due at a time."""
    return b"d" + bytes((number,)) + kind.name.encode()


def due_of(kind: Kind, item: Item) -> Record:
    """Return a record with the fields of its index entry: its key and the time at which it is due."""
    due = keys.decode_integer(_read_bytes(item["h"])[:8])
    return Record(*places.record_at(place_in(item)), {str(kind.index): due})


def encode_due_from(since: int) -> bytes:
    """Return the bound that is before every entry due at that time or later, and after all others."""
    return keys.encode_integer(since)


def encode_due_until(until: int) -> bytes:
    """Return the bound that is after every entry due by that time, and before all others."""
    return keys.encode_integer(until) + b"\xff" * (_TIE + 1)


def _make_index_entry(kind: Kind, partition: Partition, place: bytes, value: Any) -> Item:
    """Return the attributes by which the index finds a record by the value of its indexed field."""
    if isinstance(value, str):
        item: Item = {"g": {"B": run_entry(kind, value)}, "h": {"B": encode_tenant(partition.tenant)}}
    else:
        encoded_partition = keys.encode_partition(partition)
        # Entries due at the same time need an order that is the same for all readers.
        tie = blake2b(encoded_partition + place, digest_size=_TIE, person=b"perdure.due").digest()
        item = {
            "g": {"B": name_due_bucket(kind, keys.bucket_of(encoded_partition, BUCKETS))},
            "h": {"B": keys.encode_integer(value) + tie},
        }
    _add_long_name(item, partition)
    return item


def make_catalogue_attributes(partition: Partition) -> Item:
    """Return the attributes that put a root item into the catalogue."""
    if partition == RESERVED:
        return {}
    number = keys.bucket_of(keys.encode_partition(partition), BUCKETS)
    order = encode_catalogue_order(partition.tenant, partition.thread)
    item: Item = {
        "g": {"B": name_catalogue_bucket(partition.space, number)},
        "h": {"B": sort_key(order)},
    }
    _add_long_name(item, partition)
    return item


def _add_long_name(item: Item, partition: Partition) -> None:
    full = keys.encode_partition(partition)
    if len(full) > _PK_MAX:
        item["n"] = {"B": full}


# The root item


def root_of(item: Item) -> PartitionRoot:
    """Return the root of a root item; ``NO_ROOT`` for an empty item, as there is none."""
    if not item:
        return NO_ROOT
    records = {}
    for name, (kind, key) in EMBEDDED.items():
        if name in item:
            attributes = item[name]["M"]
            records[name] = _make_record(kind, key, attributes, _read_bytes(attributes.get("b", _NO_BYTES)))
    dead = tuple(bytes(name) for name in item.get("dead", {"BS": ()})["BS"])
    parts = parts_of(item.get(ITEM.name, {"M": {}})["M"])
    incarnation = _read_bytes(item.get("inc", _NO_BYTES))
    return PartitionRoot(incarnation, _read_bytes(item["rev"]), records, dead, parts=parts)
