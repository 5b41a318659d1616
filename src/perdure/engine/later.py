"""Messages whose time comes later: they are kept beside the inbox, hold up nothing, and enter it when due."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from perdure.engine.documents import Document
from perdure.engine.inbox import Accepted, postponed
from perdure.engine.transact import retrying
from perdure.errors import NotFound, TryLater
from perdure.model.lane import IN, LATER, Debounce, Lane, Stop
from perdure.model.messages import Message, dedupe_put, encode
from perdure.model.ops import Check, Commit, Committed, Delete, Expect, Fetch, Get, Op, Put, Range
from perdure.model.program import Program, ask
from perdure.model.records import DEDUPE, DOCUMENT, LANE, Partition

_PAGE = 16
_OPS_A_MESSAGE = 3


def postpone(
    partition: Partition, message: Message, due: int, most: int, fresh: int, within: Check | None
) -> Program[Accepted]:
    """Accept a message that is to wait until a time. It has no number before that. One that may be sent
    again has to have the same id each time. ``NotFound`` when ``within`` is not there, ``TryLater`` when
    ``most`` wait like this already."""

    def load() -> Program[tuple[Lane, Accepted | None]]:
        dedupe = (Get(DEDUPE, (message.dedupe,)),) if message.dedupe else ()
        lanes, waits, *known = yield from ask(
            Fetch(partition, (Get(LANE, (LATER,)), Get(DOCUMENT, (LATER, message.id)), *dedupe))
        )
        before = Accepted(0, message.id, True) if waits else None
        if known and known[0]:
            before = Accepted(known[0][0].fields["seq"], message.id, True)
        return Lane.read(LATER, lanes), before

    def attempt(seen: tuple[Lane, Accepted | None]) -> Program[Accepted | None]:
        lane, before = seen
        if before is not None:
            return before
        if lane.pending >= most:
            raise TryLater(
                f"thread {partition.thread!r} has {lane.pending} messages whose time comes later, as many as "
                "it may have; nothing of this one was stored. Send it again when it is due"
            )
        first = due if lane.ready_at is None or not lane.version else min(due, lane.ready_at)
        lane = lane._replace(last=lane.last + 1, since=first, ready_at=first)
        ops: list[Op] = [lane.put(fresh), _put(message, due, fresh)]
        if within is not None:
            ops.append(within)
        outcome = yield from ask(Commit(partition, tuple(ops)))
        if not isinstance(outcome, Committed):
            if within is not None and (outcome.kind, outcome.key) == (within.kind, within.key):
                raise NotFound(f"there is no thread {partition.thread!r}; nothing of this message was stored")
            return None
        stored = replace(message, accepted_at=due)
        return Accepted(0, message.id, False, lane.stored(fresh), stored, False)

    return (yield from retrying(partition, None, load, attempt))


def bring(partition: Partition, now: int, budget: int, fresh: int) -> Program[bool]:
    """Let into the inbox what is due, in order; whether there is more of it."""
    most = min(_PAGE, (budget - 2) // _OPS_A_MESSAGE)
    lanes, inboxes, found = yield from ask(
        Fetch(
            partition,
            (
                Get(LANE, (LATER,)),
                Get(LANE, (IN,)),
                Range(DOCUMENT, (LATER,), by="updated_at", limit=most + 1),
            ),
        )
    )
    later, inbox = Lane.read(LATER, lanes), Lane.read(IN, inboxes)
    if not later.version:
        return False
    waiting = [Document.read(record) for record in found]
    due = [document for document in waiting if document.updated_at <= now][:most]
    rest = waiting[len(due) :]
    ops: list[Op] = []
    for document in due:
        # It starts over, as anything that is said: an answer behind it would be given to what is asked next.
        inbox = inbox._replace(waiting=None).accepted(now, Debounce())
        message = replace(postponed(document), seq=inbox.last, accepted_at=now)
        ops += [Delete(DOCUMENT, (LATER, document.name), document.version), message.put()]
        if message.dedupe:
            ops.append(dedupe_put(message.dedupe, message.seq))
    if due:
        ops.append(inbox.put(fresh))
    ops.append(_after(later, len(due), rest))
    outcome = yield from ask(Commit(partition, tuple(ops)))
    return not isinstance(outcome, Committed) or (bool(rest) and rest[0].updated_at <= now)


def waiting(partition: Partition, limit: int) -> Program[tuple[Message, ...]]:
    """The messages of a thread whose time comes later, that of the first one first."""
    (found,) = yield from ask(Fetch(partition, (Range(DOCUMENT, (LATER,), by="updated_at", limit=limit),)))
    return tuple(postponed(Document.read(record)) for record in found)


def withdraw(partition: Partition, message_id: str, how: Stop, now: int, fresh: int) -> Program[bool]:
    """Take back a message before its time; whether it waited for that. It enters the inbox as one that was
    taken back, so that it is known what became of it."""

    def load() -> Program[tuple[Lane, Lane, Document | None, Document | None]]:
        lanes, inboxes, found, first = yield from ask(
            Fetch(
                partition,
                (
                    Get(LANE, (LATER,)),
                    Get(LANE, (IN,)),
                    Get(DOCUMENT, (LATER, message_id)),
                    Range(DOCUMENT, (LATER,), by="updated_at", limit=2),
                ),
            )
        )
        others = [d for d in map(Document.read, first) if d.name != message_id]
        document = Document.read(found[0]) if found else None
        return Lane.read(LATER, lanes), Lane.read(IN, inboxes), document, others[0] if others else None

    def attempt(seen: tuple[Lane, Lane, Document | None, Document | None]) -> Program[bool | None]:
        later, inbox, document, other = seen
        if document is None:
            return False
        question = inbox.waiting
        inbox = inbox.accepted(now, Debounce())._replace(waiting=question)
        message = replace(postponed(document).withdrawn(how), seq=inbox.last, accepted_at=now)
        ops: list[Op] = [
            Delete(DOCUMENT, (LATER, message_id), document.version),
            inbox.put(fresh),
            message.put(),
            _after(later, 1, [other] if other is not None else []),
        ]
        if message.dedupe:
            ops.append(dedupe_put(message.dedupe, message.seq))
        outcome = yield from ask(Commit(partition, tuple(ops)))
        return True if isinstance(outcome, Committed) else None

    return (yield from retrying(partition, None, load, attempt))


def _after(later: Lane, gone: int, rest: list[Document]) -> Op:
    """The lane once some have left it."""
    if not rest:
        return Delete(LANE, (LATER,), later.version)
    first = rest[0].updated_at
    return later._replace(last=max(1, later.last - gone), since=first, ready_at=first).put(0)


def _put(message: Message, due: int, version: int) -> Put:
    said: dict[str, Any] = {
        "id": message.id,
        "payload": message.payload,
        "graph": message.graph,
        "channel": message.channel,
        "mode": message.mode,
        "options": dict(message.options),
        "dedupe": message.dedupe.hex(),
    }
    body = encode(said, "message")
    return Put(DOCUMENT, (LATER, message.id), {"updated_at": due}, body, Expect.ABSENT, version)
