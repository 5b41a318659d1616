"""Encodes keys, partitions and records as bytes, for backends that store bytes only.

Encoded keys are injective and in the order of what they encode, so that a range of keys is a range of bytes.
Every part of a key except the last ends in a mark that no part contains. A record is its version, the
integers that order it, its indexed field, its other fields, and its body, in that order.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Any
from zlib import crc32

import ormsgpack

from perdure.errors import TooLarge
from perdure.model.records import Column, Key, Kind, Partition, Record

LAYOUT_VERSION = 6
"""The version of the encodings of this module; a change of the declared kinds changes it too."""

FIRST_VERSION = 6
"""The oldest readable version. Records of this version and later ones stay readable, so that a migration only
raises the version number."""

_END = b"\x00\x01"
_NUL, _ESCAPED = b"\x00", b"\x00\xff"
_SIGN = 1 << 63
_LARGEST = (1 << 64) - 1
_INTEGER = struct.Struct(">Q")
_SIZE = struct.Struct(">I")
_NULL_SIZE = 0xFFFFFFFF
_REST_FIELDS_MOST = 15


def encode_integer(value: int) -> bytes:
    """Return eight bytes in the order of the numbers; raise ``TooLarge`` past 64 bits."""
    shifted = value + _SIGN
    if not 0 <= shifted <= _LARGEST:
        raise TooLarge(f"the number {value} does not fit 64 bits; nothing of this write was stored")
    return _INTEGER.pack(shifted)


def decode_integer(data: bytes) -> int:
    return int(_INTEGER.unpack(data)[0]) - _SIGN


def _encode_bare(column: Column, value: Any) -> bytes:
    if column.kind == "integer":
        return encode_integer(value)
    if column.kind == "bytes":
        return bytes(value)
    return str(value).encode("utf-8", "surrogatepass")


def _encode_with_end(column: Column, value: Any) -> bytes:
    data = _encode_bare(column, value)
    if column.kind == "integer":
        return data
    return data.replace(_NUL, _ESCAPED) + _END


def _decode_bare(column: Column, data: bytes) -> Any:
    if column.kind == "integer":
        return decode_integer(data)
    if column.kind == "bytes":
        return data
    return data.decode("utf-8", "surrogatepass")


def encode_key(kind: Kind, key: Key) -> bytes:
    """Return a whole key, in the order of the kind's keys."""
    columns = kind.key
    if len(columns) == 1:
        return _encode_bare(columns[0], key[0])
    if not columns:
        return b""
    return encode_prefix(kind, key[:-1]) + _encode_bare(columns[-1], key[-1])


def encode_prefix(kind: Kind, parts: Key) -> bytes:
    """Return the prefix of every key that begins with these parts. All parts make a whole key."""
    if len(parts) == len(kind.key):
        return encode_key(kind, parts)
    return encode_parts(kind, parts)


def encode_parts(kind: Kind, parts: Key) -> bytes:
    """Return the first parts of a key, or all of them, each with its mark, so that no encoded key is a prefix
    of another one."""
    return b"".join([_encode_with_end(c, v) for c, v in zip(kind.key, parts, strict=False)])


def decode_parts(kind: Kind, data: bytes) -> Key:
    """Return the parts that ``encode_parts`` was given."""
    parts: list[Any] = []
    for column in kind.key:
        if not data:
            break
        part, data = _decode_first_part(column, data)
        parts.append(part)
    return tuple(parts)


def decode_key(kind: Kind, data: bytes) -> Key:
    """Return the key that ``encode_key`` was given."""
    columns = kind.key
    if len(columns) == 1:
        return (_decode_bare(columns[0], data),)
    if not columns:
        return ()
    out: list[Any] = []
    for column in columns[:-1]:
        part, data = _decode_first_part(column, data)
        out.append(part)
    return (*out, _decode_bare(columns[-1], data))


def _decode_first_part(column: Column, data: bytes) -> tuple[Any, bytes]:
    """Return the part at the beginning of an encoded key, and the rest."""
    if column.kind == "integer":
        return _decode_bare(column, data[:8]), data[8:]
    part, _, rest = data.partition(_END)
    return _decode_bare(column, part.replace(_ESCAPED, _NUL)), rest


def successor(prefix: bytes) -> bytes:
    """Return the least bytes that sort after all bytes with this prefix; empty if there are none."""
    kept = prefix.rstrip(b"\xff")
    if kept:
        return kept[:-1] + bytes((kept[-1] + 1,))
    return b""


def encode_text(value: str) -> bytes:
    """Return text with the mark that ends it before other parts."""
    return value.encode("utf-8", "surrogatepass").replace(_NUL, _ESCAPED) + _END


def encode_partition(partition: Partition) -> bytes:
    """Return a partition, in the order of tenant, space and name."""
    tail = partition.thread.encode("utf-8", "surrogatepass")
    return encode_text(partition.tenant) + encode_text(partition.space) + tail


def decode_partition(data: bytes) -> Partition:
    """Return the partition that ``encode_partition`` was given."""
    tenant, _, rest = data.partition(_END)
    space, _, thread = rest.partition(_END)
    tenant, space = tenant.replace(_ESCAPED, _NUL), space.replace(_ESCAPED, _NUL)
    return Partition(*(part.decode("utf-8", "surrogatepass") for part in (tenant, thread, space)))


def bucket_of(encoded: bytes, buckets: int) -> int:
    """Return the bucket, from 0, of an encoded partition: the same in every process and release."""
    return crc32(encoded) % buckets


class KindLayout:
    """The packed form of the records of one kind: first the ``ordered`` integers at fixed positions (the
    field that grows, then those that order), then the indexed field, then the ``rest``."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        names = (*((kind.grows,) if kind.grows else ()), *kind.by)
        columns = {c.name: c for c in kind.fields}
        if any(columns[name].kind != "integer" or columns[name].nullable for name in names):
            raise TypeError(f"{kind.name}: only integers that are never null order or grow")
        if len(kind.fields) - len(names) - bool(kind.index) > _REST_FIELDS_MOST:
            raise TypeError(
                f"{kind.name}: scripts read at most {_REST_FIELDS_MOST} further fields of a record"
            )
        self.ordered = names
        self.index = columns[kind.index] if kind.index else None
        self.rest = tuple(c.name for c in kind.fields if c.name not in (*names, kind.index))
        self.head = 8 * (kind.versioned + len(names))

    def pack(self, fields: Any, version: int, body: bytes) -> bytes:
        """Return the bytes of a record; raise ``TooLarge`` if a number does not fit."""
        out: list[bytes] = []
        if self.kind.versioned:
            out.append(encode_integer(version))
        out += [encode_integer(fields[name]) for name in self.ordered]
        if self.index is not None:
            out += self._pack_index(fields[self.index.name])
        if self.rest:
            packed = _pack([fields[name] for name in self.rest])
            out += (_SIZE.pack(len(packed)), packed)
        out.append(body)
        return b"".join(out)

    def column(self, name: str, value: Any) -> tuple[int, bytes]:
        """Return the position of a field (from 0: ordered, then indexed, then the rest) and its bytes for a
        value."""
        if name in self.ordered:
            return self.ordered.index(name), encode_integer(value)
        first = len(self.ordered)
        if self.index is not None:
            if name == self.index.name:
                return first, b"".join(self._pack_index(value))
            first += 1
        return first + self.rest.index(name), _pack(value)

    def record(self, key: Key, data: bytes) -> Record:
        """Return the record that ``pack`` was given."""
        kind = self.kind
        version, at = 0, 0
        if kind.versioned:
            version, at = decode_integer(data[:8]), 8
        fields: dict[str, Any] = {}
        for name in self.ordered:
            fields[name] = decode_integer(data[at : at + 8])
            at += 8
        if self.index is not None:
            (size,) = _SIZE.unpack_from(data, at)
            at += 4
            fields[self.index.name] = None
            if size != _NULL_SIZE:
                fields[self.index.name] = self._decode_index(data[at : at + size])
                at += size
        if self.rest:
            (size,) = _SIZE.unpack_from(data, at)
            at += 4 + size
            fields.update(zip(self.rest, ormsgpack.unpackb(data[at - size : at]), strict=True))
        return Record(kind, key, fields, version, data[at:])

    def index_prefix(self, value: Any) -> bytes:
        """Return the prefix of an index entry for a value."""
        if self.index is None:
            raise TypeError(f"{self.kind.name} has no index")
        return _encode_with_end(self.index, value)

    def _decode_index(self, data: bytes) -> Any:
        if self.index is None or self.index.kind == "integer":
            return decode_integer(data)
        return _decode_bare(self.index, data.removesuffix(_END).replace(_ESCAPED, _NUL))

    def _pack_index(self, value: Any) -> list[bytes]:
        if value is None:
            return [_SIZE.pack(_NULL_SIZE)]
        packed = self.index_prefix(value)
        return [_SIZE.pack(len(packed)), packed]


@lru_cache(maxsize=64)
def find_layout(kind: Kind) -> KindLayout:
    """Return the packed form of a kind's records."""
    return KindLayout(kind)


def _pack(value: Any) -> bytes:
    try:
        return ormsgpack.packb(value)
    except ormsgpack.MsgpackEncodeError as error:
        raise TooLarge(f"a field cannot be stored ({error}); nothing of this write was stored") from error
