"""Grammar of references: byte strings through which a value names the chunks that hold its bytes.

A reference is short and starts with a tag. The reference of a small value contains it; that of a larger one
names a chunk; that of a list or dict names a tree of chunks (``tree``). A reference is a function of the
value and the digest key alone, so equal values have equal references within a thread.
"""

from __future__ import annotations

from collections.abc import Iterator

from perdure.errors import Corrupt
from perdure.model.values.chunks import DIGEST_SIZE

# Types of a leaf's payload. MSGPACK is one packed value; the others are values that a serializer does not
# pack at the top level.
MSGPACK, NULL, BYTES, BYTEARRAY = 1, 2, 3, 4

INLINE = 0x00
CHUNK = 0x10
BIG = 0x20
LIST = 0x30
DICT = 0x31
SNAPSHOT = 0x40
WRAPPED = 0x50

INLINE_MAX = 64
"""Payloads up to this many bytes stay inside the reference."""

REF_MAX = 256
"""A list or dict reference longer than this is itself stored as a chunk."""

_SHORT = tuple(bytes((value,)) for value in range(0x80))
"""Encoded numbers of one byte, by number."""


def inline(payload_type: int, payload: bytes) -> bytes:
    return bytes((INLINE | payload_type,)) + payload


def chunk(payload_type: int, digest: bytes) -> bytes:
    return bytes((CHUNK | payload_type,)) + digest


def big(payload_type: int, digests: list[bytes]) -> bytes:
    return bytes((BIG | payload_type,)) + b"".join(digests)


def wrap(digest: bytes) -> bytes:
    return bytes((WRAPPED,)) + digest


def snapshot(inner: bytes) -> bytes:
    return bytes((SNAPSHOT,)) + inner


def tree(tag: int, count: int, upper: bytes, tail: bytes) -> bytes:
    """Return the reference of a list or dict: length, digest of upper levels or ``b""``, entries of the
    tail."""
    return bytes((tag, 1 if upper else 0)) + encode_varint(count) + upper + tail


def read_tree(ref: bytes) -> tuple[int, bytes, bytes]:
    """Return the arguments of ``tree`` from the reference of a list or dict, without the tag."""
    count, start = read_varint(ref, 2)
    if ref[1]:
        if len(ref) < start + DIGEST_SIZE:
            raise Corrupt("a reference ends in the middle of a digest")
        return count, ref[start : start + DIGEST_SIZE], ref[start + DIGEST_SIZE :]
    return count, b"", ref[start:]


def digests(packed: bytes) -> Iterator[bytes]:
    """Yield the digests of a run of concatenated digests."""
    if len(packed) % DIGEST_SIZE:
        raise Corrupt("a run of digests has a partial digest at its end")
    for start in range(0, len(packed), DIGEST_SIZE):
        yield packed[start : start + DIGEST_SIZE]


def encode_varint(value: int) -> bytes:
    if value <= 0x7F:
        return _SHORT[value]
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number at ``at`` and the position after it."""
    value = shift = 0
    while True:
        try:
            byte = data[at]
        except IndexError:
            raise Corrupt("a reference ends in the middle of a number") from None
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def entry(ref: bytes) -> bytes:
    """Encode one element of a list node."""
    length = len(ref)
    return (_SHORT[length] if length <= 0x7F else encode_varint(length)) + ref


def encode_dict_entry(key: bytes, ref: bytes) -> bytes:
    """Encode one item of a dict node: the packed key, then the value's reference."""
    return encode_varint(len(key)) + key + encode_varint(len(ref)) + ref


def read_entries(data: bytes) -> list[bytes]:
    """Return the references of a list node's entries."""
    out: list[bytes] = []
    at, end = 0, len(data)
    while at < end:
        size = data[at]
        at += 1
        if size > 0x7F:
            size, at = read_varint(data, at - 1)
        out.append(data[at : at + size])
        at += size
    if at != end:
        raise Corrupt("a list node ends in the middle of an entry")
    return out


def read_dict_entries(data: bytes) -> list[tuple[bytes, bytes]]:
    """Return the packed keys and references of a dict node's items."""
    flat = read_entries(data)
    if len(flat) % 2:
        raise Corrupt("a dict node has a key without a value")
    return list(zip(flat[::2], flat[1::2], strict=True))
