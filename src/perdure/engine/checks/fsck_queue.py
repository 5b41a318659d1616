"""Check of a thread's queue: that accepted work is stored, and that a worker will take it.

A queue record counts the messages that came and those that were taken. If it counts a message that is not
stored, or its open run is gone, the queue is blocked. A reply that is not stored blocks those after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from perdure.engine.checks.fsck_report import RESTORE, Damage, Finding
from perdure.engine.checks.scan import start
from perdure.engine.documents import Document
from perdure.engine.queue.inbox import read_postponed
from perdure.engine.queue.scheduled import UNREADABLE
from perdure.errors import Corrupt
from perdure.model.ops import Fetch, Get
from perdure.model.program import Program, ask
from perdure.model.records import DOCUMENT, EPOCH, INBOX, LANE, OUTBOX, RUN, Key, Kind, Partition
from perdure.model.runs.messages import OPEN, Message, Reply, Run
from perdure.model.runs.queue import IN, LATER, OUT, WAITS, Lane
from perdure.model.runs.waits import next_due, read_waits

_KINDS: tuple[tuple[Kind, str, type[Message | Run | Reply | Document]], ...] = (
    (INBOX, "message", Message),
    (RUN, "run", Run),
    (OUTBOX, "reply", Reply),
    (DOCUMENT, "document", Document),
)
_POSTPONED = {LATER: "postponed message", UNREADABLE: "postponed message, set aside when it was due:"}
_SHOWN = 3


@dataclass(slots=True)
class _Queue:
    """A queue as it was read. ``stored`` has the keys of its records, readable or not."""

    inbox: Lane
    outbox: Lane
    timer: Lane
    open_run: str | None
    stored: dict[Kind, set[Any]] = field(default_factory=lambda: {kind: set() for kind, _, _ in _KINDS})
    runs: dict[str, Run] = field(default_factory=dict[str, Run])
    unreadable: list[str] = field(default_factory=list[str])


def check_queue(partition: Partition) -> Program[list[Finding]]:
    """Return everything that is wrong with a thread's messages, runs, replies and documents."""
    queue = yield from _read(partition)
    details = (*queue.unreadable, *_compare_counts(queue), *_check_runs(queue))
    kinds = [Damage.UNREADABLE] * len(queue.unreadable)
    kinds += [Damage.QUEUE] * (len(details) - len(kinds))
    return [
        Finding(partition.thread, "", None, kind, detail, RESTORE)
        for kind, detail in zip(kinds, details, strict=True)
    ]


def _read(partition: Partition) -> Program[_Queue]:
    inboxes, outboxes, timers, epochs = yield from ask(
        Fetch(partition, (Get(LANE, (IN,)), Get(LANE, (OUT,)), Get(LANE, (WAITS,)), Get(EPOCH, ())))
    )
    open_run = next((epoch.fields["open_run"] for epoch in epochs), None)
    timer = Lane.read(WAITS, timers)
    queue = _Queue(Lane.read(IN, inboxes), Lane.read(OUT, outboxes), timer, open_run)
    walks = yield from start(partition, [kind for kind, _, _ in _KINDS])
    for (kind, name, reader), walk in zip(_KINDS, walks, strict=True):
        while not walk.is_last:
            yield from walk.read_next_page(partition)
            queue.stored[kind].update(stub.key[0] for stub in walk.stubs)
            queue.unreadable += [
                f"{_name_record(name, key)} cannot be read: {error}" for key, error in walk.unreadable
            ]
            for record in walk.records:
                try:
                    read = reader.read(record)
                    if isinstance(read, Document) and record.key[0] in _POSTPONED:
                        read_postponed(read)
                except (Corrupt, ValueError, KeyError, TypeError) as error:
                    queue.unreadable.append(
                        f"{_name_record(name, record.key)} cannot be read: {type(error).__name__}"
                    )
                else:
                    if isinstance(read, Run):
                        queue.runs[read.id] = read
                    elif kind is DOCUMENT and record.key[0] == UNREADABLE:
                        queue.unreadable.append(f"{_name_record(name, record.key)} has not entered the inbox")
    return queue


def _compare_counts(queue: _Queue) -> Iterator[str]:
    """Yield the records that a queue counts but that are not stored, and the stored ones that it does not
    count."""
    for kind, lane, name in ((INBOX, queue.inbox, "message"), (OUTBOX, queue.outbox, "reply")):
        stored = queue.stored[kind]
        pending = range(lane.bound + 1, lane.last + 1)
        if absent := [number for number in pending if number not in stored]:
            yield f"the {lane.name} counts {_join(name, absent)}, not stored; what comes after waits for it"
        if lane.due_at is None and (lane.pending or lane.run_id is not None):
            yield f"the {lane.name} has something to do, and no time at which it is due"
        if beyond := sorted(number for number in stored if number > lane.last):
            yield f"the {lane.name} counts to {lane.last}, and beyond that is stored {_join(name, beyond)}"


def _check_runs(queue: _Queue) -> Iterator[str]:
    lane, stored = queue.inbox, queue.stored[RUN]
    if queue.open_run != lane.run_id:
        yield f"the epoch is held for run {queue.open_run}, and the inbox has {lane.run_id} open"
    for run_id, is_open, what in (
        (lane.run_id, True, "open"),
        (lane.waiting, False, "waiting for an answer"),
    ):
        if run_id is None:
            continue
        if run_id not in stored:
            yield f"the inbox has run {run_id} {what}, which is not stored"
        elif run_id in queue.runs and (queue.runs[run_id].state == OPEN) != is_open:
            yield f"the inbox has run {run_id} {what}, which is {queue.runs[run_id].state}"
    asked = queue.runs.get(lane.waiting or "")
    if asked is not None and queue.timer.due_at is None and next_due(read_waits(asked.note).values()):
        yield f"run {asked.id} waits with a deadline or a reminder, and has no time at which it is due"
    for run in queue.runs.values():
        if run.state != OPEN:
            continue
        if run.id != lane.run_id:
            yield f"run {run.id} is open, and the inbox does not have it: no worker ends it"
        absent = [n for n in range(run.first, run.last + 1) if n not in queue.stored[INBOX]]
        if absent:
            yield f"the open run {run.id} took {_join('message', absent)}, not stored"


def _name_record(name: str, key: Key) -> str:
    """Name a record by its kind and key. A postponed message is a document, in one of two collections."""
    if name == "document" and key[0] in _POSTPONED:
        return f"{_POSTPONED[key[0]]} {key[1]}"
    return f"{name} {'/'.join(map(str, key))}"


def _join(name: str, numbers: Sequence[int]) -> str:
    """Join the first few numbers, and the count of the others."""
    shown = ", ".join(map(str, numbers[:_SHOWN]))
    if len(numbers) > _SHOWN:
        shown += f" and {len(numbers) - _SHOWN} more"
    return f"{name} {shown}"
