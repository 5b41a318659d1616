"""Checkpoints as a source's own saver returns them: from the saver or, if its package is not
installed, built from what was read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar

from langgraph.checkpoint.base import CheckpointTuple

from perdure.errors import Contention
from perdure.imports.payloads import SERDE
from perdure.imports.source import CheckpointEntry, Outline, SourceCheckpoint, SourceWrite, WriteSlot
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


class StockSource(ABC):
    """Base of the sources of stock savers. A subclass sets its ``package``, ``name`` and ``saver``.

    Attributes:
        package: The name of the saver's package.
        saver: The stock saver, ``None`` if its package is not installed.
    """

    package: ClassVar[str]
    name: str
    saver: Any

    @property
    def verifier(self) -> str:
        """Name of the package whose saver is asked, or of the source if the package is not installed."""
        if self.saver is None:
            return self.name
        return self.package

    @abstractmethod
    def threads(self) -> Iterator[str]:
        """Yield the ids of the threads."""

    @abstractmethod
    def checkpoints(self, thread: str, wanted: Sequence[CheckpointEntry]) -> Iterator[SourceCheckpoint]:
        """Yield checkpoints in the given order."""

    @abstractmethod
    def writes(self, thread: str, wanted: Sequence[WriteSlot]) -> Iterator[SourceWrite]:
        """Yield pending writes in the given order."""

    @abstractmethod
    def slots_of(self, thread: str, entry: CheckpointEntry) -> list[WriteSlot]:
        """Return the slots of a checkpoint's pending writes."""

    def count(self) -> int | None:
        """Return the number of threads."""
        return sum(1 for _ in self.threads())

    def read_expected(self, thread: str, wanted: Sequence[CheckpointEntry]) -> Iterator[CheckpointTuple]:
        """Yield checkpoints as the stock saver returns them or, without its package, as they are read
        here."""
        for entry in wanted:
            if self.saver is not None:
                yield self.read_stock(thread, entry)
                continue
            (found,) = self.checkpoints(thread, [entry])
            yield as_tuple(thread, found, self.writes(thread, self.slots_of(thread, entry)), SERDE)

    def read_stock(self, thread: str, entry: CheckpointEntry) -> CheckpointTuple:
        """Return a checkpoint as the stock saver returns it; raise ``Contention`` if it is gone."""
        configurable = {"thread_id": thread, "checkpoint_ns": entry.namespace, "checkpoint_id": entry.id}
        found: CheckpointTuple | None = self.saver.get_tuple({"configurable": configurable})
        if found is None:
            raise Contention(f"checkpoint {entry.id} is gone from {self.name}")
        return found

    def latest(self, thread: str, namespace: str, outline: Outline) -> str:
        """Return the largest id: most stock savers load this checkpoint as the latest."""
        return max(entry.id for entry in outline.checkpoints if entry.namespace == namespace)
