"""Packs: records that each hold many small chunks of a thread, and blocks, by which packs are found.

A chunk of a few hundred bytes costs a row, its digest, and a decompression of its own, and compresses badly
alone. So the chunks of a thread are stored one by one at first, and moved into packs after every block of
checkpoints. References name chunks, never packs. The key of a pack has the number of the block in which it
was made, so that a reader knows in which packs to look. A pack holds the chunks' bodies without their names,
as these are the digests of the bodies.
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
"""Number of checkpoints of a namespace in a block: after each block its chunks are packed."""

_FORMAT = b"\x01"
_SUM = 4
"""Bytes of a pack's checksum, CRC-32 of its entries: it distinguishes damage from an absent chunk."""

Place = tuple[Kind, Key]
"""Kind and key of a record that holds a chunk."""

Runs = tuple[int, ...]
"""Blocks as runs of successive numbers: each run's first and last block, in order. Empty: all blocks."""


def block_of(seq: int) -> int:
    """Return the block of a checkpoint, given its ``seq``."""
    return max(0, seq - 1) // BLOCK


def ends_block(seq: int) -> bool:
    """Return True for the last checkpoint of a block, after which the thread's chunks are to be packed."""
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
    """Make the packs of a block from small chunks."""
    return [_make_pack(chunks, names, generation, block) for names in _group_names(chunks)]


def pack_puts(chunks: Mapping[bytes, bytes]) -> list[Put]:
    """Return the operations that store the chunks of a new thread as packs, the large ones in records of
    their own."""
    small = {name: body for name, body in chunks.items() if len(body) <= PACKED_MAX}
    large = {name: body for name, body in chunks.items() if name not in small}
    return [*(pack.put for pack in make_packs(small, 0, 0)), *make_chunk_puts(large, 0)]


def _group_names(chunks: Mapping[bytes, bytes]) -> Iterator[list[bytes]]:
    group: list[bytes] = []
    size = 0
    for name, body in chunks.items():
        if group and size + len(body) > PACK_BYTES:
            yield group
            group, size = [], 0
        group.append(name)
        size += len(body)
    if group:
        yield group


def _make_pack(chunks: Mapping[bytes, bytes], names: list[bytes], generation: int, block: int) -> NewPack:
    entries = b"".join(refs.entry(chunks[name]) for name in names)
    body = _FORMAT + crc32(entries).to_bytes(_SUM) + entries
    # Made of the chunks' names, which are keyed if there is a key: it reveals no more than they do.
    name = blake2b(b"".join(names), digest_size=DIGEST_SIZE, person=b"perdure.pack").digest()
    return NewPack(Put(PACK, (block, name), {"generation": generation}, body), names)


class Pack(NamedTuple):
    """A pack as it was read.

    Attributes:
        stored: length of the record's body in bytes.
        chunks: bodies of the chunks by their names, in the order in which they are stored.
    """

    stored: int
    chunks: dict[bytes, bytes]

    def sizes(self) -> dict[bytes, int]:
        """Return the stored size of each chunk: its share of the bytes of the record."""
        entries = [len(refs.entry(body)) for body in self.chunks.values()]
        total = sum(entries)
        shares = [size * self.stored // total for size in entries]
        shares[0] += self.stored - sum(shares)
        return dict(zip(self.chunks, shares, strict=True))


def read_pack(record: Record, digest: Digester) -> Pack:
    """Decode the record of a pack.

    Raises:
        Corrupt: the pack is damaged.
    """
    # The record may have been read unverified, so its body may be of any type.
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
    """Return the name of a chunk or pack as text for a message; in a damaged record it may be of any type."""
    if isinstance(name, bytes):
        return name.hex()
    return repr(name)


def runs_of(blocks: Iterable[int]) -> Runs:
    """Return block numbers as runs of successive numbers (see ``Runs``)."""
    runs: list[int] = []
    for block in sorted(set(blocks)):
        if runs and block == runs[-1] + 1:
            runs[-1] = block
        else:
            runs += (block, block)
    return tuple(runs)
