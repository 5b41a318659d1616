"""Drafts of writes: what the caller of a put encodes for a thread as it was seen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from perdure.engine.threads.thread_state import View
from perdure.model.checkpoint import CheckpointRecord, PendingWrite
from perdure.model.ops import Check
from perdure.model.program import Program


class CheckpointDraft(NamedTuple):
    """A checkpoint encoded under a collection generation, and the chunks that it adds.

    ``checks`` prove that chunks it refers to and does not add are stored; ``replayed`` that the writes on its
    parent are, from which its DeltaChannels are rebuilt."""

    chunks: Mapping[bytes, bytes]
    checkpoint: CheckpointRecord
    checks: tuple[Check, ...]
    replayed: tuple[Check, ...]


class WritesDraft(NamedTuple):
    """A task's writes encoded under a collection generation, with chunks and checks as a checkpoint's."""

    chunks: Mapping[bytes, bytes]
    writes: tuple[PendingWrite, ...]
    checks: tuple[Check, ...]


class DraftsCheckpoint(Protocol):
    """Drafter of a checkpoint for a put."""

    def draft(self, view: View, generation: int, seq: int) -> Program[CheckpointDraft]:
        """Return the checkpoint, encoded for a thread as it was seen, under a collection generation and a
        sequence number. It may look up what the checkpoint is built on, and is called again if another write
        or a collection came between."""
        ...

    def freeze(self) -> None:
        """Keep the values as they are. Called before the thread is read for a draft."""
        ...


class DraftsWrites(Protocol):
    """Drafter of a task's writes for a put. ``child`` and ``before`` are called at the last moment."""

    def draft(self, view: View, generation: int) -> WritesDraft:
        """Return the writes, encoded for a thread as it was seen, under a collection generation."""
        ...

    def child(self) -> str | None:
        """Return the loop's own next checkpoint, as a write may be later than the put that consumed it."""
        ...

    def before(self) -> tuple[str, str] | None:
        """Return the checkpoint that the loop stored last, if the writes belong to that one or to its parent.
        Without a claim it must still be stored, as the writes would otherwise belong to a checkpoint that
        cannot be loaded."""
        ...
