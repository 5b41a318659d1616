"""A thread's open question: the message that answers it, and the reply to send if another message closes it.

A run that waits may leave such a reply in its note. It enters the outbox in the commit that closes the
question, so that a receiver which was sent the question is also sent its end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from perdure.engine.decoding import read_one
from perdure.errors import Corrupt, NotWaiting
from perdure.model.messages import ANSWERS, Message, Reply, Run
from perdure.model.ops import Fetch, Get, Op
from perdure.model.program import Program, ask
from perdure.model.queue import OUT, Lane
from perdure.model.records import LANE, RUN, Partition

_CLOSED = "if_closed"
_ORD = 1 << 20
"""Place of the closing reply among those of its run: above all others, and the same each time."""


def with_closing_reply(
    note: Mapping[str, Any], payload: Mapping[str, Any], options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the note of a run that waits with what follows from its question.

    Args:
        note: the note of the run.
        payload: the reply for the run's channel if the question is closed without an answer.
        options: the stored options of an answer that comes without a channel of its own.
    """
    return {**note, _CLOSED: {"reply": dict(payload), "options": dict(options)}}


def answering(partition: Partition, message: Message, lane: Lane) -> Program[tuple[Lane, Message]]:
    """Return the inbox without its open question, so that a second answer is refused, and the answer, with
    the graph that asked, the only question if it names none, and by default its run's channel.

    Raises:
        NotWaiting: the thread has no open question, or not the one that the answer names.
        Corrupt: the run that asked is not stored.
    """
    thread, named = partition.thread, message.options.get(ANSWERS, [])
    if lane.waiting is None:
        raise NotWaiting(
            f"thread {thread!r} waits for no answer: nothing interrupted it, or it was answered already; "
            "nothing of this answer was stored. Look at the thread's state"
        )
    (found,) = yield from ask(Fetch(partition, (Get(RUN, (lane.waiting,)),)))
    if not found:
        raise Corrupt(f"thread {thread!r}: the run {lane.waiting!r} that waits is not stored")
    run = read_one(partition, Run.read, found[0])
    ids = [i["id"] for i in run.note.get("interrupts", ())]
    asked = " and ".join(map(repr, ids)) or "nothing"
    if unknown := [name for name in named if name not in ids]:
        raise NotWaiting(
            f"thread {thread!r} waits for the answer to {asked}, not to {unknown[0]!r}; nothing of this "
            "answer was stored. Look at the thread's state"
        )
    if not named and len(ids) > 1:
        raise NotWaiting(
            f"thread {thread!r} waits for the answers to {asked}, and this one names none of them; "
            "nothing of it was stored. Say which one it answers, or answer each by its id"
        )
    options = dict(message.options)
    if not message.channel and _CLOSED in run.note:
        options |= run.note[_CLOSED]["options"]
    if not named and ids:
        options[ANSWERS] = ids
    channel = message.channel or run.channel
    return lane._replace(waiting=None), replace(message, graph=run.graph, channel=channel, options=options)


def closing_ops(partition: Partition, inbox: Lane, now: int, fresh: int) -> Program[tuple[Op, ...]]:
    """Return the operations that add the closing reply of a thread's open question to the outbox; none if
    there is no question, or no reply for it.

    Args:
        partition: the thread.
        inbox: its inbox before the question is closed.
        now: current time in microseconds.
        fresh: start of the versions of a new outbox.
    """
    if inbox.waiting is None:
        return ()
    try:
        runs, outboxes = yield from ask(Fetch(partition, (Get(RUN, (inbox.waiting,)), Get(LANE, (OUT,)))))
        run = read_one(partition, Run.read, runs[0]) if runs else None
    except Corrupt:
        # The message is accepted all the same: the damaged run is reported by fsck, and by the next claim.
        return ()
    left: Mapping[str, Any] | None = None if run is None else run.note.get(_CLOSED)
    if run is None or left is None:
        return ()
    outbox = Lane.read(OUT, outboxes)
    if not outbox.version:
        # A sender of an earlier thread of this name must not match this epoch.
        outbox = outbox._replace(epoch=fresh)
    reply = Reply(outbox.last + 1, run.id, _ORD, run.channel, left["reply"], created_at=now)
    return outbox.appended(now, 1).put(fresh), reply.put()
