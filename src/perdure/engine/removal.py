"""Automatic removal of a thread: only at rest, and only if it is unchanged."""

from __future__ import annotations

from collections.abc import Callable

from perdure.engine.documents import Document
from perdure.model.ops import Check, Committed, Drop, Expect, Fetch, Get, Range
from perdure.model.program import Program, ask
from perdure.model.queue import IN, LATER, OUT, Lane
from perdure.model.records import DOCUMENT, EPOCH, HEAD, LANE, OF_THREAD, Kind, Partition, Record

MayGo = Callable[[Document | None, str | None], bool]
"""Returns True if a thread may be removed, given the document that describes it to its clients and the id of
its latest checkpoint."""

_LANES = (IN, OUT, LATER)


def latest(partition: Partition) -> Program[str | None]:
    """Return the id of a thread's latest checkpoint."""
    (heads,) = yield from ask(Fetch(partition, (Get(HEAD, ("",)),)))
    return heads[0].fields["checkpoint_id"] if heads else None


def remove_resting(partition: Partition, may_go: MayGo) -> Program[bool]:
    """Remove a thread at rest; returns True if it was removed.

    It stays while a message waits, now or for its time, a run is open, or a reply is to be sent, and if
    ``may_go`` returns false. The removal is refused if anything was accepted or stored in the thread after it
    was read.
    """
    documents, epochs, heads, *lanes = yield from ask(
        Fetch(
            partition,
            (
                Get(DOCUMENT, OF_THREAD),
                Get(EPOCH, ()),
                Range(HEAD),
                *(Get(LANE, (name,)) for name in _LANES),
            ),
        )
    )
    queues = [Lane.read(name, found) for name, found in zip(_LANES, lanes, strict=True)]
    if any(lane.pending or lane.run_id is not None for lane in queues):
        return False
    head = next((head.fields["checkpoint_id"] for head in heads if head.key == ("",)), None)
    if not may_go(Document.read(documents[0]) if documents else None, head):
        return False
    checks = [
        unchanged(DOCUMENT, OF_THREAD, documents),
        unchanged(EPOCH, (), epochs),
        *(unchanged(LANE, (name,), found) for name, found in zip(_LANES, lanes, strict=True)),
        *(Check(HEAD, head.key, head.version) for head in heads),
    ]
    if head is None:
        checks.append(Check(HEAD, ("",), Expect.ABSENT))
    outcome = yield from ask(Drop(partition, tuple(checks)))
    return isinstance(outcome, Committed)


def unchanged(kind: Kind, key: tuple[str, ...], found: tuple[Record, ...]) -> Check:
    """Return the check that a record is as it was read, or still absent."""
    return Check(kind, key, found[0].version if found else Expect.ABSENT)
