"""Waits of a transferred thread: the run that asked, and its deadlines, reminders, sleeps and signals.

A thread waits with one run, whose note has the waits. The run is transferred with the thread, so that an
answer goes on with the same graph, channel and options, and with it all that a later run or the delivery of a
message reads: its messages with their dedupe keys, the replies that showed its questions, and the results of
side effects in the steps that the answer repeats. At the target the effects and replies of earlier runs are
those of this run. A run that failed or was stopped is transferred, too, if a run that continues it needs
recorded effects.

A question without a deadline does
not wake the thread, and may be answered at both places. Other waits end by themselves and would do so at both
places, so they are handed over: one commit removes them from the source, unless the thread changed meanwhile,
and the commit with which the thread arrives adds them. In between they are kept in the note of the source's
run, from which an interrupted transfer continues; a refused one gives them back. From then on nothing wakes
the thread at the source, and its question cannot be answered there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from types import MappingProxyType
from typing import NamedTuple

from perdure.engine.decoding import read_each, read_one
from perdure.engine.queue.effect_journal import read_repeatable_runs, read_results_of
from perdure.engine.queue.waits import set_timer
from perdure.engine.requests import read_record, try_commit
from perdure.engine.threads.thread_digest import ATTEMPTS, read_pulse
from perdure.engine.transact import Budget, split_into_batches
from perdure.errors import Conflict, Contention
from perdure.model.ops import Check, Delete, Expect, Fetch, Get, Now, Op, Range
from perdure.model.program import Program, ask
from perdure.model.records import INBOX, LANE, OUTBOX, RUN, Key, Partition
from perdure.model.runs.messages import FAILED, INTERRUPTED, SENT, Message, Reply, Run
from perdure.model.runs.queue import IN, LATER, OUT, WAITS, Lane
from perdure.model.runs.waits import HANDED_OVER, note_hand_over, note_take_over, read_waits

_QUEUES = (IN, OUT, LATER, WAITS)
_REPLIES = 100
"""Maximum number of replies that are transferred, the newest ones."""
_OTHER_OPS = 20
"""Number of operations of the commit with which a thread arrives, without messages and replies."""


class WaitingRun(NamedTuple):
    """The run whose question a thread waits on, or that failed or was stopped and may be continued.

    The last three are read by ``read_belongings``.

    Attributes:
        run: the run.
        inbox: the inbox of the thread.
        timer: the queue record of the thread's waits.
        messages: its messages, except those that retention has removed.
        replies: the newest replies that it and the runs before it have sent, newest first.
        results: the results of the side effects that a later run may need, by name and number.
    """

    run: Run
    inbox: Lane
    timer: Lane
    messages: tuple[Message, ...] = ()
    replies: tuple[Reply, ...] = ()
    results: Mapping[Key, bytes] = MappingProxyType({})

    @property
    def wakes(self) -> bool:
        """True if the thread goes on by itself, at a time or with a signal."""
        waits = read_waits(self.run.note).values()
        return self.timer.due_at is not None or any(each.kind == "signal" for each in waits)

    @property
    def is_handed_over(self) -> bool:
        """True if its waits were taken from the thread for another database."""
        return HANDED_OVER in self.run.note

    @property
    def has_arrived(self) -> bool:
        """True if the waits that were handed over are known to have arrived."""
        return self.is_handed_over and bool(self.run.note[HANDED_OVER]["has_arrived"])

    def with_waits(self) -> WaitingRun:
        """Return the run with the waits that it has, or that were handed over."""
        return self._replace(run=replace(self.run, note=note_take_over(self.run.note)))


class _Queues(NamedTuple):
    """The queue records of a thread."""

    inbox: Lane
    outbox: Lane
    later: Lane
    timer: Lane

    @property
    def is_at_work(self) -> bool:
        """True if messages or replies are under way, or waits are being ended."""
        is_being_ended = self.inbox.waiting is None and self.timer.due_at is not None
        is_due = any(each.due_at is not None for each in self[:3])
        return is_being_ended or is_due or self.inbox.run_id is not None or self.inbox.pending > 0


def _read_queues(partition: Partition) -> Program[_Queues]:
    lanes = yield from ask(Fetch(partition, tuple(Get(LANE, (name,)) for name in _QUEUES)))
    return _Queues(*(Lane.read(name, found) for name, found in zip(_QUEUES, lanes, strict=True)))


def _read_idle_queues(target: Partition) -> Program[_Queues]:
    """Return the queue records at a name of the target; raise as ``refuse_target_at_work`` does."""
    queues = yield from _read_queues(target)
    if queues.is_at_work:
        raise Conflict(
            f"thread {target.thread!r} has messages or replies under way at the target, which would go on "
            "with what arrives; it was not put in place. Let the workers there finish, then move it again"
        )
    return queues


def refuse_target_at_work(target: Partition) -> Program[None]:
    """Raise ``Conflict`` if a name of the target has messages or replies under way: they would go on with the
    thread that arrives there."""
    yield from _read_idle_queues(target)


def read_waiting(partition: Partition) -> Program[WaitingRun | None]:
    """Return the run whose question a thread waits on, or the one that may be continued with recorded
    effects; ``None`` if there is none.

    Raises:
        Conflict: the thread has messages or replies under way.
    """
    queues = yield from _read_queues(partition)
    inbox, timer = queues.inbox, queues.timer
    if queues.is_at_work:
        raise Conflict(
            f"thread {partition.thread!r} has messages or replies under way, and would leave them behind; "
            "nothing of it was moved. Let its workers finish, then move it"
        )
    run_id = inbox.waiting
    if run_id is None:
        run_id = yield from _find_continued(partition)
    if run_id is None:
        return None
    run = yield from _read_run(partition, run_id)
    if run is None:
        return None
    return WaitingRun(run, inbox, timer)


def _find_continued(partition: Partition) -> Program[str | None]:
    """Return the newest run that failed or was stopped, if a run that continues it needs recorded effects."""
    runs = yield from read_repeatable_runs(partition)
    ended = [run.key[0] for run in runs if run.fields["state"] in (FAILED, INTERRUPTED)]
    if ended and (yield from read_results_of(partition, runs)):
        run_id: str = ended[-1]
        return run_id
    return None


def read_belongings(partition: Partition, found: WaitingRun) -> Program[WaitingRun | None]:
    """Read what belongs to the run of a thread; ``None`` if the thread has changed since it was found."""
    repeatable = yield from read_repeatable_runs(partition)
    results = yield from read_results_of(partition, repeatable)
    run_ids = {run.key[0] for run in repeatable}
    first, last = found.run.first, found.run.last
    sent, messages, lanes = yield from ask(
        Fetch(
            partition,
            (
                Range(OUTBOX, reverse=True, limit=_REPLIES),
                Range(INBOX, after=(first - 1,), limit=last - first + 1),
                Get(LANE, (IN,)),
            ),
        )
    )
    if Lane.read(IN, lanes) != found.inbox:
        return None
    replies = [each for each in read_each(partition, Reply.read, sent) if each.run_id in run_ids]
    return found._replace(
        messages=tuple(each for each in read_each(partition, Message.read, messages) if each.seq <= last),
        replies=tuple(each for each in replies if each.state == SENT),
        results=results,
    )


def _read_run(partition: Partition, run_id: str) -> Program[Run | None]:
    stored = yield from read_record(partition, RUN, (run_id,))
    return stored and read_one(partition, Run.read, stored)


def take_from_source(partition: Partition, found: WaitingRun) -> Program[bool]:
    """Take the waits from a thread; ``False`` if it has changed since it was read."""
    ops: list[Op] = [
        # The inbox gets a new version, so that writes planned on the previous one, such as an answer, are
        # refused.
        found.inbox.put(0),
        replace(found.run, note=note_hand_over(found.run.note)).put(),
    ]
    if found.timer.version:
        ops.append(Delete(LANE, (WAITS,), found.timer.version))
    return (yield from try_commit(partition, ops))


def take_from_unchanged(partition: Partition, found: WaitingRun, pulse: object, fresh: int) -> Program[bool]:
    """Take the waits from a thread, unless it was written to since it was read with this pulse; ``False`` if
    nothing was taken."""
    if not (yield from take_from_source(partition, found)):
        return False
    if (yield from read_pulse(partition)) == pulse:
        return True
    yield from give_back(partition, (yield from ask(Now())), fresh)
    return False


def give_back(partition: Partition, now: int, fresh: int) -> Program[None]:
    """Give the waits back that were taken from a thread and have not arrived anywhere; nothing is done if the
    thread went on without them.

    Args:
        partition: the thread at the source.
        now: current time in microseconds.
        fresh: start of the versions of new records.

    Raises:
        Contention: the thread keeps being written to.
    """
    for _ in range(ATTEMPTS):
        try:
            found = yield from read_waiting(partition)
        except Conflict:
            return
        if found is None or not found.is_handed_over or found.has_arrived:
            return
        run = replace(found.run, note=note_take_over(found.run.note))
        ops = [found.inbox.put(0), run.put(), *set_timer(found.timer, read_waits(run.note), now, fresh)]
        if (yield from try_commit(partition, ops)):
            return
    raise Contention(f"thread {partition.thread!r} keeps being written to")


def note_arrival(partition: Partition) -> Program[None]:
    """Note at the source that the waits of a thread have arrived, so that later copies do not get them."""
    found = yield from read_waiting(partition)
    if found is not None and found.is_handed_over and not found.has_arrived:
        note = note_hand_over(found.run.note, has_arrived=True)
        # If this is refused, the thread went on at the source without the waits.
        yield from try_commit(partition, (replace(found.run, note=note).put(),))


def arrive(
    partition: Partition, waiting: WaitingRun | None, now: int, fresh: int, budget: Budget
) -> Program[list[Op]]:
    """Return the operations with which a thread at the target waits as it did at the source: with a run, or
    with none.

    Raises:
        Conflict: the thread has messages or replies under way there.

    Args:
        partition: the thread at the target.
        waiting: the run, with its waits.
        now: current time in microseconds.
        fresh: start of the versions of new records.
        budget: limits of the commit. Replies and messages beyond it, the oldest ones, are left out.
    """
    queues = yield from _read_idle_queues(partition)
    inbox, timer = queues.inbox, queues.timer
    # Only a run adds replies, and it changes the inbox.
    unchanged = [_check_unchanged(queues.later)]
    if waiting is None:
        # The waits of the replaced thread are over.
        if inbox.waiting is not None and inbox.run_id is None:
            ended = inbox._replace(waiting=None).put(fresh)
            return [ended, *set_timer(timer, {}, now, fresh), *unchanged]
        return [_check_unchanged(inbox), *unchanged]
    waits = set_timer(timer, read_waits(waiting.run.note), now, fresh)
    stored = yield from _read_run(partition, waiting.run.id)
    waits_with = waiting.inbox.waiting
    if stored is not None:
        run = replace(waiting.run, first=stored.first, last=stored.last, version=stored.version)
        return [inbox._replace(waiting=waits_with).put(fresh), run.put(), *waits, *unchanged]
    shift = inbox.last + 1 - waiting.run.first
    run = replace(waiting.run, first=inbox.last + 1, last=waiting.run.last + shift, version=0)
    inbox = inbox._replace(last=run.last, bound=run.last, waiting=waits_with)
    return [
        *(inbox.put(fresh), run.put(), *waits, *unchanged),
        *_plan_belongings(waiting, shift, queues.outbox, fresh, budget),
    ]


def _plan_belongings(waiting: WaitingRun, shift: int, outbox: Lane, fresh: int, budget: Budget) -> list[Op]:
    """Return the operations that add a run's messages and replies to the queues of the target.

    Args:
        waiting: the run, with its messages and replies.
        shift: what is added to the numbers of its messages.
        outbox: the outbox of the target.
        fresh: start of the versions of new records.
        budget: limits of the commit.
    """
    last = outbox.last + len(waiting.replies)
    replies: list[Op] = [
        replace(reply, seq=last - n, run_id=waiting.run.id, ord=len(waiting.replies) - n, version=0).put()
        for n, reply in enumerate(waiting.replies)
    ]
    messages = [
        replace(message, seq=message.seq + shift).put_with_key(Expect.ANY) for message in waiting.messages
    ]
    # The first message has the options of the run.
    first, newest = messages[:1], messages[:0:-1]
    wanted = [*chain.from_iterable(first), *replies, *chain.from_iterable(newest)]
    # The thread's document and the run itself take their share of the bytes, too.
    room = Budget(budget.ops - _OTHER_OPS, budget.bytes // 2)
    taken = next(split_into_batches(wanted, room), [])
    if waiting.replies:
        taken.append(outbox._replace(last=last, bound=last).put(fresh))
    return taken


def _check_unchanged(lane: Lane) -> Op:
    return Check(LANE, (lane.name,), lane.version or Expect.ABSENT)


def has_run_with_waits(partition: Partition, run_id: str) -> Program[bool]:
    """Return True if a thread has a run, ended or waiting, whose waits were not handed over."""
    run = yield from _read_run(partition, run_id)
    return run is not None and HANDED_OVER not in run.note


def waking_error(partition: Partition) -> Conflict:
    """Return the error for a thread that goes on by itself, and is not to be handed over."""
    return Conflict(
        f"thread {partition.thread!r} goes on by itself, at a time or with a signal, and a copy of it would "
        "do so, too; nothing of it was moved. Pass --hand-over (hand_over=True): it then goes on at the "
        "target only. Or let its wait come to its end, then move it"
    )


def second_error(partition: Partition) -> Conflict:
    """Return the error for a thread that is to be handed over to a second database."""
    return Conflict(
        f"thread {partition.thread!r} was handed over to another database before, and goes on there; nothing "
        "of it was moved. Copy it from there, or without --hand-over: such a copy does not wake"
    )
