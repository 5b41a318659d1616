"""Size of a thread in bytes, by channel.

A chunk that several checkpoints share is stored and counted once, so the figures are those of the database
and not the sum of the checkpoints. A chunk that two channels share counts for both, and once in the total.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from perdure.engine.threads.chunk_reads import ChunkReader, MissingChunk, reachable
from perdure.engine.threads.thread_digest import ATTEMPTS, Pace, read_pulse
from perdure.engine.threads.thread_records import Contents, read
from perdure.errors import Contention
from perdure.model.checkpoint import CheckpointRecord
from perdure.model.program import Program
from perdure.model.records import Partition
from perdure.model.values.chunks import Digester
from perdure.model.write_records import stored_bytes


@dataclass(frozen=True, slots=True)
class ByteCount:
    """Count of things, and their bytes."""

    count: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Measure:
    """A thread's size.

    Attributes:
        checkpoints: the records themselves, without values.
        values: values of the channels in all checkpoints.
        channels: the same by name, each with its count of versions.

    A small value is stored in every checkpoint that has it, and counts each time.
    """

    total: int
    checkpoints: ByteCount
    values: ByteCount
    writes: ByteCount
    channels: dict[str, ByteCount] = field(default_factory=dict[str, ByteCount])


def measure(partition: Partition, digest: Digester) -> Program[Measure]:
    """Measure a thread by reading it once, in parts that are not kept.

    Raises:
        Contention: the thread keeps being written to.
    """
    for _ in range(ATTEMPTS):
        before = yield from read_pulse(partition)
        contents = yield from read(partition)
        try:
            return (yield from _measure(partition, contents, digest))
        except MissingChunk:
            if (yield from read_pulse(partition)) == before:
                raise
    raise Contention(f"thread {partition.thread!r} keeps being written to; try again later")


def _measure(partition: Partition, contents: Contents, digest: Digester) -> Program[Measure]:
    versions: dict[str, set[bytes]] = {}
    inline_bytes: Counter[str] = Counter()
    for record in contents.checkpoints:
        for channel, ref in _references(record):
            versions.setdefault(channel, set()).add(ref)
            inline_bytes[channel] += len(ref)
    written = {write.ref for write in contents.writes}
    needs: dict[str, set[bytes]] = {}
    reader = ChunkReader(partition, digest)
    for channel in sorted(versions):
        needs[channel] = yield from reachable(partition, sorted(versions[channel]), digest, reader)
    of_writes = yield from reachable(partition, sorted(written), digest, reader)
    of_values = set[bytes]().union(*needs.values())
    records = sum(len(record.put().body) for record in contents.checkpoints)
    write_bytes = stored_bytes(contents.writes)
    pace = Pace()
    for some in pace.slices(sorted(of_values | of_writes)):
        pace.learn((yield from reader.find(some)))
    sizes = reader.sizes(of_values | of_writes)

    def sum_sizes(names: Iterable[bytes]) -> int:
        return sum(sizes[name] for name in names)

    channels = {
        name: ByteCount(len(own), sum_sizes(needs[name]) + inline_bytes[name])
        for name, own in versions.items()
    }
    return Measure(
        total=records + write_bytes + sum_sizes(sizes),
        checkpoints=ByteCount(len(contents.checkpoints), records - inline_bytes.total()),
        values=ByteCount(sum(map(len, versions.values())), sum_sizes(of_values) + inline_bytes.total()),
        writes=ByteCount(len(contents.writes), write_bytes + sum_sizes(of_writes)),
        channels=channels,
    )


def _references(record: CheckpointRecord) -> Iterator[tuple[str, bytes]]:
    """Yield the references of a checkpoint with their channels."""
    yield from record.refs.items()
    for channel, carried in record.carried.items():
        if carried.seed is not None:
            yield channel, carried.seed
        for write in carried.writes:
            yield channel, write.ref
