"""Checksums of records: a row must be what was written for this record of this partition.

A checksum is two CRC-32 in one signed 64-bit integer: of the partition, kind, key, fields and version in the
upper half, of the body in the lower, so that rows read without bodies are verified too. It detects damage,
not tampering: encryption protects from changes by others who can write to the database. A field that only
grows is left out, as a later write raises it without writing the rest of the row. NULL at the end of the
fields is left out as well, so that a nullable field can be added later.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any
from zlib import crc32

from ormsgpack import packb

from perdure.errors import Corrupt
from perdure.model.records import HEAD, Key, Kind, Partition
from perdure.model.store_items import describe_partition

NAME = "checksum"
"""The name of the column."""

ADVICE = "run `perdure fsck` to see what else is, and restore it from a backup"

_HALF = 0xFFFFFFFF
_HALF_SIGN = 1 << 31
_SIGN = 1 << 63
_WHOLE = 1 << 64

ROOT_HEAD = HEAD, ("",)
"""The record whose checksum is also in the catalogue, so that an older head, or a missing one, is detected
when it is read: this record determines the thread's state."""


def checksum(
    partition: Partition, kind: Kind, key: Key, fields: Sequence[Any], version: int, body: bytes
) -> int:
    """Return the checksum of a record.

    Args:
        partition: Its partition.
        kind: Its kind.
        key: Its key.
        fields: Its fields, in the order of their declaration.
        version: Its version, 0 for kinds without versions.
        body: Its body, empty for kinds without bodies.
    """
    clear_half = _compute_clear_half(partition, kind, key, fields, version)
    return (clear_half - _HALF - 1 if clear_half & _HALF_SIGN else clear_half) << 32 | crc32(body)


def matches(
    found: Any,
    partition: Partition,
    kind: Kind,
    key: Key,
    fields: Sequence[Any],
    version: Any,
    *,
    body: bytes | None,
) -> bool:
    """Return True if a stored checksum is that of a record, whose columns may have any types.

    Args:
        found: The stored checksum.
        partition: The record's partition.
        kind: Its kind.
        key: Its key.
        fields: Its fields, in the order of their declaration.
        version: Its version.
        body: Its body, ``None`` if it was not read.
    """
    try:
        if found >> 32 & _HALF != _compute_clear_half(partition, kind, key, fields, version):
            return False
        return body is None or found & _HALF == crc32(body)
    except (TypeError, ValueError, OverflowError):
        # A column has another type than the one that was written.
        return False


def read(found: Any) -> int:
    """Return a record's stored checksum; 0 for a damaged one, which the next check of the sum reports."""
    if isinstance(found, int):
        return found
    return 0


def add(total: int, *changes: int) -> int:
    """Return a sum of checksums, in 64 bits, with further checksums added."""
    value = (total + sum(changes)) % _WHOLE
    if value >= _SIGN:
        return value - _WHOLE
    return value


@lru_cache(maxsize=4096)
def of_partition(partition: Partition) -> int:
    """Return the checksum of a partition's names in the catalogue, by which its row can also be found."""
    return int.from_bytes(blake2b(_pack(list(partition)), digest_size=8).digest(), "big", signed=True)


def damage_error(partition: Partition, kind: Kind, key: Key) -> Corrupt:
    """Return the error for a record that differs from what was written."""
    name = "/".join(part.hex() if isinstance(part, bytes) else str(part) for part in key)
    return Corrupt(
        f"{describe_partition(partition)}: {kind.name} {name or 'record'} is damaged: it is not what was "
        f"written, and was not used; {ADVICE}"
    )


def contradiction_error(partition: Partition, how: str) -> Corrupt:
    """Return the error for a partition about which two parts of the database contradict each other; ``how``
    describes the contradiction."""
    return Corrupt(f"{describe_partition(partition)}: the database is damaged: {how}; {ADVICE}")


def _compute_clear_half(
    partition: Partition, kind: Kind, key: Key, fields: Sequence[Any], version: int
) -> int:
    if kind.grows is None:
        values = [*partition, kind.name, *key, version, *fields]
        while values[-1] is None:
            values.pop()
    else:
        values = [*partition, kind.name, *key, version]
    try:
        return crc32(packb(values))
    except TypeError:
        return crc32(_pack(values))


def _pack(values: list[Any]) -> bytes:
    try:
        return packb(values)
    except TypeError:
        # Text that is not well-formed Unicode, or an integer of more than 64 bits, which no column holds.
        plain = [v.encode("utf-8", "surrogatepass") if isinstance(v, str) else v for v in values]
        try:
            return packb(plain)
        except TypeError as error:
            raise OverflowError(str(error)) from error
