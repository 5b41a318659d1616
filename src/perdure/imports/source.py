"""Defines what a source of an import gives: outlines of threads, then checkpoints, writes and items."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, TypeVar

from langgraph.checkpoint.base import CheckpointTuple

from perdure.errors import Contention, Unavailable
from perdure.imports.payloads import SERDE

R = TypeVar("R")


def translate_errors(
    *errors: type[Exception], name_of: Callable[[Exception], str] = lambda error: type(error).__name__
) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Return a decorator for methods of a source: an error of its client becomes ``Unavailable``."""

    def decorate(method: Callable[..., R]) -> Callable[..., R]:
        @functools.wraps(method)
        def call(self: Source, *args: Any, **more: Any) -> R:
            try:
                return method(self, *args, **more)
            except errors as error:
                raise Unavailable(f"{self.name} cannot be read: {name_of(error)}") from error

        return call

    return decorate


class CheckpointEntry(NamedTuple):
    """Place of a checkpoint in a thread's tree."""

    namespace: str
    id: str
    parent_id: str | None


class WriteSlot(NamedTuple):
    """Slot of a pending write."""

    namespace: str
    checkpoint_id: str
    task_id: str
    idx: int


@dataclass(slots=True)
class Outline:
    """Outline of a thread at a source, without values: its checkpoints in the order of their ids, and the
    slots of its pending writes. It takes some 300 bytes of memory for each checkpoint."""

    checkpoints: list[CheckpointEntry] = field(default_factory=list)
    writes: list[WriteSlot] = field(default_factory=list)


class SourceCheckpoint(NamedTuple):
    """A checkpoint as a source has it. Values are plain data: objects stay packed (``Serde.unpack_plain``).

    ``checkpoint`` is LangGraph's, with its ``channel_values``.
    """

    entry: CheckpointEntry
    checkpoint: dict[str, Any]
    metadata: dict[str, Any]


class SourceWrite(NamedTuple):
    """A pending write as a source has it: ``kind`` and ``body`` are a payload of ``model.values.refs``."""

    slot: WriteSlot
    task_path: str
    channel: str
    kind: int
    body: bytes

    @property
    def order(self) -> tuple[str, str, int]:
        """The place of the write in the order in which a super-step applies them."""
        return self.task_path, self.slot.task_id, self.slot.idx


class SourceItem(NamedTuple):
    """An item of a store. Times are microseconds since 1970, ``ttl`` is a duration in microseconds."""

    namespace: tuple[str, ...]
    key: str
    value: Mapping[str, Any]
    created_at: int
    updated_at: int
    ttl: int | None = None
    expires_at: int | None = None


class DamagedItem(NamedTuple):
    """An item of a store that cannot be read, with the reason."""

    why: str


DAMAGED = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""Errors that reading a damaged row may raise; they must not end the import of the other rows."""


class Source(ABC):
    """A saver's data, opened for reading only.

    Attributes:
        name: Name for messages, without secrets.
    """

    name: str

    @property
    def verifier(self) -> str:
        """Name of the package whose saver ``read_expected`` asks, or of the source if no saver is asked."""
        return self.name

    def count(self) -> int | None:
        """Return the number of threads, ``None`` if counting them would be as much work as reading them."""
        return sum(1 for _ in self.threads())

    @abstractmethod
    def threads(self) -> Iterator[str]:
        """Yield the id of every thread once."""

    @abstractmethod
    def outline(self, thread: str) -> Outline:
        """Return the outline of a thread; empty if the thread does not exist."""

    @abstractmethod
    def checkpoints(self, thread: str, wanted: Sequence[CheckpointEntry]) -> Iterator[SourceCheckpoint]:
        """Yield checkpoints in the given order, one at a time in memory.

        Raises:
            Unserialisable: a value has a form that cannot be imported.
        """

    @abstractmethod
    def writes(self, thread: str, wanted: Sequence[WriteSlot]) -> Iterator[SourceWrite]:
        """Yield pending writes in the given order.

        Raises:
            Unserialisable: a value has a form that cannot be imported.
        """

    @abstractmethod
    def slots_of(self, thread: str, entry: CheckpointEntry) -> Sequence[WriteSlot]:
        """Return the slots of a checkpoint's pending writes."""

    def read_expected(self, thread: str, wanted: Sequence[CheckpointEntry]) -> Iterator[CheckpointTuple]:
        """Yield checkpoints with their pending writes, in the given order, as the saver itself returns them
        but with values as plain data; without a saver, as they are read here."""
        for found in self.checkpoints(thread, wanted):
            yield _make_tuple(thread, found, self.writes(thread, self.slots_of(thread, found.entry)))

    def latest(self, thread: str, namespace: str, outline: Outline) -> str:
        """Return the id of the checkpoint that the saver loads as the latest: with most savers the largest
        id."""
        return max(entry.id for entry in outline.checkpoints if entry.namespace == namespace)

    def items(self) -> Iterator[SourceItem | DamagedItem]:
        """Yield every item of the store, if there is one."""
        return iter(())

    @abstractmethod
    def close(self) -> None:
        """Release the source."""


class StockSource(Source):
    """Base of the sources of stock savers. A subclass sets its ``package``, ``name`` and ``saver``.

    Attributes:
        package: The name of the saver's package.
        saver: The stock saver, ``None`` if its package is not installed.
    """

    package: ClassVar[str]
    saver: Any

    @property
    def verifier(self) -> str:
        """Name of the package whose saver is asked, or of the source if the package is not installed."""
        if self.saver is None:
            return self.name
        return self.package

    def read_expected(self, thread: str, wanted: Sequence[CheckpointEntry]) -> Iterator[CheckpointTuple]:
        """Yield checkpoints as the stock saver returns them or, without its package, as they are read
        here."""
        if self.saver is None:
            return super().read_expected(thread, wanted)
        return (self.read_stock(thread, entry) for entry in wanted)

    def read_stock(self, thread: str, entry: CheckpointEntry) -> CheckpointTuple:
        """Return a checkpoint as the stock saver returns it; raise ``Contention`` if it is gone."""
        configurable = {"thread_id": thread, "checkpoint_ns": entry.namespace, "checkpoint_id": entry.id}
        found: CheckpointTuple | None = self.saver.get_tuple({"configurable": configurable})
        if found is None:
            raise Contention(f"checkpoint {entry.id} is gone from {self.name}")
        return found


def _make_tuple(thread: str, found: SourceCheckpoint, writes: Iterable[SourceWrite]) -> CheckpointTuple:
    """Return a checkpoint with its pending writes in LangGraph's order."""
    entry = found.entry

    def config(checkpoint_id: str) -> Any:
        place = {"checkpoint_ns": entry.namespace, "checkpoint_id": checkpoint_id}
        return {"configurable": {"thread_id": thread, **place}}

    ordered = sorted(writes, key=lambda write: write.order)
    return CheckpointTuple(
        config(entry.id),
        found.checkpoint,  # type: ignore[arg-type]
        found.metadata,  # type: ignore[arg-type]
        None if entry.parent_id is None else config(entry.parent_id),
        [(w.slot.task_id, w.channel, SERDE.value(w.kind, w.body)) for w in ordered],
    )
