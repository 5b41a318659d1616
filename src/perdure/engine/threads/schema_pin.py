"""Pins: a thread that is kept at a schema version of its application, and is migrated no further."""

from __future__ import annotations

from perdure.engine import documents
from perdure.engine.complete_reads import read_all
from perdure.engine.requests import try_commit, version_of
from perdure.engine.threads.thread_records import raise_generation
from perdure.engine.threads.thread_state import load_view
from perdure.engine.transact import ATTEMPTS
from perdure.errors import Conflict, Contention, ThreadPinned
from perdure.model.checkpoint import CheckpointRecord
from perdure.model.heads import ROOT, schema_of
from perdure.model.missing_thread import missing_thread
from perdure.model.ops import Check, Delete, Expect, Fetch, Get, Op, Put, Range
from perdure.model.program import Program, ask
from perdure.model.record_versions import successor
from perdure.model.records import CHECKPOINT, DOCUMENT, HEAD, WRITE, Partition
from perdure.model.runs.messages import encode
from perdure.model.write_records import read_writes

_PIN = ("schema", "pin")
_VERSION = "version"


def read_pin(partition: Partition) -> Program[int | None]:
    """Return the schema version that a thread is pinned to, ``None`` if it is not pinned."""
    found = yield from documents.get(partition, *_PIN)
    return found and int(found.body[_VERSION])


def plan_copy(partition: Partition) -> Program[tuple[Put, ...]]:
    """Return the operation that gives a copy of a thread the same pin; none if the thread is not pinned."""
    (found,) = yield from ask(Fetch(partition, (Get(DOCUMENT, _PIN),)))
    return tuple(Put(DOCUMENT, _PIN, each.fields, each.body, version=each.version) for each in found)


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
        Conflict: A newer version has stored the thread, or a step of one is under way.
        Contention: Other writers win each time.
    """
    for _ in range(ATTEMPTS):
        view = yield from load_view(partition, "")
        if view.head is None:
            raise missing_thread(partition)
        if version is not None:
            yield from _require_reached(partition, view.head.checkpoint_id, version)
        (found,) = yield from ask(Fetch(partition, (Get(DOCUMENT, _PIN),)))
        before = version_of(found)
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
        raised = raise_generation(view.generation, partition.thread, str(version))
        unmoved = Check(HEAD, ("",), view.head.version)
        if (yield from try_commit(partition, (unmoved, raised, change))):
            if version is None:
                return
            newest = yield from _find_newest_write(partition, view.head.checkpoint_id)
            if newest <= version:
                return
            undo: Op = Delete(DOCUMENT, _PIN, expect=pinned)
            if found:
                undo = Put(DOCUMENT, _PIN, found[0].fields, found[0].body, pinned, successor(pinned, now))
            yield from try_commit(partition, (undo,))
            raise Conflict(
                f"thread {partition.thread!r} has a part of a step of schema version {newest}; it was not "
                f"pinned to version {version}. Pin it again when the step has ended"
            )
    raise Contention(f"thread {partition.thread!r} keeps being written to; pin it later")


def read_stored_version(partition: Partition) -> Program[int]:
    """Return the schema version that has stored the latest checkpoint of a thread.

    Raises:
        NotFound: There is no such thread.
    """
    view = yield from load_view(partition, "")
    if view.head is None:
        raise missing_thread(partition)
    return (yield from _read_version_at(partition, view.head.checkpoint_id))


def _read_version_at(partition: Partition, checkpoint_id: str) -> Program[int]:
    (checkpoints,) = yield from ask(Fetch(partition, (Get(CHECKPOINT, (ROOT, checkpoint_id)),)))
    return max((CheckpointRecord.read(record).schema for record in checkpoints), default=0)


def _require_reached(partition: Partition, checkpoint_id: str, version: int) -> Program[None]:
    """Raise ``Conflict`` if a newer version than ``version`` has stored a checkpoint: no version that the pin
    lets in could read it."""
    stored = yield from _read_version_at(partition, checkpoint_id)
    if stored > version:
        raise Conflict(
            f"thread {partition.thread!r} is at schema version {stored}, which version {version} cannot "
            f"read; it was not pinned. Pin it to version {stored}, or fork it from a checkpoint of version "
            f"{version}"
        )


def _find_newest_write(partition: Partition, checkpoint_id: str) -> Program[int]:
    """Return the newest schema version among the pending writes of a checkpoint; 0 if it has none."""
    (writes,) = yield from read_all(partition, Range(WRITE, (ROOT, checkpoint_id)))
    return max((schema_of(write.nonce) for write in read_writes(writes)), default=0)
