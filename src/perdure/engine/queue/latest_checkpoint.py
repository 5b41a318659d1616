"""The latest checkpoint of a thread, by which it is decided whether a run's question or failure still stands.

A run is not the last to write to a thread: a program that uses the library beside a server may answer, edit
or go on with it, and leaves the queue as it is. So what the queue records of a run counts only as long as the
latest checkpoint agrees.
"""

from __future__ import annotations

from collections.abc import Set
from typing import NamedTuple

from perdure.engine.requests import read_record
from perdure.engine.threads.thread_state import missing_head_error
from perdure.engine.threads.undisturbed import read_undisturbed
from perdure.model.checkpoint import CheckpointRecord
from perdure.model.heads import ROOT, belongs
from perdure.model.ops import Fetch, Get, Range
from perdure.model.program import Program, ask
from perdure.model.records import CHECKPOINT, HEAD, WRITE, Partition, Record
from perdure.model.runs.messages import WAITING, Run
from perdure.model.runs.next_step import has_next_step
from perdure.model.write_records import find_asking_tasks


class LatestCheckpoint(NamedTuple):
    """The latest checkpoint of a thread, and the records of the writes on it, without their bodies."""

    checkpoint: CheckpointRecord
    writes: tuple[Record, ...]

    @property
    def has_interrupt(self) -> bool:
        """True if it has an interrupt without an answer."""
        return bool(find_asking_tasks(self.writes))

    def is_asking(self, waited: Run | None) -> bool:
        """Return True if a thread waits that the inbox, or the note of an edit, shows as waiting.

        Args:
            waited: the run that the inbox names, ``None`` if it names none or the run is gone.
        """
        if self.has_interrupt:
            return True
        is_paused = waited is not None and waited.state == WAITING and not waited.note.get("interrupts")
        if is_paused and waited is not None and self.is_of(waited):
            return True
        return self._is_edit and has_next_step(self.checkpoint)

    def is_past(self, run: Run, run_ids: Set[str]) -> bool:
        """Return True if a thread went past the end of its newest run. A copy of an earlier checkpoint is not
        past it.

        Args:
            run: the newest run.
            run_ids: the ids of the thread's runs, which ended no later.
        """
        if self.checkpoint.source == "fork" or self.checkpoint.run_id in run_ids:
            return False
        made_at = self.checkpoint.made_at
        # A run that fails early stores no checkpoint, so the order is known only from the times.
        return made_at is not None and made_at > run.updated_at

    def is_of(self, run: Run) -> bool:
        """Return True if a run stored the checkpoint, or something on it."""
        return self.checkpoint.run_id == run.id or any(
            belongs(record.fields["nonce"], (run.id,)) for record in self.writes
        )

    @property
    def _is_edit(self) -> bool:
        source = self.checkpoint.source
        # A run begins with such a checkpoint as well, and then writes on it.
        is_edit_or_begin = source in ("input", "fork")
        return source == "update" or (is_edit_or_begin and not self.writes)


def read_latest_checkpoint(partition: Partition) -> Program[LatestCheckpoint | None]:
    """Return the latest checkpoint of a thread, ``None`` if it has none.

    Raises:
        Corrupt: it cannot be read.
    """
    return (yield from read_undisturbed(partition, lambda: _read(partition)))


def _read(partition: Partition) -> Program[LatestCheckpoint | None]:
    record = yield from read_record(partition, HEAD, (ROOT,))
    if record is None:
        return None
    head = record.fields["checkpoint_id"]
    latest = yield from read_at(partition, head)
    if latest is None:
        raise missing_head_error(partition, ROOT, head)
    return latest


def read_at(partition: Partition, head: str) -> Program[LatestCheckpoint | None]:
    """Return the checkpoint that is a thread's latest; ``None`` if it is not stored any more."""
    stored, writes = yield from ask(
        Fetch(partition, (Get(CHECKPOINT, (ROOT, head)), Range(WRITE, (ROOT, head), bodies=False)))
    )
    if not stored:
        return None
    return LatestCheckpoint(CheckpointRecord.read(stored[0]), writes)
