"""Programs of the worker that holds a run: it renews its lease, postpones it, excuses an attempt, or ends it.

Every write checks the epoch that the run's claim has set (``engine.queue.claims``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from perdure.engine.decoding import read_each
from perdure.engine.queue import questions, subscribers, waits
from perdure.engine.requests import commit_for, read_lane
from perdure.engine.threads.steering import load_held, read_held
from perdure.engine.transact import retry_attempt
from perdure.errors import TooLarge
from perdure.model.ops import Check, Fetch, Get, Op, Put, Range
from perdure.model.program import Program, ask
from perdure.model.record_versions import successor
from perdure.model.records import EPOCH, LANE, RUN, Partition, Record
from perdure.model.runs.lifecycle import Left, find_waiting_run
from perdure.model.runs.messages import DONE, OPEN, WAITING, Message, Reply, Run
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
        kept = {name: value for name, value in run.note.items() if name == _EXCUSED}
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

    def load() -> Program[tuple[Run, ...]]:
        (stored,) = yield from ask(Fetch(partition, (Get(RUN, (held.run.id,)),)))
        return tuple(read_each(partition, Run.read, stored))

    def attempt(found: tuple[Run, ...]) -> Program[bool | None]:
        run = next(iter(found), None)
        if run is None or run.state != OPEN:
            return False
        excused = _read_excused(run)
        if held.epoch in excused or len(excused) >= EXCUSES_MOST:
            return held.epoch in excused
        note = {**run.note, _EXCUSED: [*excused, held.epoch]}
        return (yield from commit_for(partition, (replace(run, note=note).put(),), True))

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
        inbox, current = read_held(partition, run, inboxes, stored)
        waited = yield from questions.read_waited(partition, inbox)
        left = None
        if not is_plain:
            left = yield from questions.read_left(partition, current, waited)
        timer = Lane(TIMER)
        if WAITS in ending.note or (waited is not None and WAITS in waited.note):
            timer = yield from read_lane(partition, TIMER)
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
            outbox = (seen.outbox or Lane(OUT)).begin(fresh)
            first = outbox.last + 1
            places = [(run.id, n, *each) for n, each in enumerate(outgoing)]
            if closing is not None and seen.waited is not None:
                places.append((seen.waited.id, questions.CLOSING_ORD, *closing))
            replies = tuple(Reply(first + n, *place, created_at=now) for n, place in enumerate(places))
            outbox = outbox.append(now, len(replies))
            ops += [outbox.put(fresh), *(reply.put() for reply in replies)]
        return (yield from commit_for(partition, ops, (inbox.mark_stored(fresh), replies)))

    # Without replies the remembered inbox will do: the commit is refused if it has changed since.
    known = None
    if is_plain and not outgoing and not signals and held.lane.waiting is None:
        known = _SeenAtEnd(held.lane, held.run)
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

    def attempt(lane: Lane) -> Program[bool | None]:
        if lane.run_id != run_id:
            return False
        if lane.stop is not None:
            return True
        return (yield from commit_for(partition, (lane.request_stop(how, now).put(0),), True))

    return (yield from retry_attempt(partition, None, partial(read_lane, partition, IN), attempt))


def _update_held(
    held: HeldRun,
    change: Callable[[Lane], Lane],
    edit: Callable[[Run], Run] | None = None,
    guard: Op | None = None,
) -> Program[HeldRun]:
    """Store a held run's queue record as ``change`` returns it and, with ``edit``, the run as that returns
    it. ``guard`` takes the place of the check of the thread's epoch."""

    def attempt(seen: tuple[Lane, Run]) -> Program[HeldRun | None]:
        lane, run = change(seen[0]), seen[1]
        ops: list[Op] = [guard or Check(EPOCH, (), held.epoch), lane.put(0)]
        if edit is not None:
            run = edit(run)
            ops.append(run.put())
            run = replace(run, version=run.version + 1)
        stored = held._replace(run=run, lane=lane.mark_stored(0))
        return (yield from commit_for(held.partition, ops, stored))

    load = partial(load_held, held.partition, held.run)
    return (yield from retry_attempt(held.partition, (held.lane, held.run), load, attempt))


def read_latest(partition: Partition, limit: int, after: int | None = None) -> Program[tuple[Run, ...]]:
    """Read the newest runs of a thread, newest first, before the one whose first message is ``after``."""
    (found,) = yield from ask(
        Fetch(partition, (Range(RUN, by="first", reverse=True, after=after, limit=limit),))
    )
    return tuple(read_each(partition, Run.read, found))
