"""Vectors that commits send along with the entries of the search index."""

from __future__ import annotations

import struct

import ormsgpack
import pytest

from perdure.engine.items.search_index import (
    IndexEntry,
    make_generation_op,
    make_removal,
    make_stored_entry_op,
    pack,
)
from perdure.model.ops import Commit, Op
from perdure.model.records import STORE, Partition
from perdure.storage.postgres.vector_rows import pack_vectors

ADA, BOB = (Partition("", name, STORE) for name in ("users.ada", "users.bob"))
VECTOR = struct.pack("<2f", 1.5, -2.0)
IN_BINARY = struct.pack(">ihhff", 12, 2, 0, 1.5, -2.0)


def put(key: str, *vectors: bytes, model: bytes = bytes(8), paths: tuple[str, ...] | None = None) -> Op:
    return make_stored_entry_op(key, pack(IndexEntry(model, bytes(16), paths, vectors)), 1)


def test_the_vectors_of_all_entries_are_sent() -> None:
    writes = [
        Commit(ADA, (put("a", VECTOR, VECTOR), put("b", VECTOR), make_generation_op(1))),
        Commit(BOB, (put("a", VECTOR), make_removal("c"))),
    ]
    sent = pack_vectors(writes, 4711)
    assert sent is not None
    numbers, items, _, vectors = sent
    assert [n for _, n in struct.iter_unpack(">iq", numbers[20:])] == [1, 1, 1, 2, 1, 2, 1, 1, 2, 2, 2, 2]
    assert items[20:] == b"".join(struct.pack(">i", 1) + name for name in (b"a", b"a", b"b", b"a"))
    assert vectors == struct.pack(">iiIii", 1, 1, 4711, 4, 1) + 4 * IN_BINARY


@pytest.mark.parametrize(
    "ops",
    [
        (),
        (make_generation_op(1), make_removal("a")),
        (put("a", VECTOR), make_stored_entry_op("b", b"\xf5\x01sealed", 1)),
        (put("a", VECTOR), make_stored_entry_op("b", b"\x94\xc1", 1)),
        (put("a", VECTOR), make_stored_entry_op("b", ormsgpack.packb([1, b"", None, [VECTOR]]), 1)),
        (put("a", VECTOR), make_stored_entry_op("b", ormsgpack.packb([b"", "", None, [VECTOR]]), 1)),
        (put("a", VECTOR), make_stored_entry_op("b", ormsgpack.packb([b"", b"", None, 7]), 1)),
        (put("a", VECTOR), make_stored_entry_op("b", ormsgpack.packb([b"", b"", None, [7]]), 1)),
        (put("a", VECTOR), put("b", b"")),
        (put("a", VECTOR), put("b", bytes(4 * 16_001))),
        (put("a", VECTOR), put("b", model=b"")),
        (put("a"), put("b", model=b"", paths=())),
    ],
)
def test_what_has_no_vectors_or_is_not_plain_is_left_to_the_database(ops: tuple[Op, ...]) -> None:
    assert pack_vectors([Commit(ADA, ops)], 4711) is None


@pytest.mark.parametrize("later", [put("a", VECTOR), make_removal("a")])
def test_an_entry_that_is_written_twice_is_left_to_the_database(later: Op) -> None:
    assert pack_vectors([Commit(ADA, (put("a", VECTOR),)), Commit(ADA, (later,))], 4711) is None
    assert pack_vectors([Commit(ADA, (put("a", VECTOR),)), Commit(BOB, (later,))], 4711) is not None


def test_entries_that_are_kept_out_of_the_index_send_nothing_themselves() -> None:
    writes = [Commit(ADA, (put("a", VECTOR), put("b", model=b"", paths=()), put("c", paths=())))]
    sent = pack_vectors(writes, 4711)
    assert sent is not None
    assert sent[1][20:] == struct.pack(">i", 1) + b"a"
