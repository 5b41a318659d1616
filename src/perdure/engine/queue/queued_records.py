"""Reads of the records that a queue record counts, by a second request after the one that read the queue
record."""

from __future__ import annotations

from perdure.engine.requests import read_lane
from perdure.errors import Corrupt
from perdure.model.ops import Fetch, Range
from perdure.model.program import Program, ask
from perdure.model.records import Partition, Record
from perdure.model.runs.queue import Lane


def read_queued(
    partition: Partition, lane: Lane, queued: Range, what: str
) -> Program[tuple[Record, ...] | None]:
    """Return the records that a queue record counts.

    Args:
        partition: the thread.
        lane: the queue record as it was read.
        queued: the read of the records.
        what: description of the first of these records, for the error.

    Returns:
        The records; ``None`` if there are none because the queue has changed since: the thread was deleted,
        or others took them.

    Raises:
        Corrupt: the queue has not changed, and there are none.
    """
    (found,) = yield from ask(Fetch(partition, (queued,)))
    if found:
        return found
    if (yield from read_lane(partition, lane.name)).version != lane.version:
        return None
    raise Corrupt(f"thread {partition.thread!r}: {what} and is not stored; run `perdure fsck`")
