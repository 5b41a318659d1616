"""Bounded reading of a whole thread, and the digest of its content.

The digest covers checkpoints, pending writes, tags, heads and documents, with values by their content. It is
independent of backend, encryption key, generation and record versions, so that a moved thread keeps its
digest. Payload chunks are read a few at a time; nodes, which name other chunks, are held in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

import ormsgpack

from perdure.engine.complete_reads import read_all
from perdure.engine.threads.chunk_reads import ChunkReader, MissingChunk
from perdure.engine.threads.thread_records import Contents, read, references
from perdure.errors import Contention
from perdure.model.checkpoint import Carried, CheckpointRecord, PendingWrite
from perdure.model.ops import Range
from perdure.model.program import Program
from perdure.model.records import DOCUMENT, GC, HEAD, OF_THREAD, TAG, WRITE, Partition, Record
from perdure.model.values.chunks import Digester
from perdure.model.values.rekey import ReferenceRenaming

ATTEMPTS = 5
"""Times that a thread is read again because it was written to meanwhile."""

Report = Callable[[int], None]
"""Progress callback: called with the number of bytes just read."""

_FEW, _MANY = 16, 1000
_BATCH_BYTES = 8 << 20


def accept_anything(contents: Contents) -> None:
    """Accept any contents: the default check."""


def report_nothing(count: int) -> None:
    """Ignore progress: the default report."""


@dataclass(frozen=True, slots=True)
class Digest:
    """Digest of a thread's content, or of a namespace of the store, with the counts of what it covers."""

    value: bytes
    checkpoints: int = 0
    writes: int = 0
    items: int = 0
    bytes: int = 0
    documents: int = 0

    @property
    def hex(self) -> str:
        """Return the digest as hexadecimal digits."""
        return self.value.hex()

    def agrees(self, other: Digest) -> bool:
        """Return True if the content is the same."""
        return self.value == other.value


@dataclass(frozen=True, slots=True)
class ThreadContent:
    """A thread as it was read, without its payloads. ``pulse`` changes with every write to the thread."""

    pulse: object
    contents: Contents
    graft: ReferenceRenaming
    documents: tuple[Record, ...]
    reader: ChunkReader


class Pace:
    """Adaptive batch size: the count of chunks to request at once so that a batch stays near 8 MiB."""

    def __init__(self) -> None:
        self._size = 4 * _FEW

    def slices(self, names: list[bytes]) -> Iterator[list[bytes]]:
        """Divide names into parts that are read at once, each sized by the sizes of the parts before."""
        at = 0
        while at < len(names):
            some = names[at : at + self._size]
            yield some
            at += len(some)

    def learn(self, bodies: Mapping[bytes, bytes]) -> None:
        """Adapt to the mean chunk size of a batch."""
        mean = sum(map(len, bodies.values())) // max(1, len(bodies)) + 1
        self._size = max(_FEW, min(_MANY, _BATCH_BYTES // mean))


def read_pulse(partition: Partition) -> Program[object]:
    """Return a value that changes with every put, task write, tag, document and removal."""
    quiet = (Range(WRITE, bodies=False), Range(DOCUMENT, bodies=False))
    found = yield from read_all(partition, Range(GC), Range(HEAD), Range(TAG), *quiet)
    return [(record.kind.name, record.key, record.version) for records in found for record in records]


def read_thread(partition: Partition, source: Digester, target: Digester) -> Program[ThreadContent | None]:
    """Read a thread without its payloads.

    Args:
        partition: the thread.
        source: digester that names the thread's chunks where it is read.
        target: digester that names them where it is written.

    Returns:
        ``None`` if nodes are gone because the thread was written to meanwhile.

    Raises:
        MissingChunk: a chunk is missing, although the thread was not written to.
    """
    before = yield from read_pulse(partition)
    contents = yield from read(partition)
    (documents,) = yield from read_all(partition, Range(DOCUMENT))
    reader = ChunkReader(partition, source)
    reading = ThreadContent(before, contents, ReferenceRenaming(source, target), tuple(documents), reader)
    pending = list(dict.fromkeys(references(contents)))
    while pending:
        pending = [ref for ref in pending if not reading.graft.explore(ref)]
        wanted = reading.graft.take_missing()
        if wanted:
            bodies = yield from fetch(partition, reading, sorted(wanted))
            if bodies is None:
                return None
            reading.graft.feed(bodies)
    return reading


def fetch(
    partition: Partition, reading: ThreadContent, names: list[bytes]
) -> Program[dict[bytes, bytes] | None]:
    """Fetch chunks of a thread that was read; ``None`` if they are gone because it was written to since.

    Raises:
        MissingChunk: a chunk is missing, although the thread was not written to.
    """
    try:
        return (yield from reading.reader.find(names))
    except MissingChunk:
        if (yield from read_pulse(partition)) == reading.pulse:
            raise
        return None


def compute_thread_digest(
    partition: Partition,
    digest: Digester,
    report: Report = report_nothing,
    arriving: ThreadContent | None = None,
    check: Callable[[Contents], None] = accept_anything,
) -> Program[Digest]:
    """Compute the digest of a thread as it stands.

    Args:
        partition: the thread.
        digest: names the thread's chunks.
        report: called with the size of each payload read.
        arriving: the thread as it is at its source, if it has not arrived yet: the root's head and the
            thread's own document, which arrive last, are taken from there.
        check: called with the contents; may raise.

    Raises:
        Contention: the thread keeps being written to.
    """
    for _ in range(ATTEMPTS):
        reading = yield from read_thread(partition, digest, digest)
        if reading is None:
            continue
        size = yield from _read_payloads(partition, reading, report)
        if size is None:
            continue
        if arriving is not None:
            reading = _with_last_records(reading, arriving)
        computed = digest_of(reading, size)
        if reading.pulse == (yield from read_pulse(partition)):
            check(reading.contents)
            return computed
    raise Contention(f"thread {partition.thread!r} keeps being written to; try again later")


def _with_last_records(there: ThreadContent, arriving: ThreadContent) -> ThreadContent:
    """Return a thread that has not arrived yet, with the records added that arrive last."""
    root = arriving.contents.heads.get("")
    if root is not None:
        there.contents.heads[""] = root
    own = [d for d in arriving.documents if d.key == OF_THREAD]
    return replace(there, documents=(*(d for d in there.documents if d.key != OF_THREAD), *own))


def _read_payloads(partition: Partition, reading: ThreadContent, report: Report) -> Program[int | None]:
    """Read every payload without keeping it; return their total bytes, ``None`` if some are gone."""
    size = 0
    pace = Pace()
    for names in pace.slices(sorted(reading.graft.payloads)):
        bodies = yield from fetch(partition, reading, names)
        if bodies is None:
            return None
        pace.learn(bodies)
        for name, body in bodies.items():
            reading.graft.arrive(name, body)
            size += len(body)
            report(len(body))
    return size


def digest_of(reading: ThreadContent, payload_bytes: int) -> Digest:
    """Compute the digest of what was read, once every payload has arrived."""
    contents, graft = reading.contents, reading.graft
    digest = blake2b(digest_size=32, person=b"perdure.thread")
    places: dict[str, int] = {}
    for record in sort_checkpoints(contents.checkpoints):
        places[record.namespace] = place = places.get(record.namespace, 0) + 1
        digest.update(_pack(_list_fields(record, place, graft)))
    for write in sorted(contents.writes, key=lambda w: w.key):
        content = graft.rename(write.ref).content
        named = ["write", *write.key, write.channel, write.task_path, write.nonce, content]
        digest.update(_pack([*named, *(write.span or ())]))
    for tag in sorted(contents.tags, key=lambda t: t.key):
        digest.update(_pack(["tag", *tag.key, tag.fields["namespace"], tag.fields["checkpoint_id"]]))
    for namespace, head in sorted(contents.heads.items()):
        digest.update(_pack(["head", namespace, head.checkpoint_id]))
    for document in sorted(reading.documents, key=lambda d: d.key):
        digest.update(_pack(["document", *document.key, document.fields["updated_at"], document.body]))
    size = payload_bytes + sum(map(len, graft.fresh.values()))
    return Digest(
        digest.digest(),
        len(contents.checkpoints),
        len(contents.writes),
        bytes=size,
        documents=len(reading.documents),
    )


def sort_checkpoints(checkpoints: Iterable[CheckpointRecord]) -> list[CheckpointRecord]:
    """Sort checkpoints by namespace, oldest first within each."""
    return sorted(checkpoints, key=lambda c: (c.namespace, c.seq, c.id))


def rename_references(record: CheckpointRecord, graft: ReferenceRenaming) -> CheckpointRecord:
    """Return a checkpoint with its references renamed for the target."""
    refs = {channel: graft.rename(ref).name for channel, ref in record.refs.items()}
    all_carried: dict[str, Carried] = {}
    for channel, carried in record.carried.items():
        writes = tuple(w._replace(ref=graft.rename(w.ref).name) for w in carried.writes)
        seed = carried.seed and graft.rename(carried.seed).name
        all_carried[channel] = carried._replace(seed=seed, writes=writes)
    return record._replace(blocks=(), refs=refs, carried=all_carried)


def rename_write(write: PendingWrite, graft: ReferenceRenaming) -> PendingWrite:
    """Return a pending write with its reference renamed for the target."""
    return write._replace(ref=graft.rename(write.ref).name)


def _list_fields(record: CheckpointRecord, place: int, graft: ReferenceRenaming) -> list[Any]:
    def content(ref: bytes | None) -> bytes | None:
        return ref and graft.rename(ref).content

    return [
        "checkpoint",
        record.namespace,
        record.id,
        place,
        record.parent_id,
        record.run_id,
        record.source,
        record.step,
        record.v,
        record.ts,
        sorted(record.versions.items()),
        sorted((channel, content(ref)) for channel, ref in record.refs.items()),
        sorted((node, sorted(seen.items())) for node, seen in record.versions_seen.items()),
        record.updated,
        record.metadata,
        record.extra,
        record.nonce,
        record.seen,
        record.root,
        record.root_head,
        record.cut,
        record.deltas,
        [
            (channel, content(carried.seed), [(w.task_id, content(w.ref)) for w in carried.writes])
            for channel, carried in sorted(record.carried.items())
        ],
        record.prior,
        record.passed,
        record.schema,
    ]


def _pack(values: Any) -> bytes:
    return ormsgpack.packb(_flatten(values))


def _flatten(value: Any) -> Any:
    """Replace text by its bytes, so that text which is not well-formed Unicode can be packed too."""
    if isinstance(value, str):
        return ["s", value.encode("utf-8", "surrogatepass")]
    if isinstance(value, list | tuple):
        return [_flatten(v) for v in value]
    return value
