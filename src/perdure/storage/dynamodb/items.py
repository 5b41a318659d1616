"""Translates records to items of the table, and operations to actions of a transaction. Pure.

A partition has one *root* item: the incarnation under which its records are stored, the revision that the
latest commit gave it, and the records of kinds without a key. Every other record is an item of its own, in an
item collection for each partition, incarnation and kind. A body too large for an item is stored beside it in
parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, NamedTuple

from perdure.model.ops import Check, Delete, Expect, Expectation, Op, Put
from perdure.model.records import KINDS, NO_FIELDS, RESERVED, Column, Key, Kind, Partition, Record
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
_KEY = b"k"
KEPT = len(_KEY) + _SK_MAX
"""The length above which a sort key is a shortened one; up to it, it is the encoded key."""
_PARTS = b"\x00parts"

EMBEDDED = tuple(kind for kind in KINDS if not kind.key and not kind.body)
"""Kinds of which a partition has one small record: they are attributes of its root item."""

PLAIN = tuple(kind for kind in KINDS if kind not in EMBEDDED)

INDEXED = ("n", "k", *dict.fromkeys(c.name for k in PLAIN if k.index == "run_id" for c in k.fields))
"""The attributes that the index for finding has besides its keys."""


class PartitionRoot(NamedTuple):
    """A partition's root item. ``incarnation`` is empty while the partition holds nothing; ``dead`` names the
    incarnations whose records are still to be removed."""

    incarnation: bytes
    revision: bytes
    records: Mapping[str, Record]
    dead: tuple[bytes, ...] = ()


def shortened(encoded: bytes, kept: int) -> bytes:
    """Return bytes that identify encoded ones. Up to ``kept`` bytes are returned as they are; the rest of
    longer ones is replaced by a digest, so those that are equal up to there have no order."""
    if len(encoded) <= kept:
        return encoded
    return encoded[:kept] + blake2b(encoded, digest_size=_DIGEST, person=b"perdure.key").digest()


# Where things are


def root_key(partition: Partition) -> Item:
    return {
        "pk": {"B": b"r" + shortened(keys.encode_partition(partition), _PK_MAX)},
        "sk": {"B": ROOT_SK},
    }


def collection(partition: Partition, incarnation: bytes, kind: Kind, *, parts: bool = False) -> bytes:
    """Return the partition key of an item collection.

    Args:
        partition: The partition.
        incarnation: Its incarnation.
        kind: The kind of the records.
        parts: True for the collection of the parts of their bodies.
    """
    name = kind.name.encode() + (_PARTS if parts else b"")
    return b"d" + incarnation + name + b"\x00" + shortened(keys.encode_partition(partition), _PK_MAX)


def sort_key(encoded: bytes) -> bytes:
    return _KEY + shortened(encoded, _SK_MAX)


def past(edge: bytes) -> bytes:
    """Return the least sort key that can belong to an encoded key above ``edge``."""
    whole = _KEY + edge
    return whole + b"\x00" if len(whole) <= KEPT else whole[:KEPT]


def upto(edge: bytes) -> bytes:
    """Return the greatest sort key that can belong to an encoded key below ``edge``."""
    whole = _KEY + edge
    return whole if len(whole) <= KEPT else whole[:KEPT] + b"\xff" * _DIGEST


def key_of(partition: Partition, incarnation: bytes, kind: Kind, key: Key) -> Item:
    return {
        "pk": {"B": collection(partition, incarnation, kind)},
        "sk": {"B": sort_key(keys.encode_key(kind, key))},
    }


def partition_of(item: Item) -> Partition:
    """Return the partition of an item that the index for finding holds."""
    if "n" in item:
        return keys.decode_partition(_bytes(item["n"]))
    pk = _bytes(item["pk"])
    return keys.decode_partition(pk[1:] if pk[:1] == b"r" else pk[1 + INCARNATION :].split(b"\x00", 1)[1])


def part_keys(partition: Partition, incarnation: bytes, kind: Kind, nonce: bytes, count: int) -> list[Item]:
    pk = {"B": collection(partition, incarnation, kind, parts=True)}
    return [{"pk": pk, "sk": {"B": nonce + n.to_bytes(4, "big")}} for n in range(count)]


def order_prefix(kind: Kind, prefix: Key) -> bytes:
    """Return the prefix of the ordering attribute for records of one key prefix."""
    return _KEY + shortened(keys.encode_prefix(kind, prefix), _SK_MAX - 8)


# Records


def encoded_key(item: Item) -> bytes:
    """Return the full encoded key of a record's item."""
    return _bytes(item["k"]) if "k" in item else _bytes(item["sk"])[len(_KEY) :]


def item_of(partition: Partition, incarnation: bytes, put: Put) -> Item:
    """Return the item of a record, without its body."""
    kind = put.kind
    full = keys.encode_key(kind, put.key)
    item: Item = {**key_of(partition, incarnation, kind, put.key), "v": {"N": str(put.version)}}
    if len(full) > _SK_MAX:
        item["k"] = {"B": full}
    item.update(_fields(kind, put.fields))
    for by in kind.by:
        item["o"] = {"B": order_prefix(kind, put.key[:-1]) + keys.encode_integer(put.fields[by])}
    if kind.index is not None and (value := put.fields[kind.index]) is not None:
        if kind.expires:
            item["x"] = {"N": str(-(-value // 1_000_000))}
        else:
            item.update(_entry(kind, partition, full, value))
    return item


def record_of(kind: Kind, item: Item, body: bytes = b"") -> Record:
    """Return the record of an item.

    Args:
        kind: The kind of the record.
        item: The item.
        body: The body, if it is stored in parts; otherwise the item's own is used.
    """
    if not body and "b" in item:
        body = _bytes(item["b"])
    key = keys.decode_key(kind, encoded_key(item))
    version = int(item["v"]["N"]) if "v" in item else 0
    return Record(kind, key, _values(kind, item), version, body)


def parts_of(item: Item) -> tuple[bytes, int] | None:
    """Return the name and number of the parts in which an item's body is stored, if it is."""
    return (_bytes(item["p"]), int(item["pn"]["N"])) if "p" in item else None


def is_expired(item: Item, now: float) -> bool:
    """Return True if the service may be removing an item."""
    return "x" in item and int(item["x"]["N"]) <= now


def _fields(kind: Kind, fields: Mapping[str, Any]) -> Item:
    return {c.name: _attribute(c, fields[c.name]) for c in kind.fields if fields[c.name] is not None}


def _attribute(column: Column, value: Any) -> Item:
    if column.kind == "integer":
        return {"N": str(value)}
    return {"S": value} if column.kind == "text" else {"B": value}


def _values(kind: Kind, item: Item) -> Mapping[str, Any]:
    out: dict[str, Any] = {}
    for column in kind.fields:
        ((type_, value),) = item.get(column.name, {"NULL": None}).items()
        out[column.name] = int(value) if type_ == "N" else value
    return out or NO_FIELDS


def _bytes(attribute: Item) -> bytes:
    return bytes(attribute["B"])


# Finding


def catalogue_entry(space: str, number: int) -> bytes:
    """Return the index's partition for one bucket of the catalogue of a space."""
    return b"c" + bytes((number,)) + space.encode("utf-8", "surrogatepass")


def catalogue_order(tenant: str, thread: str) -> bytes:
    """Return the encoded position of a partition in the catalogue, unshortened; prefixes of names encode to
    prefixes."""
    return keys.encode_text(tenant) + thread.encode("utf-8", "surrogatepass")


def run_entry(kind: Kind, value: str) -> bytes:
    return shortened(b"i" + kind.name.encode() + b"\x00" + value.encode("utf-8", "surrogatepass"), _SK_MAX)


def tenant_entry(tenant: str) -> bytes:
    return shortened(keys.encode_text(tenant), _SK_MAX)


def due_entry(kind: Kind, number: int) -> bytes:
    """Return the index's partition for one bucket of a kind's records that are due at a time."""
    return b"d" + bytes((number,)) + kind.name.encode()


def due_of(kind: Kind, item: Item) -> Record:
    """Return a record of what its index entry holds: its key and the time at which it is due."""
    due = keys.decode_integer(_bytes(item["h"])[:8])
    return Record(kind, keys.decode_key(kind, encoded_key(item)), {str(kind.index): due})


def due_from(since: int) -> bytes:
    """Return the bound before every entry that is due at that time or later, and behind all others."""
    return keys.encode_integer(since)


def due_until(until: int) -> bytes:
    """Return the bound behind every entry that is due by then, and before all others."""
    return keys.encode_integer(until) + b"\xff" * (_TIE + 1)


def _entry(kind: Kind, partition: Partition, key: bytes, value: Any) -> Item:
    """Return the attributes by which the index finds a record by the value of its indexed field."""
    if isinstance(value, str):
        item: Item = {"g": {"B": run_entry(kind, value)}, "h": {"B": tenant_entry(partition.tenant)}}
    else:
        place = keys.encode_partition(partition)
        # Entries due at the same time need an order that is the same for all readers.
        tie = blake2b(place + key, digest_size=_TIE, person=b"perdure.due").digest()
        item = {
            "g": {"B": due_entry(kind, keys.bucket_of(place, BUCKETS))},
            "h": {"B": keys.encode_integer(value) + tie},
        }
    _name(item, partition)
    return item


def catalogued(partition: Partition) -> Item:
    """Return the attributes that put a root item into the catalogue."""
    if partition == RESERVED:
        return {}
    number = keys.bucket_of(keys.encode_partition(partition), BUCKETS)
    order = catalogue_order(partition.tenant, partition.thread)
    item: Item = {
        "g": {"B": catalogue_entry(partition.space, number)},
        "h": {"B": sort_key(order)},
    }
    _name(item, partition)
    return item


def _name(item: Item, partition: Partition) -> None:
    full = keys.encode_partition(partition)
    if len(full) > _PK_MAX:
        item["n"] = {"B": full}


# The root item


def root_of(item: Item) -> PartitionRoot:
    records = {}
    for kind in EMBEDDED:
        if kind.name in item:
            held = item[kind.name]["M"]
            records[kind.name] = Record(kind, (), _values(kind, held), int(held["v"]["N"]))
    dead = tuple(bytes(name) for name in item.get("dead", {"BS": ()})["BS"])
    incarnation = _bytes(item["inc"]) if "inc" in item else b""
    return PartitionRoot(incarnation, _bytes(item["rev"]), records, dead)


@dataclass(slots=True)
class Expression:
    """Conditions and assignments of one action, with the names and values that they use."""

    conditions: list[str] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    values: Item = field(default_factory=dict)

    def name(self, attribute: str) -> str:
        self.names[f"#{attribute}"] = attribute
        return f"#{attribute}"

    def value(self, value: Item) -> str:
        name = f":v{len(self.values)}"
        self.values[name] = value
        return name

    def filled(self) -> Item:
        """Return the parameters of an action, as far as there are any."""
        out: Item = {}
        if self.conditions:
            out["ConditionExpression"] = " AND ".join(self.conditions)
        if self.names:
            out["ExpressionAttributeNames"] = self.names
        if self.values:
            out["ExpressionAttributeValues"] = self.values
        return out


def root_action(
    table: str,
    partition: Partition,
    root: PartitionRoot | None,
    incarnation: bytes,
    revision: bytes,
    ops: Sequence[Op],
) -> Item:
    """Return the action on the root item that every commit has.

    It checks that the partition still has its incarnation, sets its new revision, and carries out the
    operations on records inside the root.

    Args:
        table: The table's name.
        partition: The partition.
        root: Its root as it is known.
        incarnation: Its incarnation, new if it has none.
        revision: The new revision; empty for a commit without puts and deletes, which only checks.
        ops: The operations on records inside the root.
    """
    e = Expression()
    if root is not None and root.incarnation:
        e.conditions.append(f"inc = {e.value({'B': incarnation})}")
    else:
        e.conditions.append("attribute_not_exists(inc)")
    sets: list[str] = []
    removes: list[str] = []
    for op in ops:
        if isinstance(op, Check) and op.expect is Expect.ANY:
            continue
        path = e.name(op.kind.name)
        expect(e, op.expect, f"attribute_exists({path})", f"attribute_not_exists({path})", f"{path}.v")
        if isinstance(op, Delete):
            unchanged(e, op, f"attribute_exists({path})", f"{path}.")
            removes.append(path)
        elif isinstance(op, Put):
            held = {"v": {"N": str(op.version)}, **_fields(op.kind, op.fields)}
            sets.append(f"{path} = {e.value({'M': held})}")
    target = {
        "TableName": table,
        "Key": root_key(partition),
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
    }
    if not revision:
        return {"ConditionCheck": {**target, **e.filled()}}
    sets.append(f"rev = {e.value({'B': revision})}")
    if root is None or not root.incarnation:
        sets.append(f"inc = {e.value({'B': incarnation})}")
        sets += [f"{e.name(n)} = {e.value(v)}" for n, v in catalogued(partition).items()]
    update = "SET " + ", ".join(sets) + (" REMOVE " + ", ".join(removes) if removes else "")
    return {"Update": {**target, "UpdateExpression": update, **e.filled()}}


# Operations


class Learned(NamedTuple):
    """Facts from a failed attempt about the item of an operation: the parts of its body, and ``grown``, True
    if its growing field is greater than the operation would set it."""

    parts: tuple[bytes, int] | None = None
    grown: bool = False


def action_of(
    table: str, partition: Partition, incarnation: bytes, op: Op, body: Item, seen: Learned
) -> Item:
    """Return the action of an operation on a record with an item of its own.

    Args:
        table: The table's name.
        partition: The partition.
        incarnation: Its incarnation.
        op: The operation.
        body: The attributes that carry the body.
        seen: The facts from the last attempt.
    """
    e = Expression()
    key = key_of(partition, incarnation, op.kind, op.key)
    expect(e, op.expect, PRESENT, ABSENT, "v")
    if isinstance(op, Delete):
        unchanged(e, op, PRESENT, "")
    if op.kind.body and not isinstance(op, Check) and op.expect is not Expect.ABSENT:
        e.conditions.append("attribute_not_exists(p)" if not seen.parts else f"p = {_nonce(e, seen.parts)}")
    common: Item = {"TableName": table, "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
    if isinstance(op, Put) and op.kind.grows is not None and op.expect is not Expect.ABSENT:
        grows = e.name(op.kind.grows)
        size = e.value({"N": str(op.fields[op.kind.grows])})
        if seen.grown:
            e.conditions.append(f"{grows} >= {size}")
            return {"ConditionCheck": {**common, "Key": key, **e.filled()}}
        e.conditions.append(f"({ABSENT} OR {grows} <= {size})")
    if isinstance(op, Put):
        item = {**item_of(partition, incarnation, op), **body}
        return {"Put": {**common, "Item": item, **e.filled()}}
    if isinstance(op, Check):
        if not e.conditions:
            e.conditions.append(f"({PRESENT} OR {ABSENT})")
        return {"ConditionCheck": {**common, "Key": key, **e.filled()}}
    return {"Delete": {**common, "Key": key, **e.filled()}}


def _nonce(e: Expression, parts: tuple[bytes, int]) -> str:
    return e.value({"B": parts[0]})


def expect(e: Expression, expected: Expectation, present: str, absent: str, version: str) -> None:
    """Add the condition of an expectation.

    Args:
        e: The expression to extend.
        expected: The expectation.
        present: The condition that the record exists.
        absent: The condition that it does not.
        version: The path of its version.
    """
    if expected is Expect.PRESENT:
        e.conditions.append(present)
    elif expected is Expect.ABSENT:
        e.conditions.append(absent)
    elif isinstance(expected, int):
        e.conditions.append(f"{version} = {e.value({'N': str(expected)})}")


def unchanged(e: Expression, op: Delete, present: str, path: str) -> None:
    """Add the conditions of a delete that requires fields to be unchanged.

    Args:
        e: The expression to extend.
        op: The delete.
        present: The condition that the record exists.
        path: The prefix of its attributes.
    """
    columns = {column.name: column for column in op.kind.fields}
    for name, value in op.unchanged.items():
        attribute = f"{path}{e.name(name)}"
        if value is None:
            e.conditions += [present, f"attribute_not_exists({attribute})"]
        else:
            e.conditions.append(f"{attribute} = {e.value(_attribute(columns[name], value))}")


def holds(op: Op, record: Record | None) -> bool:
    """Return True if an operation's own expectation holds for the stored record."""
    wanted = op.unchanged if isinstance(op, Delete) else {}
    if wanted and (record is None or any(record.fields[name] != value for name, value in wanted.items())):
        return False
    if op.expect is Expect.ANY:
        return True
    if op.expect is Expect.ABSENT:
        return record is None
    return record is not None and op.expect in (Expect.PRESENT, record.version)
