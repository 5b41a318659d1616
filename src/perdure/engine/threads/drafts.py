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

    ``checks`` prove that the chunks are stored to which it refers without adding them. ``replayed`` prove
    that the writes on its parent are stored from which its DeltaChannels are rebuilt."""

    chunks: Mapping[bytes, bytes]
    checkpoint: CheckpointRecord
    checks: tuple[Check, ...]
    replayed: tuple[Check, ...]


class WritesDraft(NamedTuple):
    """A task's writes encoded under a collection generation, with chunks and checks like those of a
    checkpoint."""

    chunks: Mapping[bytes, bytes]
    writes: tuple[PendingWrite, ...]
    checks: tuple[Check, ...]


class DraftsCheckpoint(Protocol):
    """Drafter of a checkpoint for a put."""

    def draft(self, view: View, generation: int, seq: int) -> Program[CheckpointDraft]:
        """Return the checkpoint, encoded for a thread as it was seen, under a collection generation and a
        sequence number. This may read what the checkpoint is built on. It is called again if another write or
        a collection came in between."""
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
        """Return the id of the loop's own next checkpoint, if any: a write may be stored after the checkpoint
        that consumed it."""
        ...

    def before(self) -> tuple[str, str] | None:
        """Return the checkpoint that the loop stored last, if the writes belong to that one or to its parent.
        Without a head claim that checkpoint must still be stored, because the writes would otherwise belong
        to a checkpoint that cannot be loaded."""
        ...
