"""Vectors that a commit sends along with the entries of the search index that it puts. Pure.

If they are not sent, PostgreSQL reads them from the entries. As it has no function that reads floats from
bytes, this takes longer than the rest of the put.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from struct import Struct
from typing import NamedTuple

import ormsgpack

from perdure.model.ops import Check, Commit, Put
from perdure.model.records import DOCUMENT, STORE
from perdure.storage.postgres import codec
from perdure.storage.postgres.vector_table import COLLECTION, MOST_DIMS

_ENTRY = 0x94
"""The first byte of an entry that is not sealed: an array of four."""

_VECTOR = Struct(">ihh")

Values = tuple[bytes, bytes, bytes, bytes]
"""Numbers, items, digests and vectors, each an array in binary: the last arguments of ``vectors_sent``."""


class _Row(NamedTuple):
    job: int
    place: int
    item: str
    model: bytes
    content: bytes
    vector: bytes


def pack_vectors(writes: Sequence[codec.Write], vector_type: int) -> Values | None:
    """Return the vectors of all entries that the requests put. ``None`` if there are none, or if the database
    has to read them from the entries, because an entry is written twice or is not a plain one with vectors.

    Args:
        writes: The requests; the number of a job is its position among them, from 1.
        vector_type: The OID of pgvector's type.
    """
    rows: list[_Row] = []
    for row in _list_rows(writes):
        if row is None:
            return None
        rows.append(row)
    if not rows:
        return None
    numbers = [*(r.job for r in rows), *(r.place for r in rows), *(len(r.vector) // 4 for r in rows)]
    return (
        codec.pack_numbers(numbers),
        codec.pack_texts([row.item for row in rows]),
        codec.pack_blobs([*(row.model for row in rows), *(row.content for row in rows)]),
        codec.pack_array(vector_type, len(rows), b"".join([_encode_binary(row.vector) for row in rows])),
    )


def _list_rows(writes: Sequence[codec.Write]) -> Iterator[_Row | None]:
    seen = set()
    for job, write in enumerate(writes, 1):
        if write.partition.space != STORE or not isinstance(write, Commit):
            continue
        for op in write.ops:
            if op.kind is not DOCUMENT or isinstance(op, Check) or op.key[0] != COLLECTION or not op.key[1]:
                continue
            if (write.partition, op.key) in seen:
                yield None
            seen.add((write.partition, op.key))
            if isinstance(op, Put):
                yield from _list_entry_rows(job, op.key[1][1:], op.body)


def _list_entry_rows(job: int, item: str, body: bytes) -> Iterator[_Row | None]:
    try:
        if body[:1] != bytes((_ENTRY,)):
            raise ValueError
        model, content, paths, vectors = ormsgpack.unpackb(body)
    except ValueError:
        yield None
        return
    if not (isinstance(model, bytes) and isinstance(content, bytes) and isinstance(vectors, list)):
        yield None
        return
    if not vectors and not model and paths != []:
        yield None
    for place, vector in enumerate(vectors, 1):
        is_plain = isinstance(vector, bytes) and len(vector) % 4 == 0 and 0 < len(vector) <= 4 * MOST_DIMS
        yield _Row(job, place, item, model, content, vector) if is_plain else None


def _encode_binary(vector: bytes) -> bytes:
    """Return little-endian floats in pgvector's format."""
    floats = array("f", vector)
    floats.byteswap()
    return _VECTOR.pack(4 + len(vector), len(floats), 0) + floats.tobytes()
