"""Claiming a thread's next run, holding it, and ending it: the one writer that a thread has at a time.

Whoever claims a run raises the thread's epoch; every write of the run demands it. So whatever a holder does
after somebody else has taken over, however long it slept, is refused by the database.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from perdure.engine import followers
from perdure.engine.transact import retrying
from perdure.errors import Corrupt, Fenced, TooLarge
from perdure.model.messages import OPEN, WAITING, Message, Reply, Run, batch
from perdure.model.ops import Check, Commit, Committed, Expect, Fetch, Get, Op, Put, Range
from perdure.model.program import Program, ask
from perdure.model.queue import FOLLOWED, IN, OUT, Lane
from perdure.model.records import EPOCH, HEAD, INBOX, LANE, RUN, Partition
from perdure.model.versions import successor


class HeldRun(NamedTuple):
    """A run that this process holds, with its messages, the inbox as it was last seen, the thread's latest
    checkpoint when the run was claimed, and whether the thread was followed then, from any process."""

    partition: Partition
    run: Run
    messages: tuple[Message, ...]
    lane: Lane
    head: str | None
    is_followed: bool = False

    @property
    def epoch(self) -> int:
        return self.run.epoch


class Followed(Exception):
    """A thread has come to be followed, and its run would end without a word to the followers."""


class Unserved(NamedTuple):
    """A run that is due and of a graph that its claimant does not serve, or a reply of such a channel."""

    name: str


@dataclass(frozen=True, slots=True)
class Claim:
    """The wish to hold a thread's next run at ``now`` for ``ttl`` microseconds.

    ``graphs`` are those that the caller can run, ``most`` is how many messages one run takes at most;
    ``fresh`` starts the epochs of a thread that has none, so that a thread which was deleted and made again
    never meets an epoch of its past.
    """

    partition: Partition
    owner: str
    graphs: Collection[str]
    now: int
    ttl: int
    most: int
    fresh: int

    def take(self, known: RememberedInbox | None) -> Program[HeldRun | Unserved | None]:
        """Hold it, unless it is not due or not the caller's to run. ``known`` is how the caller knows the
        inbox: whole and right, it saves every fetch."""
        guess = None
        if known is not None and known.is_whole and known.lane.is_due(self.now):
            guess = _Seen(known.lane, known.epoch or 0, None, None, known.messages[: self.most], None)
        lane = None if known is None else known.lane
        (held,) = yield from retrying(self.partition, guess, lambda: self._load(lane), self._attempt)
        return held

    def _load(self, known: Lane | None) -> Program[_Seen]:
        items: tuple[Get | Range, ...] = (
            Get(LANE, (IN,)),
            followers.GET,
            Get(EPOCH, ()),
            Get(HEAD, ("",)),
            Range(RUN, by="first", reverse=True, limit=1),
        )
        guess = () if known is None or known.run_id is not None else (self._rows(known.bound, self.most),)
        lanes, followed, epochs, heads, runs, *rows = yield from ask(Fetch(self.partition, (*items, *guess)))
        lane = Lane.read(IN, lanes)
        epoch = epochs[0].version if epochs else 0
        head = heads[0].fields["checkpoint_id"] if heads else None
        run = Run.read(runs[0]) if runs else None
        follower = Lane.read(FOLLOWED, followed)
        if not lane.is_due(self.now):
            return _Seen(lane, epoch, head, run, (), follower)
        if lane.run_id is not None and (run is None or run.id != lane.run_id):
            raise Corrupt(f"thread {self.partition.thread!r}: its open run {lane.run_id!r} is not stored")
        after = lane.bound if lane.run_id is None or run is None else run.first - 1
        if not guess or known is None or known.bound != after or lane.run_id is not None:
            # Whoever takes over an open run takes all of it, whatever another worker took at once.
            span = run.last - after if lane.run_id is not None and run is not None else 0
            items = (self._rows(after, max(self.most, span)),)
            rows = list((yield from ask(Fetch(self.partition, items))))
        return _Seen(lane, epoch, head, run, tuple(map(Message.read, rows[0])), follower)

    def _rows(self, after: int, most: int) -> Range:
        return Range(INBOX, after=(after,), limit=most)

    def _attempt(self, seen: _Seen) -> Program[tuple[HeldRun | Unserved | None] | None]:
        lane, now = seen.lane, self.now
        if not lane.is_due(now):
            return (None,)
        epoch = successor(seen.epoch, self.owner, self.fresh) if seen.epoch else self.fresh
        if lane.run_id is not None and seen.run is not None:
            messages = tuple(m for m in seen.messages if m.seq <= seen.run.last)
            run = replace(seen.run, epoch=epoch, attempts=seen.run.attempts + 1, updated_at=now)
        else:
            if not seen.messages:
                raise Corrupt(
                    f"thread {self.partition.thread!r}: message {lane.bound + 1} was accepted and is not "
                    "stored; run `perdure fsck`"
                )
            messages = tuple(batch(seen.messages, self.most))
            first, last = messages[0], messages[-1]
            run = Run(
                first.id,
                first.seq,
                last.seq,
                OPEN,
                first.graph,
                first.channel,
                epoch,
                1,
                seen.head,
                now,
                now,
            )
            rest = seen.messages[len(messages) :]
            since = rest[0].accepted_at if rest else now if lane.last > last.seq else None
            question = lane.waiting if first.is_withdrawn else None
            lane = lane.taken(run.id, last.seq, since)._replace(waiting=question)
        if run.graph not in self.graphs:
            return (Unserved(run.graph),)
        lane = lane.held(self.owner, epoch, now, self.ttl)
        raised = Put(EPOCH, (), {"open_run": run.id}, expect=seen.epoch or Expect.ABSENT, version=epoch)
        ops: list[Op] = [raised, lane.put(0), run.put()]
        if seen.follower is None:
            # Nothing was read: this is how the claim learns whether the thread is followed.
            ops.append(followers.unchanged(None))
        outcome = yield from ask(Commit(self.partition, tuple(ops)))
        if not isinstance(outcome, Committed):
            return None
        run, lane = replace(run, version=run.version + 1), lane.stored(0)
        is_followed = seen.follower is not None and followers.is_followed(seen.follower, now)
        return (HeldRun(self.partition, run, messages, lane, seen.head, is_followed),)


class RememberedInbox(NamedTuple):
    """An inbox as a process remembers it: the epoch, if it knows it, and those of the pending messages that
    it has seen."""

    lane: Lane
    epoch: int | None = None
    messages: tuple[Message, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether a run can be claimed by it without a look. An answer needs one: it belongs to a
        checkpoint."""
        return (
            self.epoch is not None
            and self.lane.run_id is None
            and 0 < len(self.messages) == self.lane.pending
            and self.messages[0].mode != "answer"
        )


class _Seen(NamedTuple):
    lane: Lane
    epoch: int
    head: str | None
    run: Run | None
    messages: tuple[Message, ...]
    follower: Lane | None
    """Until when the thread is followed; ``None`` where that was not read."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ends: its ``state``, a ``note`` on it, and the replies to its channel."""

    state: str
    note: Mapping[str, Any]
    replies: Sequence[Any] = ()


def renew(held: HeldRun, now: int, ttl: int) -> Program[HeldRun]:
    """Hold a run for longer; ``Fenced`` when somebody else holds it. The lane that comes back may say that
    the run is to be ended."""
    return (yield from _relane(held, lambda lane: lane.renewed(now, ttl)))


def put_off(
    held: HeldRun, until: int, note: Mapping[str, Any], now: int, *, counts: bool = True
) -> Program[HeldRun]:
    """Let go of an open run, to be tried again at ``until``; ``Fenced`` when somebody else holds it.
    ``counts=False`` says that nothing was wrong with the run: this attempt is not held against it."""
    attempts = held.run.attempts - (not counts)
    run = replace(held.run, note=note, updated_at=now, attempts=attempts)
    return (yield from _relane(held, lambda lane: lane.put_off(until), run))


def finish(
    held: HeldRun, ending: Ending, now: int, fresh: int, budget: int, told: Sequence[Put] = ()
) -> Program[tuple[Lane, tuple[Reply, ...]]]:
    """End a run: its state, its replies, its lease and its epoch in one commit, with the last of what it
    ``told``; the inbox and the replies as they are then. ``Fenced`` when somebody else holds it. Where
    nothing was ``told``, ``Followed`` when the thread is followed from any process: nothing is stored."""
    partition, run = held.partition, held.run
    if 5 + len(told) + len(ending.replies) > budget:
        raise TooLarge(
            f"run {run.id!r} of thread {partition.thread!r} has {len(ending.replies)} replies, at most "
            f"{budget - 5 - len(told)} can be sent at once; join some of them"
        )
    closed = replace(run, state=ending.state, note=ending.note, updated_at=now)
    over = Put(EPOCH, (), {"open_run": None}, expect=run.epoch, version=closed_epoch(run.epoch))

    def load() -> Program[_Lanes]:
        items = (Get(LANE, (IN,)), Get(LANE, (OUT,)), followers.GET)
        inboxes, outboxes, followed = yield from ask(Fetch(partition, items))
        inbox = Lane.read(IN, inboxes)
        _refuse_lost(held, inbox)
        return _Lanes(inbox, Lane.read(OUT, outboxes), Lane.read(FOLLOWED, followed))

    def attempt(lanes: _Lanes) -> Program[tuple[Lane, tuple[Reply, ...]] | None]:
        if not told and lanes.follower is not None and followers.is_followed(lanes.follower, now):
            raise Followed(f"thread {partition.thread!r} is followed, and its run {run.id!r} told nothing")
        # The run of a message that was taken back leaves the thread's question open.
        question = lanes.inbox.waiting if held.messages[0].is_withdrawn else None
        inbox = lanes.inbox.closed(waiting=run.id if ending.state == WAITING else question)
        ops: list[Op] = [over, inbox.put(fresh), closed.put(), *told]
        if not told:
            ops.append(followers.unchanged(lanes.follower))
        replies: tuple[Reply, ...] = ()
        if ending.replies:
            outbox = lanes.outbox or Lane(OUT)
            if not outbox.version:
                # No sender of an earlier thread of this name may take it for its own.
                outbox = outbox._replace(epoch=fresh)
            first = outbox.last + 1
            replies = tuple(
                Reply(first + n, run.id, n, run.channel, payload, created_at=now)
                for n, payload in enumerate(ending.replies)
            )
            outbox = outbox.appended(now, len(replies))
            ops += [outbox.put(fresh), *(reply.put() for reply in replies)]
        outcome = yield from ask(Commit(partition, tuple(ops)))
        return (inbox.stored(fresh), replies) if isinstance(outcome, Committed) else None

    # Without replies the inbox as it was last seen may do; whoever changed it since refuses the commit.
    known = None if ending.replies else _Lanes(held.lane)
    return (yield from retrying(partition, known, load, attempt))


class _Lanes(NamedTuple):
    inbox: Lane
    outbox: Lane | None = None
    follower: Lane | None = None


def closed_epoch(epoch: int) -> int:
    """The epoch of a thread whose run was ended under ``epoch``."""
    return successor(epoch, None)


def stop(partition: Partition, run_id: str, how: str, now: int) -> Program[bool]:
    """Ask for the end of an open run; whether it is open."""

    def load() -> Program[Lane]:
        (found,) = yield from ask(Fetch(partition, (Get(LANE, (IN,)),)))
        return Lane.read(IN, found)

    def attempt(lane: Lane) -> Program[bool | None]:
        if lane.run_id != run_id:
            return False
        if lane.stop is not None:
            return True
        outcome = yield from ask(Commit(partition, (lane.stopping(how, now).put(0),)))
        return True if isinstance(outcome, Committed) else None

    return (yield from retrying(partition, None, load, attempt))


def _relane(held: HeldRun, change: Callable[[Lane], Lane], run: Run | None = None) -> Program[HeldRun]:
    partition = held.partition

    def load() -> Program[Lane]:
        (found,) = yield from ask(Fetch(partition, (Get(LANE, (IN,)),)))
        lane = Lane.read(IN, found)
        _refuse_lost(held, lane)
        return lane

    def attempt(lane: Lane) -> Program[HeldRun | None]:
        lane = change(lane)
        ops: list[Op] = [Check(EPOCH, (), held.epoch), lane.put(0)]
        if run is not None:
            ops.append(run.put())
        outcome = yield from ask(Commit(partition, tuple(ops)))
        if not isinstance(outcome, Committed):
            return None
        after = held.run if run is None else replace(run, version=run.version + 1)
        return held._replace(run=after, lane=lane.stored(0))

    return (yield from retrying(partition, held.lane, load, attempt))


def _refuse_lost(held: HeldRun, lane: Lane) -> None:
    if lane.epoch != held.epoch or lane.run_id != held.run.id:
        raise Fenced(
            f"thread {held.partition.thread!r}: run {held.run.id!r} was held under epoch {held.epoch} and is "
            "not any more; another worker has taken over, and nothing of this write was stored"
        )


def latest(partition: Partition, limit: int, after: int | None = None) -> Program[tuple[Run, ...]]:
    """The newest runs of a thread, newest first, before the one whose first message is ``after``."""
    (found,) = yield from ask(
        Fetch(partition, (Range(RUN, by="first", reverse=True, after=after, limit=limit),))
    )
    return tuple(map(Run.read, found))
