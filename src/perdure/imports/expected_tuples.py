"""Builds the tuple that a saver would return from what was read, for sources whose saver is not installed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from langgraph.checkpoint.base import CheckpointTuple

from perdure.imports.source import SourceCheckpoint, SourceWrite
from perdure.langgraph.values.serde import Serde


def as_tuple(
    thread: str, found: SourceCheckpoint, writes: Iterable[SourceWrite], serde: Serde
) -> CheckpointTuple:
    """Return a checkpoint with its pending writes in LangGraph's order.

    Args:
        thread: The thread's id.
        found: The checkpoint.
        writes: Its pending writes.
        serde: Unpacks the writes' values.
    """
    entry = found.entry

    def config(checkpoint_id: str) -> Any:
        return {
            "configurable": {
                "thread_id": thread,
                "checkpoint_ns": entry.namespace,
                "checkpoint_id": checkpoint_id,
            }
        }

    ordered = sorted(writes, key=lambda w: (w.task_path, w.slot.task_id, w.slot.idx))
    return CheckpointTuple(
        config(entry.id),
        found.checkpoint,  # type: ignore[arg-type]
        found.metadata,  # type: ignore[arg-type]
        None if entry.parent_id is None else config(entry.parent_id),
        [(w.slot.task_id, w.channel, serde.value(w.kind, w.body)) for w in ordered],
    )
