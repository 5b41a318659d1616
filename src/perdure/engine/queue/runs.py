"""Claiming, renewing and ending the runs of a thread, one lease holder at a time.

A claim raises the thread's epoch, and every write of the run checks it. The database therefore refuses every
write of a holder whose run was taken over, however long it was paused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from perdure.engine.decoding import read_each, read_one
from perdure.engine.queue import questions, subscribers, waits
from perdure.engine.queue.queued_records import read_queued
from perdure.engine.transact import retry_attempt
from perdure.errors import Corrupt, Fenced, TooLarge
from perdure.model.ops import Check, Commit, Committed, Expect, Fetch, Get, Op, Put, Range
from perdure.model.program import Program, ask
from perdure.model.record_versions import successor
from perdure.model.records import EPOCH, HEAD, INBOX, LANE, RUN, Partition, Record
from perdure.model.runs.lifecycle import Left, find_waiting_run
from perdure.model.runs.messages import DONE, OPEN, VERSION, WAITING, Message, Reply, Run, select_batch
from perdure.model.runs.queue import FOLLOWED, IN, OUT, Lane
from perdure.model.runs.queue import WAITS as TIMER
from perdure.model.runs.waits import WAITS

EXCUSES_MOST = 20
"""Maximum number of attempts at a run that are not counted because their workers lost the database or their
leases."""

_EXCUSED = "excused"
"""Key in the note of an open run: the epochs of the attempts that are not counted."""

_ENDING_OPS = 10
"""Number of operations of the commit that ends a run, without its events and replies, and including one for a
closing reply, one for its waits and three for a signal that it gives back."""


class HeldRun(NamedTuple):
    """A run that this process holds, with its messages, the inbox as last seen, the id of the thread's latest
    checkpoint at the claim, and whether any process followed the thread then."""

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
    """Raised when a thread has gained followers, and its run would end without an event for them."""


class Unserved(NamedTuple):
    """A due run or reply whose graph or channel the claimant does not serve."""

    name: str


@dataclass(frozen=True, slots=True)
class Claim:
    """Request to claim a thread's next run.

    Attributes:
        owner: id of the claimant.
        graphs: the graphs that the claimant can run; a run that was stopped can be claimed and ended without
            its graph.
        now: current time in microseconds.
        ttl: length of the lease in microseconds.
        most: maximum number of messages that one run takes.
        fresh: start of the epochs, and of the inbox's versions, of a thread that has none, so that a thread
            which was deleted and made again never repeats an epoch or a version of its past.
        versions: names of the versions of the claimant's graphs, for the notes of their runs.
    """

    partition: Partition
    owner: str
    graphs: Collection[str]
    now: int
    ttl: int
    most: int
    fresh: int
    versions: Mapping[str, str] = field(default_factory=dict[str, str])

    def take(self, known: RememberedInbox | None) -> Program[HeldRun | Unserved | None]:
        """Claim the run, unless none is due or the caller does not serve its graph.

        ``known`` is the inbox as the caller remembers it; if it is complete and current, nothing is fetched.
        """
        guess = self._guess(known)
        lane = None if known is None else known.lane
        (held,) = yield from retry_attempt(self.partition, guess, lambda: self._load(lane), self._attempt)
        return held

    def plan(self, known: RememberedInbox | None) -> Program[PlannedClaim | Unserved | None]:
        """Plan the claim that ``take`` would make, for ``commit``, and change nothing."""
        seen = self._guess(known)
        while seen is None:
            seen = yield from self._load(None)
        return self._plan(seen)

    def commit(self, planned: PlannedClaim) -> Program[HeldRun | None]:
        """Claim a run as it was planned; ``None`` if the thread has changed since."""
        outcome = yield from ask(Commit(self.partition, planned.ops))
        if isinstance(outcome, Committed):
            return planned.held
        return None

    def _guess(self, known: RememberedInbox | None) -> _Seen | None:
        if known is None or not known.is_whole or not known.lane.is_due(self.now):
            return None
        return _Seen(known.lane, known.epoch or 0, None, None, known.messages[: self.most], None)

    def _load(self, known: Lane | None) -> Program[_Seen | None]:
        items: tuple[Get | Range, ...] = (
            Get(LANE, (IN,)),
            subscribers.GET,
            Get(EPOCH, ()),
            Get(HEAD, ("",)),
            Range(RUN, by="first", reverse=True, limit=1),
        )
        guess = () if known is None or known.run_id is not None else (self._rows(known.bound, self.most),)
        try:
            fetched = yield from ask(Fetch(self.partition, (*items, *guess)))
        except Corrupt:
            # The head may be damaged: fetch everything else. So the run begins, and ends with the error; if
            # it could not be claimed, its callers would wait for ever.
            without_head = tuple(item for item in (*items, *guess) if item.kind is not HEAD)
            found = yield from ask(Fetch(self.partition, without_head))
            fetched = (*found[:3], (), *found[3:])
        lanes, followed, epochs, heads, runs, *rows = fetched
        lane = Lane.read(IN, lanes)
        epoch = epochs[0].version if epochs else 0
        head = heads[0].fields["checkpoint_id"] if heads else None
        run = read_one(self.partition, Run.read, runs[0]) if runs else None
        follower = Lane.read(FOLLOWED, followed)
        if not lane.is_due(self.now):
            return _Seen(lane, epoch, head, run, (), follower)
        if lane.run_id is not None and (run is None or run.id != lane.run_id):
            raise Corrupt(f"thread {self.partition.thread!r}: its open run {lane.run_id!r} is not stored")
        after = lane.bound if lane.run_id is None or run is None else run.first - 1
        is_guessed = bool(guess) and known is not None and known.bound == after and lane.run_id is None
        if not is_guessed or not rows[0]:
            # An open run is taken over with all of its messages, whatever the caller's limit.
            span = run.last - after if lane.run_id is not None and run is not None else 0
            queued = self._rows(after, max(self.most, span))
            messages = yield from read_queued(
                self.partition, lane, queued, f"message {after + 1} was accepted"
            )
            if messages is None:
                return None
            rows = [messages]
        return _Seen(
            lane, epoch, head, run, tuple(read_each(self.partition, Message.read, rows[0])), follower
        )

    def _rows(self, after: int, most: int) -> Range:
        return Range(INBOX, after=(after,), limit=most)

    def _attempt(self, seen: _Seen) -> Program[tuple[HeldRun | Unserved | None] | None]:
        planned = self._plan(seen)
        if not isinstance(planned, PlannedClaim):
            return (planned,)
        outcome = yield from ask(Commit(self.partition, planned.ops))
        if isinstance(outcome, Committed):
            return (planned.held,)
        return None

    def plan_new(self, lane: Lane, epoch: int, message: Message) -> PlannedClaim:
        """Return the claim of a message that the same commit stores in an idle inbox.

        Args:
            lane: the inbox with the message added, and with the version that is stored.
            epoch: the thread's epoch, 0 if it has none.
            message: the message, of a graph that the claimant can run.
        """
        planned = self._plan(_Seen(lane, epoch, None, None, (message,), None))
        if not isinstance(planned, PlannedClaim):
            raise ValueError(
                "a message that is claimed by the commit that stores it is due, and of a graph here"
            )
        return planned

    def _plan(self, seen: _Seen) -> PlannedClaim | Unserved | None:
        lane, now = seen.lane, self.now
        if not lane.is_due(now):
            return None
        epoch = successor(seen.epoch, self.owner, self.fresh) if seen.epoch else self.fresh
        is_new = lane.run_id is None
        if lane.run_id is not None and seen.run is not None:
            # Withdrawn messages are passed over, except the first, with which the run began.
            messages = tuple(
                m
                for m in seen.messages
                if m.seq == seen.run.first or (m.seq <= seen.run.last and not m.is_withdrawn)
            )
            run = replace(seen.run, epoch=epoch, attempts=seen.run.attempts + 1, updated_at=now)
        else:
            messages = tuple(select_batch(seen.messages, self.most))
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
            lane = lane.take(run.id, last.seq, since)
        is_to_end = lane.stop is not None or messages[0].is_withdrawn
        if run.graph not in self.graphs and not is_to_end:
            return Unserved(run.graph)
        if run.graph in self.versions and not is_to_end:
            run = replace(run, note={**run.note, VERSION: self.versions[run.graph]})
        lane = lane.hold(self.owner, epoch, now, self.ttl)
        raised = Put(EPOCH, (), {"open_run": run.id}, expect=seen.epoch or Expect.ABSENT, version=epoch)
        ops: list[Op] = [raised, lane.put(self.fresh), run.put()]
        if seen.follower is None:
            # Nothing was fetched. If the thread is followed, this check refuses the claim, which is then
            # planned on what is read.
            ops.append(subscribers.check_unchanged(None))
        run, lane = replace(run, version=run.version + 1), lane.mark_stored(self.fresh)
        is_followed = seen.follower is not None and subscribers.is_followed(seen.follower, now)
        held = HeldRun(self.partition, run, messages, lane, seen.head, is_followed)
        return PlannedClaim(tuple(ops), held, is_to_end, is_new)


class PlannedClaim(NamedTuple):
    """The operations that claim a run, and the run as it is held once they are committed.

    ``is_to_end`` is true if the run was stopped or its message withdrawn: it is claimed only to be ended.
    ``is_new`` is false for a run that was claimed before.
    """

    ops: tuple[Op, ...]
    held: HeldRun
    is_to_end: bool
    is_new: bool


class RememberedInbox(NamedTuple):
    """An inbox as a process remembers it: its epoch, if known, and the pending messages that were seen."""

    lane: Lane
    epoch: int | None = None
    messages: tuple[Message, ...] = ()

    @property
    def is_whole(self) -> bool:
        """True if a run can be claimed without a fetch. An answer always needs a fetch, as it belongs to a
        checkpoint."""
        return (
            self.epoch is not None
            and self.lane.run_id is None
            and 0 < len(self.messages) == self.lane.pending
            and self.messages[0].mode != "answer"
        )

    @property
    def is_idle(self) -> bool:
        """True if nothing is pending or under way, and the epoch is known: the next message can be claimed by
        the commit that stores it."""
        return self.epoch is not None and self.lane.run_id is None and not self.lane.pending


class _Seen(NamedTuple):
    lane: Lane
    epoch: int
    head: str | None
    run: Run | None
    messages: tuple[Message, ...]
    follower: Lane | None
    """Time until which the thread is followed; ``None`` where that was not read."""


@dataclass(frozen=True, slots=True)
class Ending:
    """End of a run: its ``state``, a ``note`` on it, the replies to its channel, and what it sends to other
    channels, each with the channel's name."""

    state: str
    note: Mapping[str, Any]
    replies: Sequence[Any] = ()
    others: Sequence[tuple[str, Any]] = ()


def renew(held: HeldRun, now: int, ttl: int) -> Program[HeldRun]:
    """Renew the lease of a run by ``ttl`` microseconds from ``now``.

    Returns:
        The run with its queue record, which may carry a request to stop the run.

    Raises:
        Fenced: another worker holds the run.
    """
    return (yield from _update_held(held, lambda lane: lane.renew(now, ttl)))


def fence(held: HeldRun, now: int, ttl: int) -> Program[HeldRun]:
    """Raise the epoch of a held run, so that writes which it left behind are refused from now on, and renew
    its lease.

    LangGraph may leave a write under way when a call fails. That write must not be stored after the run's
    records were taken back.

    Raises:
        Fenced: another worker holds the run.
    """
    epoch = successor(held.epoch, held.run.id)
    raised = Put(EPOCH, (), {"open_run": held.run.id}, expect=held.epoch, version=epoch)
    return (
        yield from _update_held(
            held,
            lambda lane: lane.renew(now, ttl)._replace(epoch=epoch),
            lambda run: replace(run, epoch=epoch),
            raised,
        )
    )


def postpone(
    held: HeldRun, until: int, note: Mapping[str, Any], now: int, *, counts: bool = True
) -> Program[HeldRun]:
    """Release an open run, to be tried again at ``until``.

    Args:
        note: stored with the run, e.g. the error.
        counts: false if the run itself was not at fault, so that this attempt does not count.

    Raises:
        Fenced: another worker holds the run.
    """

    def note_attempt(run: Run) -> Run:
        kept = {_EXCUSED: _read_excused(run)} if _read_excused(run) else {}
        attempts = held.run.attempts - (not counts)
        return replace(run, note=run.with_version({**note, **kept}), updated_at=now, attempts=attempts)

    return (yield from _update_held(held, lambda lane: lane.postpone(until), note_attempt))


def count_attempts(run: Run) -> int:
    """Return how many attempts count towards the maximum of a run."""
    return run.attempts - len(_read_excused(run))


def _read_excused(run: Run) -> Sequence[int]:
    found: Sequence[int] = run.note.get(_EXCUSED, ())
    return found


def excuse(held: HeldRun) -> Program[bool]:
    """Excuse an attempt, which then does not count, because its worker is alive and only lost the database or
    its lease. The worker that holds the run by now keeps its lease.

    Returns:
        False if the attempt counts: the run has ended, or ``EXCUSES_MOST`` attempts were excused already.
    """
    partition = held.partition

    def load() -> Program[Run | None]:
        (stored,) = yield from ask(Fetch(partition, (Get(RUN, (held.run.id,)),)))
        if stored:
            return read_one(partition, Run.read, stored[0])
        return None

    def attempt(run: Run | None) -> Program[bool | None]:
        if run is None or run.state != OPEN:
            return False
        excused = _read_excused(run)
        if held.epoch in excused or len(excused) >= EXCUSES_MOST:
            return held.epoch in excused
        note = {**run.note, _EXCUSED: [*excused, held.epoch]}
        outcome = yield from ask(Commit(partition, (replace(run, note=note).put(),)))
        if isinstance(outcome, Committed):
            return True
        return None

    return (yield from retry_attempt(partition, None, load, attempt))


def finish(
    held: HeldRun, ending: Ending, now: int, fresh: int, budget: int, events: Sequence[Put] = ()
) -> Program[tuple[Lane, tuple[Reply, ...]]]:
    """End a run: its state, replies, lease and epoch, and its last events, in one commit.

    Args:
        now: current time in microseconds.
        fresh: start of the versions of a new outbox.
        budget: most operations of one commit.
        events: the operations that store the run's last events.

    Returns:
        The inbox and the replies as they are stored.

    Raises:
        Fenced: another worker holds the run.
        Followed: there are no ``events``, and a process follows the thread; nothing is stored.
        TooLarge: the run has more replies than a commit can hold.
    """
    partition, run = held.partition, held.run
    outgoing = [*((run.channel, payload) for payload in ending.replies), *ending.others]
    if _ENDING_OPS + len(events) + len(outgoing) > budget:
        raise TooLarge(
            f"run {run.id!r} of thread {partition.thread!r} has {len(outgoing)} replies, at most "
            f"{budget - _ENDING_OPS - len(events)} can be sent at once; join some of them"
        )
    closed_epoch = Put(
        EPOCH, (), {"open_run": None}, expect=run.epoch, version=compute_closed_epoch(run.epoch)
    )

    has_begun = not held.messages[0].is_withdrawn
    # In these cases the state alone decides what is left of the thread's question.
    is_plain = ending.state in (DONE, WAITING) or not has_begun
    is_answer = held.messages[0].mode == "answer"
    signals = waits.find_to_give_back(held.messages[0], ending.state)

    def load() -> Program[_SeenAtEnd]:
        items = (Get(LANE, (IN,)), Get(RUN, (run.id,)), Get(LANE, (OUT,)), subscribers.GET, *signals)
        inboxes, stored, outboxes, followed, *early = yield from ask(Fetch(partition, items))
        inbox = Lane.read(IN, inboxes)
        _refuse_lost(held, inbox)
        current = _read_current(held, stored)
        waited = None
        if inbox.waiting is not None:
            (asked,) = yield from ask(Fetch(partition, (Get(RUN, (inbox.waiting,)),)))
            waited = questions.read_waited(partition, asked)
        left = None if is_plain else (yield from questions.read_left(partition, current, waited))
        timer = Lane(TIMER)
        if WAITS in ending.note or (waited is not None and WAITS in waited.note):
            (timers,) = yield from ask(Fetch(partition, (Get(LANE, (TIMER,)),)))
            timer = Lane.read(TIMER, timers)
        outbox, follower = Lane.read(OUT, outboxes), Lane.read(FOLLOWED, followed)
        return _SeenAtEnd(inbox, current, outbox, follower, waited, left, timer, *early)

    def attempt(seen: _SeenAtEnd) -> Program[tuple[Lane, tuple[Reply, ...]] | None]:
        if not events and seen.follower is not None and subscribers.is_followed(seen.follower, now):
            raise Followed(f"thread {partition.thread!r} is followed, and its run {run.id!r} has no events")
        waited_before = seen.inbox.waiting
        waiting = find_waiting_run(ending.state, run.id, waited_before, seen.left, has_begun=has_begun)
        closing = questions.find_closing_reply(seen.waited, waiting, is_answer=is_answer)
        inbox = seen.inbox.close(waiting=waiting)
        note, waits_ops = waits.plan_waits_at_end(
            run,
            held.messages[0],
            ending.note,
            waited=seen.waited,
            timer=seen.timer,
            early=seen.early,
            waits_with=waiting,
            now=now,
            fresh=fresh,
        )
        note = run.with_version(note)
        closed_run = replace(seen.run, state=ending.state, note=note, updated_at=now)
        ops: list[Op] = [closed_epoch, inbox.put(fresh), closed_run.put(), *waits_ops, *events]
        if not events:
            ops.append(subscribers.check_unchanged(seen.follower))
        replies: tuple[Reply, ...] = ()
        if outgoing or closing is not None:
            outbox = seen.outbox or Lane(OUT)
            if not outbox.version:
                # A new epoch: a sender of an earlier thread of this name must not match it.
                outbox = outbox._replace(epoch=fresh)
            first = outbox.last + 1
            replies = tuple(
                Reply(first + n, run.id, n, channel, payload, created_at=now)
                for n, (channel, payload) in enumerate(outgoing)
            )
            if closing is not None and seen.waited is not None:
                channel, payload = closing
                closing_reply = Reply(
                    first + len(replies),
                    seen.waited.id,
                    questions.CLOSING_ORD,
                    channel,
                    payload,
                    created_at=now,
                )
                replies = (*replies, closing_reply)
            outbox = outbox.append(now, len(replies))
            ops += [outbox.put(fresh), *(reply.put() for reply in replies)]
        outcome = yield from ask(Commit(partition, tuple(ops)))
        if isinstance(outcome, Committed):
            return (inbox.mark_stored(fresh), replies)
        return None

    # Without replies the remembered inbox will do: the commit is refused if it has changed since.
    is_known = is_plain and not outgoing and not signals and held.lane.waiting is None
    known = _SeenAtEnd(held.lane, held.run) if is_known else None
    return (yield from retry_attempt(partition, known, load, attempt))


class _SeenAtEnd(NamedTuple):
    """Records on which the end of a run is planned. ``waited`` asked the thread's question before, ``left``
    is what is known of the latest checkpoint, and ``early`` the kept signals, where they are needed."""

    inbox: Lane
    run: Run
    outbox: Lane | None = None
    follower: Lane | None = None
    waited: Run | None = None
    left: Left | None = None
    timer: Lane = Lane(TIMER)
    early: tuple[Record, ...] | None = None


def compute_closed_epoch(epoch: int) -> int:
    """Return the epoch of a thread whose run was ended under ``epoch``."""
    return successor(epoch, None)


def stop(partition: Partition, run_id: str, how: str, now: int) -> Program[bool]:
    """Request the end of an open run; ``False`` if it is not open.

    ``how`` is ``interrupt``, which keeps what the run stored, or ``rollback``, which removes it.
    """

    def load() -> Program[Lane]:
        (found,) = yield from ask(Fetch(partition, (Get(LANE, (IN,)),)))
        return Lane.read(IN, found)

    def attempt(lane: Lane) -> Program[bool | None]:
        if lane.run_id != run_id:
            return False
        if lane.stop is not None:
            return True
        outcome = yield from ask(Commit(partition, (lane.request_stop(how, now).put(0),)))
        if isinstance(outcome, Committed):
            return True
        return None

    return (yield from retry_attempt(partition, None, load, attempt))


def _update_held(
    held: HeldRun,
    change: Callable[[Lane], Lane],
    edit: Callable[[Run], Run] | None = None,
    guard: Op | None = None,
) -> Program[HeldRun]:
    """Store a held run's queue record as ``change`` returns it and, with ``edit``, the run as that returns
    it. ``guard`` takes the place of the check of the thread's epoch."""
    partition = held.partition

    def load() -> Program[tuple[Lane, Run]]:
        found, stored = yield from ask(Fetch(partition, (Get(LANE, (IN,)), Get(RUN, (held.run.id,)))))
        lane = Lane.read(IN, found)
        _refuse_lost(held, lane)
        return lane, _read_current(held, stored)

    def attempt(seen: tuple[Lane, Run]) -> Program[HeldRun | None]:
        lane, run = change(seen[0]), seen[1]
        ops: list[Op] = [guard or Check(EPOCH, (), held.epoch), lane.put(0)]
        if edit is not None:
            run = edit(run)
            ops.append(run.put())
            run = replace(run, version=run.version + 1)
        outcome = yield from ask(Commit(partition, tuple(ops)))
        if isinstance(outcome, Committed):
            return held._replace(run=run, lane=lane.mark_stored(0))
        return None

    return (yield from retry_attempt(partition, (held.lane, held.run), load, attempt))


def _read_current(held: HeldRun, stored: tuple[Record, ...]) -> Run:
    """Return a held run as it is stored: it may have taken messages since it was claimed."""
    if not stored:
        raise Corrupt(f"thread {held.partition.thread!r}: its open run {held.run.id!r} is not stored")
    return read_one(held.partition, Run.read, stored[0])


def _refuse_lost(held: HeldRun, lane: Lane) -> None:
    if lane.epoch != held.epoch or lane.run_id != held.run.id:
        raise Fenced(
            f"thread {held.partition.thread!r}: run {held.run.id!r} was held under epoch {held.epoch} and is "
            "not any more; another worker has taken over, and nothing of this write was stored"
        )


def read_latest(partition: Partition, limit: int, after: int | None = None) -> Program[tuple[Run, ...]]:
    """Read the newest runs of a thread, newest first, before the one whose first message is ``after``."""
    (found,) = yield from ask(
        Fetch(partition, (Range(RUN, by="first", reverse=True, after=after, limit=limit),))
    )
    return tuple(read_each(partition, Run.read, found))
