"""Removing a thread that nobody asked to have removed: only at rest, and as it was seen."""

from __future__ import annotations

from collections.abc import Callable

from perdure.engine.documents import Document
from perdure.model.ops import Check, Committed, Drop, Expect, Fetch, Get, Range
from perdure.model.program import Program, ask
from perdure.model.queue import IN, LATER, OUT, Lane
from perdure.model.records import DOCUMENT, EPOCH, HEAD, LANE, OF_THREAD, Kind, Partition, Record

MayGo = Callable[[Document | None, str | None], bool]
"""Whether a thread may be removed, given the document that says what it is to its clients and the id of its
latest checkpoint."""

_LANES = (IN, OUT, LATER)


def latest(partition: Partition) -> Program[str | None]:
    """The id of a thread's latest checkpoint."""
    (heads,) = yield from ask(Fetch(partition, (Get(HEAD, ("",)),)))
    return heads[0].fields["checkpoint_id"] if heads else None


def remove_resting(partition: Partition, may_go: MayGo) -> Program[bool]:
    """Remove a thread of which nothing is under way; whether it was removed.

    It stays while a message waits, now or for its time, a run is open, or a reply is to be sent, and when
    ``may_go`` is false. Whatever is accepted, stored or said of it after the look keeps it: the removal is
    refused then.
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
        _unchanged(DOCUMENT, OF_THREAD, documents),
        _unchanged(EPOCH, (), epochs),
        *(_unchanged(LANE, (name,), found) for name, found in zip(_LANES, lanes, strict=True)),
        *(Check(HEAD, head.key, head.version) for head in heads),
    ]
    if head is None:
        checks.append(Check(HEAD, ("",), Expect.ABSENT))
    outcome = yield from ask(Drop(partition, tuple(checks)))
    return isinstance(outcome, Committed)


def _unchanged(kind: Kind, key: tuple[str, ...], found: tuple[Record, ...]) -> Check:
    """The demand that a record is as it was seen, or still not there."""
    return Check(kind, key, found[0].version if found else Expect.ABSENT)
