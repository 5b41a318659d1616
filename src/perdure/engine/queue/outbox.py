"""Delivery of replies, in order, by one sender a thread at a time.

A reply is marked as being sent before its provider is called, and as sent when the provider has answered. A
mark whose sender is gone therefore means that the provider may or may not have the reply: the policy of the
channel decides whether it is sent again. A sender that lost its lease can mark nothing any more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

from perdure.engine.decoding import read_each, read_one
from perdure.engine.queue.claims import Unserved
from perdure.engine.queue.queued_records import read_queued
from perdure.engine.requests import commit_for, read_lane
from perdure.engine.transact import retry_attempt
from perdure.errors import Conflict, Fenced, NotFound
from perdure.model.ops import Delete, Fetch, Get, Op, Range
from perdure.model.program import Program, ask
from perdure.model.record_versions import successor
from perdure.model.records import LANE, OUTBOX, Partition
from perdure.model.runs.messages import DEAD, READY, SENDING, UNKNOWN, Reply
from perdure.model.runs.queue import OUT, Lane

A = TypeVar("A")


class Sending(NamedTuple):
    """Replies that this process delivers, the first of which is marked as being sent.

    ``in_doubt`` is true if the first reply was marked before, by a sender that is gone: the provider may have
    it."""

    partition: Partition
    lane: Lane
    replies: tuple[Reply, ...]
    in_doubt: bool

    @property
    def reply(self) -> Reply:
        return self.replies[0]


@dataclass(frozen=True, slots=True)
class Take:
    """Request to deliver a thread's next replies, at most ``most``, on ``channels``.

    ``now`` and ``ttl`` are in microseconds."""

    partition: Partition
    owner: str
    channels: Sequence[str]
    now: int
    ttl: int
    most: int

    def take(self) -> Program[Sending | Unserved | None]:
        """Take the replies; ``None`` if nothing is due, ``Unserved`` if the first is for another channel."""
        (sending,) = yield from retry_attempt(self.partition, None, self._load, self._attempt)
        return sending

    def _load(self) -> Program[tuple[Lane, tuple[Reply, ...]] | None]:
        lane = yield from read_lane(self.partition, OUT)
        if not lane.is_due(self.now):
            return lane, ()
        queued = Range(OUTBOX, after=(lane.bound,), limit=self.most)
        what = f"reply {lane.bound + 1} is to be sent"
        rows = yield from read_queued(self.partition, lane, queued, what)
        if rows is None:
            return None
        return (lane, tuple(read_each(self.partition, Reply.read, rows)))

    def _attempt(
        self, seen: tuple[Lane, tuple[Reply, ...]]
    ) -> Program[tuple[Sending | Unserved | None] | None]:
        lane, replies = seen
        if not replies:
            return (None,)
        if replies[0].channel not in self.channels:
            return (Unserved(replies[0].channel),)
        lane = lane.hold(self.owner, successor(lane.epoch, self.owner, self.now), self.now, self.ttl)
        in_doubt = replies[0].state == SENDING
        ops: list[Op] = [lane.put(0)]
        if not in_doubt:
            ops.append(_mark_sending(replies[0]).put())
            replies = (_mark_stored(_mark_sending(replies[0])), *replies[1:])
        sending = Sending(self.partition, lane.mark_stored(0), replies, in_doubt)
        return (yield from commit_for(self.partition, ops, (sending,)))


class DeliveryOutcome(NamedTuple):
    """Outcome of an attempt to deliver the first reply.

    Attributes:
        state: the reply's new state.
        provider_id: the provider's id for it.
        error: what failed, if anything.
        again_at: time of the next attempt, in microseconds, for a reply that is ``ready``, or still
            ``sending`` because its delivery is unknown; those behind it wait.
        counts: change of the number of attempts: 1 if this counts as one although nothing was sent, -1 if it
            does not count although the provider was called.
    """

    state: str
    provider_id: str | None = None
    error: str | None = None
    again_at: int | None = None
    counts: int = 0


def record_outcome(
    sending: Sending, settled: DeliveryOutcome, channels: Sequence[str], now: int, ttl: int
) -> Program[Sending | None]:
    """Record the outcome of the first reply and mark the next one, in one commit.

    Args:
        channels: the channels that the caller serves.
        now: current time in microseconds.
        ttl: length of the lease in microseconds.

    Returns:
        The replies left to deliver, ``None`` if the outbox was released.

    Raises:
        Fenced: another sender has taken over.
    """
    first, *rest = sending.replies
    first = replace(
        first,
        state=settled.state,
        provider_id=settled.provider_id,
        error=settled.error,
        attempts=first.attempts + settled.counts,
    )
    is_over = settled.state not in (READY, SENDING)
    goes_on = is_over and bool(rest) and rest[0].channel in channels

    def attempt(lane: Lane) -> Program[tuple[Sending | None] | None]:
        ops: list[Op] = [first.put()]
        replies = tuple(rest)
        if is_over:
            lane = lane.complete(first.seq)
        if goes_on:
            lane = lane.renew(now, ttl)
            ops.append(_mark_sending(rest[0]).put())
            replies = (_mark_stored(_mark_sending(rest[0])), *rest[1:])
        else:
            lane = lane.release(settled.again_at or now)
        left = None
        if goes_on:
            left = Sending(sending.partition, lane.mark_stored(0), replies, in_doubt=False)
        return (yield from commit_for(sending.partition, (lane.put(0), *ops), (left,)))

    (left,) = yield from _run_under_sender(sending, attempt)
    return left


def send_again(sending: Sending, now: int, ttl: int) -> Program[Sending]:
    """Mark the first reply, which is in doubt, as being sent once more.

    Raises:
        Fenced: another sender has taken over.
    """
    marked = _mark_sending(sending.reply)

    def attempt(lane: Lane) -> Program[Sending | None]:
        lane = lane.renew(now, ttl)
        replies = (_mark_stored(marked), *sending.replies[1:])
        again = Sending(sending.partition, lane.mark_stored(0), replies, in_doubt=False)
        return (yield from commit_for(sending.partition, (lane.put(0), marked.put()), again))

    return (yield from _run_under_sender(sending, attempt))


def retry(partition: Partition, seq: int, now: int) -> Program[Reply]:
    """Append a reply that was given up, or is held in doubt, to the thread's outbox again, under the same
    idempotency key.

    Raises:
        NotFound: there is no such reply.
        Conflict: it is neither given up nor in doubt.
    """

    def load() -> Program[tuple[Lane, Reply]]:
        lanes, rows = yield from ask(Fetch(partition, (Get(LANE, (OUT,)), Get(OUTBOX, (seq,)))))
        if not rows:
            raise NotFound(f"thread {partition.thread!r} has no reply {seq}")
        return Lane.read(OUT, lanes), read_one(partition, Reply.read, rows[0])

    def attempt(seen: tuple[Lane, Reply]) -> Program[Reply | None]:
        lane, reply = seen
        if reply.state not in (DEAD, UNKNOWN):
            raise Conflict(
                f"reply {seq} of thread {partition.thread!r} is {reply.state}; only replies that are "
                f"{DEAD} or {UNKNOWN} can be sent again"
            )
        lane = lane.append(now, 1)
        again = replace(reply, seq=lane.last, state=READY, attempts=0, error=None, version=0)
        gone = Delete(OUTBOX, (seq,), reply.version)
        return (yield from commit_for(partition, (lane.put(0), gone, again.put()), again))

    return (yield from retry_attempt(partition, None, load, attempt))


def read_replies(partition: Partition, limit: int, after: int | None = None) -> Program[tuple[Reply, ...]]:
    """Read the newest replies of a thread, newest first, before number ``after``."""
    newest = Range(OUTBOX, reverse=True, limit=limit)
    if after is not None:
        newest = newest._replace(after=(after,))
    (found,) = yield from ask(Fetch(partition, (newest,)))
    return tuple(read_each(partition, Reply.read, found))


def _run_under_sender(sending: Sending, attempt: Callable[[Lane], Program[A | None]]) -> Program[A]:
    """Run ``attempt`` on the outbox as long as this sender holds it."""
    partition = sending.partition

    def load() -> Program[Lane]:
        lane = yield from read_lane(partition, OUT)
        if lane.epoch != sending.lane.epoch or lane.owner is None:
            raise Fenced(
                f"thread {partition.thread!r}: another sender has taken over its outbox; nothing of this "
                "write was stored"
            )
        return lane

    return (yield from retry_attempt(partition, sending.lane, load, attempt))


def _mark_sending(reply: Reply) -> Reply:
    return replace(reply, state=SENDING, attempts=reply.attempts + 1)


def _mark_stored(reply: Reply) -> Reply:
    return replace(reply, version=reply.version + 1)
