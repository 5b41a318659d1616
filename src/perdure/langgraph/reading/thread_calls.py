"""Calls of models in a thread, read from the answers in the writes of its tasks."""

from __future__ import annotations

from typing import NamedTuple

from perdure.engine.threads import chunk_reads
from perdure.engine.threads.chunk_reads import ChunkReader
from perdure.langgraph.reading.step_authors import MessageReader, is_of_node, may_have_messages
from perdure.model.model_calls import ModelCall, dedupe_calls
from perdure.model.ops import Fetch, Range
from perdure.model.program import Program, ask
from perdure.model.records import WRITE, Partition
from perdure.model.values.chunks import Digester
from perdure.model.write_records import read_writes

_AT_ONCE = 20
"""Writes whose values are in memory at once."""


class CallsPage(NamedTuple):
    """Calls of models in a part of a thread, and the ``cursor`` of the next part, ``None`` at the end."""

    calls: list[ModelCall]
    cursor: tuple[str | int, ...] | None


def load_calls(
    partition: Partition,
    digest: Digester,
    after: tuple[str | int, ...] | None = None,
    limit: int = 200,
    chunks: ChunkReader | None = None,
) -> Program[CallsPage]:
    """Return the calls of models whose answers are in a part of a thread's writes, of all namespaces.

    A call may be in several parts, with the same id in each.

    Args:
        partition: The thread.
        digest: Names the chunks.
        after: The cursor of the part before.
        limit: Maximum number of records to read.
        chunks: A reader that has read chunks for the parts before.
    """
    chunks = chunks or ChunkReader(partition, digest)
    (records,) = yield from ask(Fetch(partition, (Range(WRITE, after=after, limit=limit),)))
    calls: list[ModelCall] = []
    reader = MessageReader()
    for at in range(0, len(records), _AT_ONCE):
        refs = {
            str(number): write.ref
            for number, write in enumerate(read_writes(records[at : at + _AT_ONCE]))
            if not write.is_aside and is_of_node(write.task_path) and may_have_messages(write.channel)
        }
        trees, _ = yield from chunk_reads.resolve(partition, refs, digest, chunks)
        for tree in trees.values():
            calls += reader.read(tree)[0]
    return CallsPage(dedupe_calls(calls), records[-1].key if len(records) == limit else None)


def load_all_calls(partition: Partition, digest: Digester) -> Program[list[ModelCall]]:
    """Return the calls of models of a whole thread, each once, by reading all of its writes."""
    calls: list[ModelCall] = []
    chunks = ChunkReader(partition, digest)
    after: tuple[str | int, ...] | None = None
    while True:
        part = yield from load_calls(partition, digest, after, chunks=chunks)
        calls += part.calls
        after = part.cursor
        if after is None:
            return dedupe_calls(calls)
