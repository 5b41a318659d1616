"""The names of a thread's chunks, wherever they are stored."""

from __future__ import annotations

import perdure
from perdure.database.base import handle_of
from perdure.engine.complete_reads import read_all
from perdure.engine.threads.chunk_reads import ChunkReader
from perdure.model.ops import Range
from perdure.model.records import BLOB, Partition


def chunk_names(db: perdure.SyncDatabase, partition: Partition) -> set[bytes]:
    """The names of a thread's chunks, wherever they are stored."""
    handle = handle_of(db)
    reader = ChunkReader(partition, handle.digest)
    handle.run(reader.read())
    (large,) = handle.run(read_all(partition, Range(BLOB, bodies=False)))
    return {*reader.bodies, *(record.key[0] for record in large)}
