"""Ids of the interrupts that a thread's latest checkpoint has open, read without its graph or its types."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from langgraph.checkpoint.base import WRITES_IDX_MAP
from langgraph.checkpoint.base import PendingWrite as LangGraphWrite
from langgraph.types import Interrupt

from perdure.engine import chunk_reads
from perdure.engine.questions import Asked
from perdure.engine.undisturbed import undisturbed
from perdure.langgraph.plain_reading import PlainSerde
from perdure.model.chunks import Digester
from perdure.model.heads import ROOT
from perdure.model.joined_values import joined
from perdure.model.ops import Fetch, Get, Range
from perdure.model.program import Program, ask
from perdure.model.records import HEAD, WRITE, Partition
from perdure.model.write_records import ERROR_SOURCE, INTERRUPT, asking_tasks, read_writes

_CONTROL = frozenset(WRITES_IDX_MAP) | {ERROR_SOURCE}
_INTERRUPT = "langgraph.types.Interrupt"
_serde = PlainSerde()


def read(partition: Partition, digest: Digester) -> Program[Asked]:
    """Return what a thread's latest checkpoint asks: nothing if there is none.

    Raises:
        Corrupt: what is asked cannot be read.
    """
    return (yield from undisturbed(partition, lambda: _read(partition, digest)))


def _read(partition: Partition, digest: Digester) -> Program[Asked]:
    (heads,) = yield from ask(Fetch(partition, (Get(HEAD, (ROOT,)),)))
    if not heads:
        return Asked()
    (head,) = heads
    (records,) = yield from ask(Fetch(partition, (Range(WRITE, (ROOT, head.fields["checkpoint_id"])),)))
    tasks = asking_tasks(records)
    asking = [
        write
        for write in read_writes(records)
        if write.task_id in tasks and write.channel == INTERRUPT and not write.is_aside
    ]
    if not asking:
        return Asked(head.version)
    wanted = {write.task_id: write.ref for write in asking}
    trees, _ = yield from chunk_reads.resolve(partition, wanted, digest)
    ids = (found for tree in trees.values() for found in _ids(_serde.value(*joined(tree))))
    return Asked(head.version, tuple(dict.fromkeys(ids)))


def of_writes(writes: Iterable[LangGraphWrite] | None) -> tuple[Interrupt, ...]:
    """Return the interrupts without an answer among the pending writes of a checkpoint, by LangGraph's own
    rule."""
    found = list(writes or ())
    ended = {task_id for task_id, channel, _ in found if channel not in _CONTROL}
    return tuple(
        interrupt
        for task_id, channel, value in found
        if channel == INTERRUPT and task_id not in ended
        for interrupt in (value if isinstance(value, Sequence) else (value,))
    )


def _ids(value: Any) -> Iterator[str]:
    """Yield the ids of the interrupts in a task's write, in its plain form."""
    held: Iterable[Any] = value if isinstance(value, list | tuple) else (value,)
    for each in held:
        if isinstance(each, dict) and each.get("type") == _INTERRUPT and isinstance(each["value"], dict):
            yield str(each["value"]["id"])
