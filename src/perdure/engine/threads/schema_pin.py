"""Pins: a thread that is kept at a schema version of its application, and is migrated no further."""

from __future__ import annotations

from perdure.engine import documents
from perdure.engine.complete_reads import read_all
from perdure.engine.threads.thread_state import load_view
from perdure.engine.transact import ATTEMPTS
from perdure.errors import Conflict, Contention, ThreadPinned
from perdure.model.checkpoint import CheckpointRecord
from perdure.model.heads import ROOT, schema_of
from perdure.model.missing_thread import missing_thread
from perdure.model.ops import Check, Commit, Committed, Delete, Expect, Fetch, Get, Op, Put, Range
from perdure.model.program import Program, ask
from perdure.model.record_versions import successor
from perdure.model.records import CHECKPOINT, DOCUMENT, GC, HEAD, WRITE, Partition
from perdure.model.runs.messages import encode
from perdure.model.write_records import read_writes

_PIN = ("schema", "pin")
_VERSION = "version"


def read_pin(partition: Partition) -> Program[int | None]:
    """Return the schema version that a thread is pinned to, ``None`` if it is not pinned."""
    found = yield from documents.get(partition, *_PIN)
    if found is None:
        return None
    return int(found.body[_VERSION])


def require_unpinned(partition: Partition, version: int) -> Program[None]:
    """Raise ``ThreadPinned`` if a thread may not be migrated to a schema version."""
    found = yield from read_pin(partition)
    if found is not None and found < version:
        raise ThreadPinned(
            f"thread {partition.thread!r} is pinned to schema version {found}, this application is at "
            f"version {version}; nothing was changed. Serve the thread with the older graph and "
            f"schema.at({found}), or remove the pin: `perdure schema unpin`"
        )


def pin(partition: Partition, version: int | None, now: int) -> Program[None]:
    """Pin a thread to a schema version, or remove its pin.

    This raises the collection generation, so that writes planned without the pin are planned again. If a
    newer version has stored a part of a step by then, neither version could continue it, so the pin is
    removed again.

    Args:
        partition: The thread.
        version: The version, ``None`` to remove the pin.
        now: Microseconds since the epoch.

    Raises:
        NotFound: There is no such thread.
        Conflict: A step of a newer version is under way.
        Contention: Other writers win each time.
    """
    for _ in range(ATTEMPTS):
        view = yield from load_view(partition, "")
        if view.head is None:
            raise missing_thread(partition)
        (found,) = yield from ask(Fetch(partition, (Get(DOCUMENT, _PIN),)))
        before = found[0].version if found else 0
        pinned = successor(before, version, now)
        change: Op
        if version is None:
            if not found:
                return
            change = Delete(DOCUMENT, _PIN, expect=before)
        else:
            fields = {"updated_at": now}
            body = encode({_VERSION: version}, "pin")
            change = Put(DOCUMENT, _PIN, fields, body, expect=before or Expect.ABSENT, version=pinned)
        raised = successor(view.generation, partition.thread, str(version))
        outcome = yield from ask(
            Commit(
                partition,
                (
                    Check(HEAD, ("",), view.head.version),
                    Put(GC, (), expect=view.generation or Expect.ABSENT, version=raised),
                    change,
                ),
            )
        )
        if isinstance(outcome, Committed):
            newest = yield from _find_newest_write(partition, view.head.checkpoint_id, version)
            if version is None or newest <= version:
                return
            undo: Op = Delete(DOCUMENT, _PIN, expect=pinned)
            if found:
                undo = Put(DOCUMENT, _PIN, found[0].fields, found[0].body, pinned, successor(pinned, now))
            yield from ask(Commit(partition, (undo,)))
            raise Conflict(
                f"thread {partition.thread!r} has a part of a step of schema version {newest}; it was not "
                f"pinned to version {version}. Pin it again when the step has ended"
            )
    raise Contention(f"thread {partition.thread!r} keeps being written to; pin it later")


def _find_newest_write(partition: Partition, checkpoint_id: str, version: int | None) -> Program[int]:
    """Return the newest schema version among the pending writes of a checkpoint; 0 if it has none, or is of a
    newer version than ``version``."""
    checkpoints, writes = yield from read_all(
        partition, Range(CHECKPOINT, (ROOT, checkpoint_id)), Range(WRITE, (ROOT, checkpoint_id))
    )
    if version is None or any(CheckpointRecord.read(record).schema > version for record in checkpoints):
        return 0
    return max((schema_of(write.nonce) for write in read_writes(writes)), default=0)
