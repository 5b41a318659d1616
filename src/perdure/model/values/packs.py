"""Packs: records that each hold many small chunks of a thread, and blocks, by which packs are found.

A chunk of a few hundred bytes costs a row, its digest, and a decompression of its own, and compresses badly
alone. So the chunks of a thread are stored one by one only until the thread has moved on, and then as packs.
References name chunks and know nothing of packs. A pack has the number of the block of checkpoints in which
it was made, so that a reader knows in which packs to look; it holds the chunks' bodies without their names,
which are the digests of the bodies.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from typing import NamedTuple, cast
from zlib import crc32

from perdure.errors import Corrupt
from perdure.model.ops import Put
from perdure.model.records import BLOB, CHUNK, PACK, Key, Kind, Record
from perdure.model.values import refs
from perdure.model.values.chunks import DIGEST_SIZE, Digester
from perdure.model.values.compression import decompress

PACKED_MAX = 8 * 1024
"""Bytes of the largest chunk that goes into a pack."""

PACK_BYTES = 48 * 1024
"""Bytes to which a pack is filled before it is compressed."""

BLOCK = 32
"""Checkpoints of a namespace after which the chunks that came with them are packed."""

_FORMAT = b"\x01"
_SUM = 4
"""Bytes of a pack's checksum, CRC-32 of its entries: it distinguishes damage from an absent chunk."""

Place = tuple[Kind, Key]
"""Kind and key of a record that holds a chunk."""

Runs = tuple[int, ...]
"""Blocks as runs: the first and the last block of each, in order. Empty for all blocks."""


def block_of(seq: int) -> int:
    """Return the block of a checkpoint, given its number in the order of its namespace."""
    return max(0, seq - 1) // BLOCK


def ends_block(seq: int) -> bool:
    """Return True for the last checkpoint of a block: the chunks of the thread are to be packed after it."""
    return seq > 0 and seq % BLOCK == 0


def place_of(name: bytes, body: bytes) -> Place:
    """Return the record in which a new chunk is stored."""
    return CHUNK if len(body) <= PACKED_MAX else BLOB, (name,)


def make_chunk_puts(chunks: Mapping[bytes, bytes], generation: int) -> list[Put]:
    """Return the operations that store new chunks, each in a record of its own."""
    fields = {"generation": generation}
    return [Put(*place_of(name, body), fields, body) for name, body in chunks.items()]


class NewPack(NamedTuple):
    """The operation that stores a pack, and the names of its chunks."""

    put: Put
    names: list[bytes]


def make_packs(chunks: Mapping[bytes, bytes], generation: int, block: int) -> list[NewPack]:
    """Make packs of small chunks, for a block."""
    return [_make_pack(chunks, names, generation, block) for names in _split(chunks)]


def pack_puts(chunks: Mapping[bytes, bytes]) -> list[Put]:
    """Return the operations that store the chunks of a new thread as packs, the large ones in records of
    their own."""
    small = {name: body for name, body in chunks.items() if len(body) <= PACKED_MAX}
    large = {name: body for name, body in chunks.items() if name not in small}
    return [*(pack.put for pack in make_packs(small, 0, 0)), *make_chunk_puts(large, 0)]


def _split(chunks: Mapping[bytes, bytes]) -> Iterator[list[bytes]]:
    part: list[bytes] = []
    size = 0
    for name, body in chunks.items():
        if part and size + len(body) > PACK_BYTES:
            yield part
            part, size = [], 0
        part.append(name)
        size += len(body)
    if part:
        yield part


def _make_pack(chunks: Mapping[bytes, bytes], names: list[bytes], generation: int, block: int) -> NewPack:
    entries = b"".join(refs.entry(chunks[name]) for name in names)
    body = _FORMAT + crc32(entries).to_bytes(_SUM) + entries
    # A name that says no more about the content than those of the chunks.
    name = blake2b(b"".join(names), digest_size=DIGEST_SIZE, person=b"perdure.pack").digest()
    return NewPack(Put(PACK, (block, name), {"generation": generation}, body), names)


class Pack(NamedTuple):
    """A pack as it was read.

    Attributes:
        stored: length of the record's body.
        chunks: bodies of the chunks by their names, in the order in which they are stored.
    """

    stored: int
    chunks: dict[bytes, bytes]

    def sizes(self) -> dict[bytes, int]:
        """Return each chunk's part of the bytes of the record."""
        entries = [len(refs.entry(body)) for body in self.chunks.values()]
        total = sum(entries)
        parts = [size * self.stored // total for size in entries]
        parts[0] += self.stored - sum(parts)
        return dict(zip(self.chunks, parts, strict=True))


def read_pack(record: Record, digest: Digester) -> Pack:
    """Decode the record of a pack.

    Raises:
        Corrupt: it is not what was written.
    """
    # A record that is not verified may hold anything.
    stored = cast(object, record.body)
    if isinstance(stored, bytes):
        body = decompress(stored) or stored
    else:
        body = b""
    start = len(_FORMAT) + _SUM
    try:
        bodies = refs.read_entries(body[start:])
    except Corrupt:
        bodies = []
    if not bodies or body[:start] != _FORMAT + crc32(body[start:]).to_bytes(_SUM):
        raise Corrupt(f"pack {format_name(record.key[1])} is damaged; run `perdure fsck`")
    return Pack(len(record.body), {digest(body): body for body in bodies})


def format_name(name: object) -> str:
    """Return the name of a chunk or a pack for a message; a damaged record may have any."""
    if isinstance(name, bytes):
        return name.hex()
    return repr(name)


def runs_of(blocks: Iterable[int]) -> Runs:
    """Return blocks as runs."""
    runs: list[int] = []
    for block in sorted(set(blocks)):
        if runs and block == runs[-1] + 1:
            runs[-1] = block
        else:
            runs += (block, block)
    return tuple(runs)
