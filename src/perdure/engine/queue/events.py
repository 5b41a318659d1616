"""Event log of a thread: written by the holder of a run, read by any process.

Event numbers ascend along the thread, with gaps. The events are kept for a while, for clients that follow a
run from another process or have lost their connection; the durable state is in checkpoints.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from perdure.engine.requests import try_commit
from perdure.engine.transact import Budget
from perdure.errors import Fenced
from perdure.model.ops import Check, Delete, Expect, Fetch, Get, Op, Put, Range
from perdure.model.program import Program, ask
from perdure.model.records import EPOCH, EVENT, LANE, Partition, Record
from perdure.model.runs.queue import EVENTS, IN, Lane

END = "end"
"""Name of a run's last event, which is stored in the commit that ends the run."""

LAST = (1 << 53) - 1
"""Number above every event: a subscription that starts after it receives only the end of the run."""

_RECORD_MAX = 128 * 1024
_PAGE = 100
PAGE_BYTES = 256 * 1024
"""Bytes of events after which a page ends: as much as a subscriber that reads slowly keeps in memory."""
_FIRST, _GROWTH = 2, 8
"""Number of records that the first request for a page fetches, and the maximum number that a further request
fetches for each record that was read before. Sizes are not known in advance, so the next records are assumed
to be as large as those."""


class Event(NamedTuple):
    """Event of a run; ``data`` is JSON text."""

    seq: int
    run_id: str
    name: str
    data: str


class Page(NamedTuple):
    """Events in order, and the cursor to continue after. ``is_last`` is true if there were no more."""

    events: tuple[Event, ...]
    after: int
    is_last: bool


def find_first_free(partition: Partition, now: int) -> Program[int]:
    """Return the number from which a run may number its events: above all earlier ones. As all come from one
    clock (``now``, microseconds), this includes those of events that were removed or never stored."""
    (found,) = yield from ask(Fetch(partition, (Range(EVENT, reverse=True, limit=1, bodies=False),)))
    newest: int = max((record.key[0] for record in found), default=-1)
    return max(now, newest + 1)


def span_of(data: str) -> int:
    """Return the count of numbers that an event takes: one, and one more for each 128 KiB of data."""
    # No character takes more than four bytes.
    if len(data) < _RECORD_MAX // 4:
        return 1
    return 1 + len(data.encode()) // _RECORD_MAX


def puts(run_id: str, events: Sequence[Event]) -> list[Put]:
    """Return the operations that store events: several in one record, a long one split over several."""
    ops: list[Put] = []
    batch: list[bytes] = []
    size = last = 0
    for event in events:
        data = event.data.encode()
        span = span_of(event.data)
        if batch and (span > 1 or size + len(data) > _RECORD_MAX):
            ops.append(_put(last, run_id, b"\n".join(batch)))
            batch, size = [], 0
        if span > 1:
            ops += _split(event, data, span)
            continue
        batch.append(b"%d\t%s\t%s" % (event.seq, event.name.encode(), data))
        size += len(data)
        last = event.seq
    if batch:
        ops.append(_put(last, run_id, b"\n".join(batch)))
    return ops


def _split(event: Event, data: bytes, span: int) -> list[Put]:
    first = event.seq - span + 1
    head = event.name.encode()
    return [
        _put(
            first + n,
            event.run_id,
            b"\t%d\t%d\t%s\n%s" % (n, span, head, data[n * _RECORD_MAX : (n + 1) * _RECORD_MAX]),
        )
        for n in range(span)
    ]


def _put(seq: int, run_id: str, body: bytes) -> Put:
    return Put(EVENT, (seq,), {"run_id": run_id}, body, Expect.ABSENT)


class _Part(NamedTuple):
    number: int
    span: int
    name: str
    data: bytes

    @classmethod
    def read(cls, record: Record) -> _Part | None:
        """Return the part of a long event that a record holds, ``None`` if it holds whole events."""
        if not record.body.startswith(b"\t"):
            return None
        head, _, data = record.body.partition(b"\n")
        _, number, span, name = head.split(b"\t", 3)
        return cls(int(number), int(span), name.decode(), data)


def _unpack(record: Record) -> list[Event]:
    events: list[Event] = []
    for line in record.body.split(b"\n"):
        seq, name, data = line.split(b"\t", 2)
        events.append(Event(int(seq), record.fields["run_id"], name.decode(), data.decode()))
    return events


def append(
    partition: Partition,
    run_id: str,
    events: Sequence[Event],
    epoch: int,
    budget: Budget,
    *,
    again: bool = False,
) -> Program[None]:
    """Store events of a held run, in as many commits as the budget needs.

    Args:
        partition: the thread.
        run_id: the run that the events are of.
        events: the events, in order.
        epoch: the epoch under which the run is held.
        budget: the room of a commit.
        again: true if the events, or some of them, may be stored already.

    Raises:
        Fenced: the run is not held under ``epoch`` any more.
    """
    waiting = puts(run_id, events)
    if again:
        waiting = [put._replace(expect=Expect.ANY) for put in waiting]
    while waiting:
        count = size = 0
        while count < min(len(waiting), budget.ops - 1) and (
            not count or size + len(waiting[count].body) <= budget.bytes
        ):
            size += len(waiting[count].body)
            count += 1
        if not (yield from try_commit(partition, (Check(EPOCH, (), epoch), *waiting[:count]))):
            raise Fenced(
                f"thread {partition.thread!r}: run {run_id!r} is not held under epoch {epoch} any more; its "
                "latest events were not stored"
            )
        del waiting[:count]


def read(partition: Partition, after: int, run_id: str | None = None) -> Program[Page]:
    """Read a page of events after a number, in order: of one run, or of all runs of the thread. A page has
    little more than ``PAGE_BYTES``, unless the records become larger within it."""
    events: list[Event] = []
    parts: list[bytes] = []
    cursor = at = after
    count = size = 0
    limit = _FIRST
    while True:
        (found,) = yield from ask(Fetch(partition, (Range(EVENT, after=(at,), limit=limit),)))
        count += len(found)
        for record in found:
            size += len(record.body)
            at = record.key[0]
            part = _Part.read(record)
            if part is None:
                parts = []
                events += [event for event in _unpack(record) if event.seq > after]
                cursor = at
                continue
            # A long event whose last part was never stored is followed by the first part of another.
            if part.number == len(parts):
                parts = [*parts, part.data]
            else:
                parts = [part.data][: not part.number]
            if len(parts) == part.span:
                events.append(Event(at, record.fields["run_id"], part.name, b"".join(parts).decode()))
                cursor, parts = at, []
        is_last, is_full = len(found) < limit, count >= _PAGE or size >= PAGE_BYTES
        if is_last or (is_full and cursor > after):
            return Page(tuple(e for e in events if run_id in (None, e.run_id)), cursor, is_last)
        fitting = (PAGE_BYTES - size) * count // max(size, 1)
        limit = max(_FIRST, min(_PAGE - count, count * _GROWTH, fitting))


def keep_until(until: int, fresh: int) -> Put:
    """Return the operation that schedules removal of a thread's events at ``until``, replacing any earlier
    schedule."""
    return Lane(EVENTS).at_time(until).put(fresh)._replace(expect=Expect.ANY)


def forget(partition: Partition, now: int, keep: int, budget: Budget) -> Program[bool]:
    """Remove a page of events of finished runs that are older than ``keep`` microseconds.

    The newest record stays, as its number is where numbering continues. Returns true if there is more to
    remove now.
    """
    items = (Get(LANE, (IN,)), Get(LANE, (EVENTS,)), Range(EVENT, limit=budget.ops, bodies=False))
    lanes, scheduled, found = yield from ask(Fetch(partition, items))
    lane, schedule = Lane.read(IN, lanes), Lane.read(EVENTS, scheduled)
    if not schedule.version:
        return False
    old = [
        record.key
        for record in found[:-1]
        if record.key[0] <= now - keep and record.fields["run_id"] != lane.run_id
    ]
    gone = old[: budget.ops - 1]
    has_more = bool(gone) and len(found) == budget.ops
    schedule_op: Op
    if has_more:
        schedule_op = Check(LANE, (EVENTS,), schedule.version)
    elif len(found) - len(gone) > 1:
        schedule_op = schedule.at_time(now + keep).put(0)
    else:
        schedule_op = Delete(LANE, (EVENTS,), schedule.version)
    is_done = yield from try_commit(partition, (schedule_op, *(Delete(EVENT, key) for key in gone)))
    return has_more and is_done
