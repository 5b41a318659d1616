"""Translates requests of the port to calls of scripts, and their answers back: names, arguments, bytes.

All keys of a bucket have its number as their hash tag, so that they share a slot: a partition's records (a
hash) and their order (a sorted set), and for the whole bucket a catalogue of each space, an index of records
by their indexed field, and one of queues that are due (sorted sets). The mark of a bucket (a string) is the
layout version to which it was migrated; a bucket without a mark has the layout with which the database was
created.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from redis.crc import key_slot

from perdure.model.ops import (
    Check,
    Commit,
    Committed,
    Delete,
    Drop,
    Expect,
    Expectation,
    Fetch,
    Get,
    Op,
    Put,
    Range,
    Refused,
    Stage,
)
from perdure.model.records import RESERVED, THREADS, Kind, Partition, Record
from perdure.model.values.compression import compress_body
from perdure.storage.evaluation import order_by_field
from perdure.storage.kv.keys import (
    bucket_of,
    decode_key,
    decode_partition,
    encode_integer,
    encode_key,
    encode_partition,
    encode_prefix,
    find_layout,
    successor,
)
from perdure.storage.redis import scripts
from perdure.storage.redis.cluster import Call, evaluate

_CODES = {Put: 1, Delete: 2, Check: 3}
_EXPECT: dict[Expectation, int] = {Expect.ANY: 0, Expect.ABSENT: 1, Expect.PRESENT: 2}
_VERSION = 3
_BODIES, _REVERSE, _BY = 1, 2, 4
_ALL = 0xFFFFFFFF
_U32 = struct.Struct(">I")
_OP = struct.Struct(">BBBI")
_RANGE = struct.Struct(">BBII")
_COLUMN = struct.Struct(">II")


class PartitionKeys(NamedTuple):
    """The slot, keys and script arguments of a partition."""

    slot: int
    keys: tuple[bytes, bytes, bytes, bytes, bytes, bytes]
    encoded: bytes
    records: bytes
    listed: bytes
    life: bytes


class Keyspace:
    """The names of all keys under a prefix, spread over a number of buckets."""

    def __init__(self, prefix: bytes, buckets: int, life: int) -> None:
        self.prefix = prefix
        self.buckets = buckets
        self._life = life
        self.place = lru_cache(maxsize=8192)(self._make_partition_keys)

    def bucket(self, number: int) -> bytes:
        """Return the prefix of the names of a bucket's keys."""
        return b"%b:{%d}:" % (self.prefix, number)

    def records(self, number: int) -> bytes:
        """Return the prefix of the names of a bucket's hashes of records."""
        return self.bucket(number) + b"r:"

    def catalogue(self, number: int, space: str) -> bytes:
        return self.bucket(number) + b"c:" + space.encode()

    def index(self, number: int, *, polled: bool = False) -> bytes:
        return self.bucket(number) + (b"d" if polled else b"i")

    def mark(self, number: int) -> bytes:
        return self.bucket(number) + b"v"

    def slot(self, number: int) -> int:
        return int(key_slot(self.bucket(number)))

    def _make_partition_keys(self, partition: Partition) -> PartitionKeys:
        encoded = encode_partition(partition)
        number = bucket_of(encoded, self.buckets)
        bucket = self.bucket(number)
        return PartitionKeys(
            self.slot(number),
            (
                self.records(number) + encoded,
                bucket + b"o:" + encoded,
                self.catalogue(number, partition.space),
                self.index(number),
                self.index(number, polled=True),
                self.mark(number),
            ),
            encoded,
            self.records(number),
            b"0" if partition == RESERVED else b"1",
            b"%d" % self._life if partition.space == THREADS and partition != RESERVED else b"0",
        )


def name(kind: Kind, key: Sequence[Any]) -> bytes:
    """Return a record's name within its partition."""
    return b"%b:%b" % (kind.name.encode(), encode_key(kind, tuple(key)))


# Writing


def commit(space: Keyspace, effect: Commit | Stage) -> Call:
    """Return the call for a commit, or for a stage, which expects nothing: it may be executed twice."""
    partition_keys = space.place(effect.partition)
    args = [partition_keys.encoded, partition_keys.listed, partition_keys.life, partition_keys.records]
    for op in effect.ops:
        _append_op(args, op)
    return evaluate(scripts.COMMIT, partition_keys.slot, partition_keys.keys, args, isinstance(effect, Stage))


def _append_op(args: list[bytes], op: Op) -> None:
    kind = op.kind
    field = name(kind, op.key)
    split = 0
    if kind.by:
        split = len(field) - len(encode_key(kind, op.key)) + len(encode_prefix(kind, op.key[:-1]))
    expect = _EXPECT.get(op.expect, _VERSION)
    head = _OP.pack(_CODES[type(op)], scripts.NUMBERS[kind], expect, split)
    if isinstance(op.expect, int):
        head += encode_integer(op.expect)
    args += (head, field)
    if isinstance(op, Put):
        args.append(find_layout(kind).pack(op.fields, op.version, compress_body(op)))
    elif isinstance(op, Delete):
        args.append(b"".join(_encode_columns(kind, op)))


def _encode_columns(kind: Kind, op: Delete) -> Iterator[bytes]:
    for column, value in op.unchanged.items():
        position, data = find_layout(kind).column(column, value)
        yield _COLUMN.pack(position, len(data))
        yield data


def parse_commit(effect: Commit | Stage, answer: Any) -> Committed | Refused | None:
    """Return the outcome of ``commit`` from its answer."""
    if isinstance(effect, Stage):
        return None
    if not answer:
        return Committed()
    op = effect.ops[int(answer) - 1]
    return Refused(op.kind, op.key)


def drop(space: Keyspace, effect: Drop) -> Call:
    if effect.if_empty:
        # Its name was removed with its last record.
        return now(space)
    partition_keys = space.place(effect.partition)
    args = [partition_keys.encoded, partition_keys.records]
    for check in effect.checks:
        _append_op(args, check)
    return evaluate(scripts.DROP, partition_keys.slot, partition_keys.keys, args, safe=True)


def parse_drop(effect: Drop, answer: Any) -> Committed | Refused:
    """Return the outcome of ``drop`` from its answer."""
    if effect.if_empty or not answer:
        return Committed()
    check = effect.checks[int(answer) - 1]
    return Refused(check.kind, check.key)


# Reading


def now(space: Keyspace) -> Call:
    """Return the call that reads the time; on a cluster always from the owner of the first bucket."""
    return Call(space.slot(0), (b"TIME",), safe=True)


def read_server_time(answer: Sequence[bytes]) -> int:
    """Return the time of ``now`` from its answer, in microseconds since 1970."""
    seconds, micros = answer
    return int(seconds) * 1_000_000 + int(micros)


def fetch(space: Keyspace, effect: Fetch) -> Call:
    """Return the call that reads all items of a fetch."""
    partition_keys = space.place(effect.partition)
    gets = [name(item.kind, item.key) for item in effect.items if isinstance(item, Get)]
    args = [b"%d" % len(gets), *gets]
    for item in effect.items:
        if isinstance(item, Range):
            args += _encode_range(item)
    return evaluate(
        scripts.FETCH,
        partition_keys.slot,
        (*partition_keys.keys[:2], partition_keys.keys[-1]),
        args,
        safe=True,
    )


def _has_stored_order(item: Range) -> bool:
    """Return True if a stored order serves the range. A stored order by a field has the keys that differ in
    their last part only."""
    return item.by is None or (item.by in item.kind.by and len(item.prefix) == len(item.kind.key) - 1)


def _encode_range(item: Range) -> tuple[bytes, bytes, bytes]:
    kind = item.kind
    has_order = _has_stored_order(item)
    by, separator = None, b":"
    if item.by is not None and has_order:
        by, separator = item.by, b"@%b:" % item.by.encode()
    base = kind.name.encode() + separator + encode_prefix(kind, item.prefix)
    low, high = b"[" + base, b"(" + successor(base)
    if by is None and len(item.prefix) == len(kind.key):
        high = b"[" + base
    if item.after is not None and has_order:
        edge = _encode_edge(item, base)
        if item.reverse:
            high = min(high, b"(" + edge, key=lambda bound: (bound[1:], bound[:1] == b"["))
        else:
            past = b"[" if item.by else b"("
            low = max(low, past + edge, key=lambda bound: (bound[1:], bound[:1] == b"("))
    flags = _BODIES * item.bodies + _REVERSE * (item.reverse and has_order) + _BY * (by is not None)
    limit = _ALL if item.limit is None or not has_order else item.limit
    return _RANGE.pack(scripts.NUMBERS[kind], flags, limit, len(base)), low, high


def _encode_edge(item: Range, base: bytes) -> bytes:
    """Return the bound between the keys up to ``after`` and those that follow."""
    if not item.by:
        return name(item.kind, item.after)
    edge = base + encode_integer(item.after)
    if item.reverse:
        return edge
    return successor(edge)


def parse_fetch(effect: Fetch, data: bytes) -> tuple[tuple[Record, ...], ...]:
    """Return the records of ``fetch`` from its answer."""
    size = _U32.unpack_from
    offset = 0
    gets: list[tuple[Record, ...]] = []
    ranges: list[tuple[Record, ...]] = []
    for item in effect.items:
        if isinstance(item, Get):
            (length,) = size(data, offset)
            offset += 4
            if length == _ALL:
                gets.append(())
            else:
                gets.append((find_layout(item.kind).record(item.key, data[offset : offset + length]),))
                offset += length
    for item in effect.items:
        if isinstance(item, Range):
            (count,) = size(data, offset)
            offset += 4
            records: list[Record] = []
            kind_layout = find_layout(item.kind)
            for _ in range(count):
                (length,) = size(data, offset)
                offset += 4 + length
                key = decode_key(item.kind, data[offset - length : offset])
                (length,) = size(data, offset)
                offset += 4 + length
                records.append(kind_layout.record(key, data[offset - length : offset]))
            ranges.append(tuple(records if _has_stored_order(item) else order_by_field(item, records)))
    of_gets, of_ranges = iter(gets), iter(ranges)
    return tuple(next(of_gets if isinstance(item, Get) else of_ranges) for item in effect.items)


def parse_indexed(kind: Kind, answer: Sequence[bytes]) -> Iterator[tuple[Partition, Record]]:
    """Yield the records of the script ``indexed`` from its answer."""
    kind_layout = find_layout(kind)
    for start in range(0, len(answer), 3):
        partition, key, data = answer[start : start + 3]
        record = kind_layout.record(decode_key(kind, key), data)
        yield decode_partition(partition), Record(kind, record.key, record.fields)
