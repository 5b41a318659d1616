"""Reads of the chunks that references name, level by level: packs first, by blocks, then by name what no pack
holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from perdure.errors import Corrupt
from perdure.model.ops import Fetch, Get, Range
from perdure.model.program import Program, ask
from perdure.model.records import BLOB, CHUNK, PACK, Key, Partition, Record
from perdure.model.values.chunks import Digester
from perdure.model.values.packs import Pack, Place, Runs, format_name, read_pack, runs_of
from perdure.model.values.tree import Expansion, Tree

_KEYS = 2000
"""Chunks that one fetch asks for by name."""

_CHUNKS = 1000
PACKS = 256
"""Packs that one fetch asks for: about 2 MB as they are stored."""
FEW = 4
"""Packs that the first fetch asks for if all wanted chunks are probably among the newest."""

_BLOCKS_MAX = 64
_SPARE = 16
"""Number of packs that may be read in vain. If a checkpoint's reader reads more, the checkpoint notes the
blocks that it needs."""


class MissingChunk(Corrupt):
    """Raised when a reference names a chunk that is not stored."""


class ChunkReader:
    """Reader of a thread's chunks: those not packed yet, the packs, newest first, and large chunks by name.

    Chunks that were read are kept, as a pack holds chunks that are requested next; only large ones are not.

    Attributes:
        bodies: Chunks by name.
        places: The records that hold chunks, by the chunks' names.
        packs: The packs by their keys.
        newest: The newest generation of the records.
        damaged: Errors by the names of chunks that cannot be read.
        damaged_packs: Errors by the names of packs that cannot be read.

    Args:
        partition: The thread.
        digest: Names the chunks.
        runs: The blocks in which the chunks are looked for first.
        packs: The number of packs that are asked for at first.
    """

    def __init__(self, partition: Partition, digest: Digester, runs: Runs = (), packs: int = PACKS) -> None:
        self._partition = partition
        self._digest = digest
        self._ranges = [Range(CHUNK, limit=_CHUNKS, verify=False), *_ranges_of(runs, packs)]
        self._reads_all = not runs
        self._has_begun = False
        self.packs: dict[Key, Pack] = {}
        self.damaged: dict[bytes, Corrupt] = {}
        self.damaged_packs: dict[bytes, Corrupt] = {}
        self.bodies: dict[bytes, bytes] = {}
        self.places: dict[bytes, Place] = {}
        self._sizes: dict[bytes, int] = {}
        self.newest = 0

    @property
    def ranges(self) -> tuple[Range, ...]:
        """The next reads of this reader, for a caller that reads something else in the same request."""
        return tuple(self._ranges)

    def find(self, names: Iterable[bytes]) -> Program[dict[bytes, bytes]]:
        """Return the bytes of chunks by name.

        Raises:
            MissingChunk: One is not stored.
            Corrupt: One may be in a record that is damaged.
        """
        wanted = set(names)
        asked: set[bytes] = set()
        large: dict[bytes, bytes] = {}
        # ``bodies`` may have all chunks of a long thread: a difference of sets would go through each of them.
        while missing := {name for name in wanted if name not in self.bodies and name not in large}:
            # Nearly all chunks are in packs: only those that were not found in packs are asked for by name.
            if self._has_begun:
                by_name = sorted(missing - asked)[:_KEYS]
            else:
                by_name = []
            if not self._ranges and not by_name:
                if self._reads_all:
                    errors = (*self.damaged.values(), *self.damaged_packs.values())
                    lost = f"thread {self._partition.thread!r}: chunk {min(missing).hex()}"
                    why = f"{lost} is named by a checkpoint and is not stored; run `perdure fsck`"
                    raise next(iter(errors), MissingChunk(why))
                self._reads_all = True
                self._ranges = _ranges_of(())
            large |= yield from self._fetch(by_name)
            asked.update(by_name)
        return {name: large[name] if name in large else self.bodies[name] for name in wanted}

    def read(self) -> Program[None]:
        """Read all chunks except the large ones."""
        while self._ranges:
            yield from self._fetch([])

    def _fetch(self, large: Sequence[bytes]) -> Program[dict[bytes, bytes]]:
        """Make the next reads, and return those of the large chunks with these names that are stored; they
        are not kept."""
        ranges = self._ranges
        items: list[Get | Range] = [*ranges, *(Get(BLOB, (name,)) for name in large)]
        answers = yield from ask(Fetch(self._partition, tuple(items)))
        self.add_answers(answers[: len(ranges)])
        found = (record for answer in answers[len(ranges) :] for record in answer)
        return {record.key[0]: body for record in found if (body := self._read_plain(record)) is not None}

    def add_answers(self, answers: Iterable[tuple[Record, ...]]) -> None:
        """Take the answers to ``ranges``, in order."""
        ranges, self._ranges = self._ranges, []
        self._has_begun = True
        for asked, records in zip(ranges, answers, strict=True):
            self._add(records)
            if asked.limit is not None and len(records) == asked.limit:
                limit = PACKS if asked.kind is PACK else asked.limit
                self._ranges.append(asked._replace(after=records[-1].key, limit=limit))

    def hold(self, records: Iterable[Record]) -> None:
        """Take all chunks and packs of the thread, which the caller has read."""
        self._ranges = []
        self._has_begun = True
        self._add(records)

    def _add(self, records: Iterable[Record]) -> None:
        for record in records:
            age = record.fields["generation"]
            if isinstance(age, int):
                self.newest = max(self.newest, age)
            if record.kind is PACK:
                self._add_pack(record)
            elif (body := self._read_plain(record)) is not None:
                self.bodies[record.key[0]] = body

    def _read_plain(self, record: Record) -> bytes | None:
        """Return the bytes of a chunk that has a record of its own, ``None`` if it is damaged."""
        (name,) = record.key
        # A record that is not verified may hold anything.
        stored = cast(object, record.body)
        body = self._digest.read_stored(name, stored if isinstance(stored, bytes) else b"")
        if body is None:
            shown = f"chunk {format_name(name)} is damaged"
            self.damaged[name] = Corrupt(f"{shown}: its bytes are not those of its name; run `perdure fsck`")
            return None
        self.places[name] = record.kind, record.key
        self._sizes[name] = len(record.body)
        return body

    def _add_pack(self, record: Record) -> None:
        try:
            pack = read_pack(record, self._digest)
        except Corrupt as error:
            self.damaged_packs[record.key[1]] = error
            return
        place = PACK, record.key
        self.packs[record.key] = pack
        self.bodies.update(pack.chunks)
        self.places.update(dict.fromkeys(pack.chunks, place))

    def sizes(self, names: Iterable[bytes]) -> dict[bytes, int]:
        """Return the sizes in the database, in bytes, of chunks that were read."""
        packed: dict[bytes, int] = {}
        for pack in self.packs.values():
            packed |= pack.sizes()
        return {name: self._sizes[name] if name in self._sizes else packed[name] for name in names}

    def find_runs(self, names: Iterable[bytes]) -> Runs | None:
        """Return the blocks in which chunks were found, ``None`` if knowing them would save a later reader
        little."""
        keys = {place[1] for name in names if (place := self.places.get(name)) and place[0] is PACK}
        blocks = {key[0] for key in keys}
        if len(blocks) > _BLOCKS_MAX or len(self.packs) <= _SPARE + 2 * len(keys):
            return None
        return runs_of(blocks or {max(self.packs)[0]})


def _ranges_of(runs: Runs, packs: int = PACKS) -> list[Range]:
    """Return the reads of the packs in these blocks and of all later packs; of all packs if no blocks are
    given."""
    if not runs:
        return [Range(PACK, reverse=True, limit=packs, verify=False)]
    blocks = [b for first, last in zip(runs[::2], runs[1::2], strict=True) for b in range(first, last + 1)]
    behind: Key = (blocks.pop() - 1, b"\xff" * 16)
    return [
        *(Range(PACK, (block,), verify=False) for block in blocks),
        Range(PACK, after=behind, limit=packs, verify=False),
    ]


def resolve(
    partition: Partition,
    references: Mapping[str, bytes],
    digest: Digester,
    reader: ChunkReader | None = None,
) -> Program[tuple[dict[str, Tree], Expansion]]:
    """Return the trees of named references, and the expansion with the nodes it met."""
    reader = reader or ChunkReader(partition, digest)
    expansion = Expansion()
    trees: dict[str, Tree] = {}
    open_names = list(references)
    while open_names:
        missing: list[str] = []
        for name in open_names:
            tree = expansion.try_expand(references[name])
            if tree is None:
                missing.append(name)
            else:
                trees[name] = tree
        yield from _supply(expansion, reader)
        open_names = missing
    return trees, expansion


def reachable(
    partition: Partition,
    references: Iterable[bytes],
    digest: Digester,
    reader: ChunkReader | None = None,
) -> Program[set[bytes]]:
    """Return the digests of all chunks that the references need, without reading large ones."""
    reader = reader or ChunkReader(partition, digest)
    expansion = Expansion(payloads=False)
    pending = list(dict.fromkeys(references))
    while pending:
        pending = [ref for ref in pending if expansion.try_expand(ref) is None]
        yield from _supply(expansion, reader)
    return expansion.used


def _supply(expansion: Expansion, reader: ChunkReader) -> Program[None]:
    if wanted := expansion.take_missing():
        expansion.feed((yield from reader.find(wanted)), reader.places)
