"""Postponed messages: kept beside the inbox, where they delay nothing, and moved into it when due."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from perdure.engine.documents import Document
from perdure.engine.queue.due_pages import DuePages
from perdure.engine.queue.inbox import (
    Accepted,
    find_accepted,
    get_key,
    read_postponed,
    try_read_postponed,
    withdraw_postponed,
)
from perdure.engine.queue.preconditions import Precondition, check_precondition
from perdure.engine.requests import commit_for, first_of
from perdure.engine.transact import Budget, retry_attempt
from perdure.errors import QueueFull
from perdure.model.ops import Commit, Committed, Delete, Expect, Fetch, Get, Op, Put, Range
from perdure.model.program import Program, ask
from perdure.model.records import DOCUMENT, LANE, Partition, Record
from perdure.model.runs.messages import Message, dedupe_put, encode
from perdure.model.runs.queue import IN, LATER, Debounce, Lane, Stop

UNREADABLE = "later unreadable"
"""Collection of postponed messages that were due and could not be read."""

_NEVER = (1 << 53) - 1
"""A time that is always to come, more than two centuries after 1970; every database stores it exactly."""
_PAGE = 16
_OPS_A_MESSAGE = 3


def postpone(
    partition: Partition, message: Message, due: int, most: int, fresh: int, precondition: Precondition | None
) -> Program[Accepted]:
    """Accept a message that waits until a time: it gets its number then, and holds its dedupe key at once.

    Args:
        due: time at which it enters the inbox, in microseconds.
        most: maximum number of messages that may be postponed at a time.
        fresh: start of the versions of new records.
        precondition: a record that must exist, or is written with the message.

    Raises:
        NotFound: the record that must exist does not.
        AlreadyCreated: the record to create exists.
        QueueFull: ``most`` messages are postponed already.
    """

    def load() -> Program[tuple[Lane, Accepted | None]]:
        lanes, *keys = yield from ask(Fetch(partition, (Get(LANE, (LATER,)), *get_key(message.dedupe))))
        earlier = yield from find_accepted(partition, message.dedupe, *keys)
        return Lane.read(LATER, lanes), earlier

    def attempt(seen: tuple[Lane, Accepted | None]) -> Program[Accepted | None]:
        lane, earlier = seen
        if earlier is not None:
            return earlier
        if lane.pending >= most:
            raise QueueFull(
                f"thread {partition.thread!r} has {lane.pending} messages whose time comes later, as many as "
                "it may have; nothing of this one was stored. Send it again when it is due"
            )
        first = min(due, lane.ready_at or due)
        lane = lane._replace(last=lane.last + 1, since=first, ready_at=first)
        ops: list[Op] = [lane.put(fresh), _make_put(message, due, fresh)]
        if message.dedupe:
            ops.append(dedupe_put(message.dedupe, -due))
        if precondition is not None:
            ops.append(precondition)
        outcome = yield from ask(Commit(partition, tuple(ops)))
        if not isinstance(outcome, Committed):
            check_precondition(partition, precondition, outcome)
            return None
        stored = replace(message, accepted_at=due)
        return Accepted(0, message.id, False, lane.mark_stored(fresh), stored, False)

    return (yield from retry_attempt(partition, None, load, attempt))


class Brought(NamedTuple):
    """Result of a pass: ``has_more`` is true if more messages are due, ``unreadable`` names those that could
    not be read and were set aside."""

    has_more: bool
    unreadable: tuple[str, ...] = ()


def bring(partition: Partition, now: int, budget: Budget, fresh: int) -> Program[Brought]:
    """Move due messages into the inbox, in order.

    A message that cannot be read is moved to the collection ``UNREADABLE`` and does not block the others.

    Raises:
        Contention: other writers win each time.
    """

    most = min(_PAGE, (budget.ops - 4) // _OPS_A_MESSAGE)

    def load() -> Program[tuple[Lane, Lane, tuple[Record, ...]]]:
        waiting = Range(DOCUMENT, (LATER,), by="updated_at", limit=most + 1)
        items = (Get(LANE, (LATER,)), Get(LANE, (IN,)), waiting)
        lanes, inboxes, found = yield from ask(Fetch(partition, items))
        return Lane.read(LATER, lanes), Lane.read(IN, inboxes), found

    def attempt(seen: tuple[Lane, Lane, tuple[Record, ...]]) -> Program[Brought | None]:
        later, inbox, found = seen
        if not later.version:
            return Brought(False)
        ops: list[Op] = []
        unreadable: list[str] = []
        gone = 0
        for record in found[:most]:
            if record.fields["updated_at"] > now:
                break
            message = try_read_postponed(record)
            moved, after = _plan_entry(record, message, inbox, now, fresh)
            if ops and not budget.holds([*ops, *moved, inbox.put(fresh), inbox.put(fresh)]):
                break
            gone, ops, inbox = gone + 1, [*ops, *moved], after
            if message is None:
                unreadable.append(record.key[1])
        if inbox is not seen[1]:
            ops.append(inbox.put(fresh))
        next_due = next((record.fields["updated_at"] for record in found[gone:]), None)
        ops.append(_update_queue(later, gone, next_due))
        brought = Brought(next_due is not None and next_due <= now, tuple(unreadable))
        return (yield from commit_for(partition, ops, brought))

    return (yield from retry_attempt(partition, None, load, attempt))


def _plan_entry(
    record: Record, message: Message | None, inbox: Lane, now: int, fresh: int
) -> tuple[list[Op], Lane]:
    """Return the operations that move a due message into the inbox, or set it aside if it cannot be read, and
    the inbox afterwards."""
    gone = Delete(DOCUMENT, record.key, record.version)
    if message is None:
        kept = Put(DOCUMENT, (UNREADABLE, record.key[1]), record.fields, record.body, version=fresh)
        return [gone, kept], inbox
    inbox = inbox.accept(now, Debounce())
    entered = replace(message, seq=inbox.last, accepted_at=now)
    return [gone, *entered.put_with_key(Expect.ANY)], inbox


def list_postponed(partition: Partition, limit: int) -> Program[tuple[Message, ...]]:
    """Read the postponed messages of a thread that can be read, the earliest due first."""
    (found,) = yield from ask(Fetch(partition, (Range(DOCUMENT, (LATER,), by="updated_at", limit=limit),)))
    return tuple(message for message in map(try_read_postponed, found) if message is not None)


def find_threads(tenant: str) -> Program[list[Partition]]:
    """Return the threads of a tenant that have postponed messages, by the time of their first one."""
    found: list[Partition] = []
    pages = DuePages(tenant, until=_NEVER)
    while not pages.is_last:
        found += [queue.partition for queue in (yield from pages.read_next()) if queue.name == LATER]
    return found


def withdraw(partition: Partition, message_id: str, how: Stop, now: int, fresh: int) -> Program[bool]:
    """Withdraw a postponed message; ``False`` if there is none.

    It enters the inbox as a withdrawn message, so that its status can still be read.
    """

    def load() -> Program[tuple[Lane, Lane, Document | None, int | None]]:
        first_two = Range(DOCUMENT, (LATER,), by="updated_at", limit=2, bodies=False)
        items = (Get(LANE, (LATER,)), Get(LANE, (IN,)), Get(DOCUMENT, (LATER, message_id)), first_two)
        lanes, inboxes, found, first = yield from ask(Fetch(partition, items))
        record = first_of(found)
        other = next((each.fields["updated_at"] for each in first if each.key[1] != message_id), None)
        return Lane.read(LATER, lanes), Lane.read(IN, inboxes), record and Document.read(record), other

    def attempt(seen: tuple[Lane, Lane, Document | None, int | None]) -> Program[bool | None]:
        later, inbox, document, other = seen
        if document is None:
            return False
        ops = withdraw_postponed(inbox, read_postponed(document), how, now, fresh)
        ops.append(Delete(DOCUMENT, (LATER, message_id), document.version))
        ops.append(_update_queue(later, 1, other))
        return (yield from commit_for(partition, ops, True))

    return (yield from retry_attempt(partition, None, load, attempt))


def _update_queue(later: Lane, gone: int, first: int | None) -> Op:
    """Return the operation on the queue record after ``gone`` messages have left; ``first`` is when the next
    one is due."""
    if first is None:
        return Delete(LANE, (LATER,), later.version)
    return later._replace(last=max(1, later.last - gone), since=first, ready_at=first).put(0)


def _make_put(message: Message, due: int, version: int) -> Put:
    fields: dict[str, Any] = {
        "id": message.id,
        "payload": message.payload,
        "graph": message.graph,
        "channel": message.channel,
        "mode": message.mode,
        "options": dict(message.options),
        "dedupe": message.dedupe.hex(),
    }
    body = encode(fields, "message")
    return Put(DOCUMENT, (LATER, message.id), {"updated_at": due}, body, Expect.ABSENT, version)
