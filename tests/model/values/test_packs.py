"""Packs: their chunks come back by name, and one that differs from what was written is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import Corrupt
from perdure.model.ops import Put
from perdure.model.records import BLOB, CHUNK, PACK, Record
from perdure.model.values.chunks import Digester
from perdure.model.values.compression import compress_body
from perdure.model.values.packs import (
    BLOCK,
    PACK_BYTES,
    PACKED_MAX,
    block_of,
    ends_block,
    make_chunk_puts,
    make_packs,
    pack_puts,
    read_pack,
    runs_of,
)

DIGEST = Digester(b"n" * 32)
BODIES = st.lists(st.binary(max_size=PACKED_MAX), min_size=1, max_size=40, unique=True)


def record(put: Put) -> Record:
    """The record of a pack as a driver reads it."""
    return Record(PACK, put.key, put.fields, 0, compress_body(put))


def named(bodies: list[bytes], digest: Digester = DIGEST) -> dict[bytes, bytes]:
    return {digest(body): body for body in bodies}


@given(BODIES)
def test_the_chunks_of_packs_come_back_by_their_names(bodies: list[bytes]) -> None:
    chunks = named(bodies)
    packs = [read_pack(record(pack.put), DIGEST) for pack in make_packs(chunks, 3, 7)]
    found = {name: body for pack in packs for name, body in pack.chunks.items()}
    assert found == chunks
    for pack in packs:
        sizes = pack.sizes()
        assert sum(sizes.values()) == pack.stored
        assert sum(map(len, pack.chunks.values())) <= PACK_BYTES


@given(BODIES, st.data())
def test_a_changed_pack_is_refused(bodies: list[bytes], data: st.DataObject) -> None:
    pack = make_packs(named(bodies), 0, 0)[0]
    whole = record(pack.put)
    at = data.draw(st.integers(0, len(whole.body) - 1))
    other = whole.body[:at] + bytes((whole.body[at] ^ data.draw(st.integers(1, 255)),)) + whole.body[at + 1 :]
    for body in (other, whole.body[:at], b"", b"\x01", b"\x01\0\0\0\0"):
        with pytest.raises(Corrupt, match="is damaged"):
            read_pack(whole._replace(body=body), DIGEST)


@given(BODIES, st.integers(0, 9), st.integers(0, 9))
def test_equal_chunks_make_the_same_packs(bodies: list[bytes], generation: int, block: int) -> None:
    chunks = named(bodies)
    assert make_packs(chunks, generation, block) == make_packs(chunks, generation, block)
    assert len({pack.put.key for pack in make_packs(chunks, generation, block)}) == len(
        make_packs(chunks, generation, block)
    )


def test_a_large_chunk_has_a_record_of_its_own() -> None:
    chunks = {b"small": b"x" * PACKED_MAX, b"large": b"x" * (PACKED_MAX + 1)}
    assert [put.kind for put in make_chunk_puts(chunks, 1)] == [CHUNK, BLOB]
    assert [put.kind for put in pack_puts(chunks)] == [PACK, BLOB]


def test_blocks_follow_the_numbers_of_checkpoints() -> None:
    assert [block_of(seq) for seq in (0, 1, 32, 33, 64, 65)] == [0, 0, 0, 1, 1, 2]
    assert [seq for seq in range(3 * BLOCK + 1) if ends_block(seq)] == [BLOCK, 2 * BLOCK, 3 * BLOCK]
    assert runs_of([]) == ()
    assert runs_of([5, 1, 2, 3, 9, 5]) == (1, 3, 5, 5, 9, 9)
