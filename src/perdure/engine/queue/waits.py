"""Waits of threads: one queue record tells when a deadline or reminder is due, and one commit carries it out.

The deadlines and reminders of a question are in the note of the run that asked, and the queue record of a
thread's waits has the time of the next one. A deadline gives an ordinary answer: it enters the inbox under
the same conditions as an answer of a person, so that of the two the first commit wins, and the other finds no
open question. While the thread is busy nothing is due: the run that goes on may end the wait.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from perdure.engine.decoding import read_each
from perdure.engine.documents import Document
from perdure.engine.queue import events, questions
from perdure.engine.requests import commit_for, expect_unchanged, first_of
from perdure.engine.transact import Budget, retry_attempt
from perdure.errors import Conflict, OverMaximum, TooLarge
from perdure.model.ops import Check, Commit, Delete, Expect, Fetch, Get, Op, Put
from perdure.model.program import Program, ask
from perdure.model.record_versions import successor
from perdure.model.records import DEDUPE, DOCUMENT, INBOX, LANE, Partition, Record
from perdure.model.runs.messages import ANSWERS, ROLLED_BACK, SIGNAL, Message, Reply, Run, encode
from perdure.model.runs.payloads import RESUME
from perdure.model.runs.queue import IN, OUT, WAITS, Debounce, Lane
from perdure.model.runs.waits import (
    BY_WAIT,
    HANDED_OVER,
    Wait,
    Waits,
    after_run,
    mark_given,
    next_due,
    read_waits,
    unmark,
    with_waits,
)

_NOT_GIVEN_BACK = "not_given_back"
"""Entry of the note of a run that was rolled back: its signal, if the thread has no room to keep it."""

SIGNALS = ("signals", "early")
"""Key of the document with the signals that a thread has no wait for yet."""

REMINDER = "reminder"
"""Name of the event of a reminder."""

_REMINDER_ORD = 1 << 19
"""Place of the first reminder among the replies of its run: above those of the run, below its closing
reply."""
_INHERITED = (
    "config",
    "context",
    "interrupt_before",
    "interrupt_after",
    "durability",
    "attempts",
    "on_failure",
    "webhook",
    "notice_if_closed",
    "about",
)
"""Options that the continuation by a deadline or a signal takes over from the run that asked: the graph goes
on for the same user, and a caller that waits for the run's end is notified."""
_BUSY_US = (1_000_000, 60_000_000)
"""Minimum and maximum microseconds until a deadline that passed while the thread was busy is checked
again."""
_CHECKS = 8
"""Operations that a commit of reminders has beside the replies, at most."""


# The end of a run


def plan_waits_at_end(
    run: Run,
    first: Message,
    note: Mapping[str, Any],
    *,
    waited: Run | None,
    timer: Lane,
    early: tuple[Record, ...] | None,
    waits_with: str | None,
    now: int,
    fresh: int,
) -> tuple[Mapping[str, Any], list[Op]]:
    """Return the note of a run that ends, with the waits that follow from it, and the operations that set the
    time at which a worker has to look and keep a signal again.

    Args:
        run: the run.
        first: its first message.
        note: its note; waits in it have times counted from the end of the run.
        waited: the run whose question the thread was waiting on before.
        timer: the queue record of the thread's waits.
        early: the signals that the thread keeps, if the run gives back the one that its message brought.
        waits_with: the run whose question the thread waits on from now on.
        now: current time in microseconds.
        fresh: start of the versions of a new record.

    Raises:
        TooLarge: the defaults of a deadline would not fit a message beside the run's config and context.
    """
    new, earlier_waits = read_waits(note), dict[str, Wait]()
    if waited is not None:
        earlier_waits = read_waits(waited.note)
    ops: list[Op] = []
    if early is not None:
        note, ops = _give_back(first, note, early, now, fresh)
    if not new and not earlier_waits:
        return note, ops
    if waits_with is None:
        return with_waits(note, {}), [*ops, *_timer(timer, None, fresh)]
    if waits_with != run.id:
        # The question of an earlier run is open again: what fell due meanwhile is due now.
        return with_waits(note, {}), [*ops, *_timer(timer, now, fresh)]
    answered = first.options.get(ANSWERS, ())
    waits = after_run(new, earlier_waits, answered, now, is_answer=first.mode == "answer")
    _require_room(run, first, note, waits)
    return with_waits(note, waits), set_timer(timer, waits, now, fresh)


def _require_room(run: Run, first: Message, note: Mapping[str, Any], waits: Waits) -> None:
    """Raise ``TooLarge`` now if the defaults of a run's waits, all together, would not fit the message of a
    deadline."""
    answers = {name: wait.answer for name, wait in waits.items() if wait.until is not None}
    if not answers:
        return
    options = _inherit(first.options, replace(run, note=note))
    try:
        make_message("", run, options, answers).put()
    except TooLarge as error:
        raise OverMaximum(
            f"run {run.id!r} has waits with defaults, and these are too large together with its config and "
            f"context to become a message at a deadline ({error}). Make them smaller"
        ) from error


def set_timer(timer: Lane, waits: Waits, now: int, fresh: int) -> list[Op]:
    """Return the operations that set the next check of a thread's waits."""
    # A signal may have come before the end of the run that waits for it: check at once.
    if any(wait.kind == "signal" for wait in waits.values()):
        return _timer(timer, now, fresh)
    return _timer(timer, next_due(waits.values()), fresh)


def _timer(timer: Lane, due: int | None, fresh: int) -> list[Op]:
    """Return the operations that set the time of the next check of a thread's waits, ``None`` for never."""
    if due is not None:
        return [timer.at_time(due).put(fresh)]
    if timer.version:
        return [Delete(LANE, (WAITS,), timer.version)]
    return []


def make_due(partition: Partition, now: int, fresh: int) -> Program[None]:
    """Make a thread's waits due for a check now, because another checkpoint has become its latest. A thread
    whose newest runs have no waits needs no check."""
    lanes, runs = yield from ask(Fetch(partition, (Get(LANE, (WAITS,)), questions.NEWEST)))
    if not any(run.note.get("waits") for run in read_each(partition, Run.read, runs)):
        return
    # If this is refused, a rival has just set the time.
    yield from ask(Commit(partition, tuple(_timer(Lane.read(WAITS, lanes), now, fresh))))


# Records of waits


class StandingWaits(NamedTuple):
    """The waits of a thread that count now: the run that asked, the options for its continuation, the waits
    by interrupt, and the check that the waits are still the same."""

    run: Run
    options: Mapping[str, Any]
    waits: Waits
    unchanged: Check


def make_message(
    message_id: str,
    run: Run,
    options: Mapping[str, Any],
    answers: Mapping[str, Any],
    signal: EarlySignal | None = None,
) -> Message:
    """Return the message that gives answers by interrupt, those of a ``signal`` or those at a deadline, and
    goes on with the graph of a run."""
    options = {**options, ANSWERS: list(answers), BY_WAIT: True}
    dedupe = b""
    if signal is not None:
        options[SIGNAL] = {"name": signal.name, "to_all": signal.to_all}
        dedupe = bytes.fromhex(signal.dedupe)
    payload = {RESUME: dict(answers)}
    return Message(message_id, payload, run.graph, run.channel, "answer", options, dedupe=dedupe)


def load_waits(
    partition: Partition, inbox: Lane, read_asked: questions.ReadAsked
) -> Program[StandingWaits | None]:
    """Return the waits of a thread that is not busy, ``None`` if it has none.

    Raises:
        Conflict: they were handed over to another database.
    """
    asked = yield from read_asked()
    if not asked.interrupts:
        return None
    run = yield from questions.find_asking_run(partition, inbox, asked.interrupts)
    if run is None:
        return None
    if HANDED_OVER in run.note:
        raise Conflict(questions.describe_elsewhere(partition.thread, "this signal"))
    waits = {name: wait for name, wait in read_waits(run.note).items() if name in asked.interrupts}
    if not waits:
        return None
    (found,) = yield from ask(Fetch(partition, (Get(INBOX, (run.first,)),)))
    options = next((message.options for message in read_each(partition, Message.read, found)), {})
    return StandingWaits(run, _inherit(options, run), waits, questions.check_head(asked))


def _inherit(options: Mapping[str, Any], run: Run) -> dict[str, Any]:
    """Return the options that the continuation of a run takes over from the run."""
    inherited = {name: options[name] for name in _INHERITED if name in options}
    return {**inherited, **questions.choose_closing_options(run)}


# Waits that are due


class Woken(NamedTuple):
    """Outcome of a check of a thread's waits.

    Attributes:
        message: the answer that entered the inbox, ``None`` if none did.
        inbox: the inbox with the answer.
        expired: the number of expired deadlines that the answer answers.
        signal: the name of the signal that the answer brings.
        unfit: names of signals that are kept, as they are too large beside the config and context of the run.
        reminded: the number of questions with a reminder.
        has_replies: true if the outbox has replies for a channel.
        due_at: when there is something to do again, ``None`` if nothing is known.
    """

    message: Message | None = None
    inbox: Lane | None = None
    expired: int = 0
    signal: str | None = None
    unfit: tuple[str, ...] = ()
    reminded: int = 0
    has_replies: bool = False
    due_at: int | None = None


@dataclass(frozen=True, slots=True)
class Wake:
    """Request to handle the due waits of a thread.

    Attributes:
        now: current time in microseconds.
        keep_events: microseconds for which the event of a reminder is kept.
        fresh: start of the versions of new records.
        budget: room of a commit.
        new_id: draws the id of a message.
        read_asked: reads the thread's questions.
    """

    partition: Partition
    now: int
    keep_events: int
    fresh: int
    budget: Budget
    new_id: Callable[[], str]
    read_asked: questions.ReadAsked

    def run(self) -> Program[Woken]:
        """Answer the waits that have expired or got a signal; if there are none, send the due reminders.

        Raises:
            Contention: other writers win each time.
        """
        return (yield from retry_attempt(self.partition, None, self._load, self._attempt))

    def _load(self) -> Program[_Seen]:
        items = (Get(LANE, (WAITS,)), Get(LANE, (IN,)), Get(LANE, (OUT,)), Get(DOCUMENT, SIGNALS))
        timers, inboxes, outboxes, early = yield from ask(Fetch(self.partition, items))
        return _Seen(Lane.read(WAITS, timers), Lane.read(IN, inboxes), Lane.read(OUT, outboxes), early)

    def _attempt(self, seen: _Seen) -> Program[Woken | None]:
        timer, inbox, now = seen.timer, seen.inbox, self.now
        if not timer.version or not timer.is_due(now):
            return Woken(due_at=timer.due_at)
        if inbox.run_id is not None or inbox.pending:
            late = now - (timer.since or now)
            again = now + min(max(late // 2, _BUSY_US[0]), _BUSY_US[1])
            return (yield from self._commit((timer._replace(ready_at=again).put(self.fresh),), Woken()))
        standing = yield from load_waits(self.partition, inbox, self.read_asked)
        unchanged = Check(LANE, (IN,), inbox.version or Expect.ABSENT)
        if standing is None:
            ended = yield from self._end_waits(inbox)
            return (yield from self._commit((*_timer(timer, None, self.fresh), unchanged, *ended), Woken()))
        kept = read_early_signals(seen.early)
        make_answer = partial(make_message, run=standing.run, options=standing.options)
        unfit: list[str] = []
        for signal in kept:
            if answers := signal.answers(standing.waits):
                message = make_answer(self.new_id(), answers=answers, signal=signal)
                if not _fits(message):
                    # The signal stays: the thread must not be blocked by a signal that does not fit.
                    unfit.append(signal.name)
                    continue
                others = [each for each in kept if each is not signal]
                left = make_early_put(others, seen.early, now, self.fresh)
                woken = Woken(signal=signal.name)
                return (yield from self._answer(seen, standing, message, [left], standing.waits, woken))
        if expired := {name: wait for name, wait in standing.waits.items() if wait.has_expired(now)}:
            answers = {name: wait.answer for name, wait in expired.items()}
            message = make_answer(self.new_id(), answers=answers)
            after = {**standing.waits, **{name: wait.spend() for name, wait in expired.items()}}
            put_waits = _put_waits(standing, {**read_waits(standing.run.note), **after})
            woken = Woken(expired=len(expired), unfit=tuple(unfit))
            return (yield from self._answer(seen, standing, message, [put_waits], after, woken))
        reminded = yield from self._remind(seen, standing, unchanged)
        return reminded and reminded._replace(unfit=tuple(unfit))

    def _end_waits(self, inbox: Lane) -> Program[list[Op]]:
        """Return the removal of the waits of the run that a thread is shown to wait on, as none of them
        counts any more: waits without a time at which they are due would be taken for damage."""
        run = yield from questions.read_waited(self.partition, inbox)
        if run is None or not read_waits(run.note):
            return []
        return [replace(run, note=with_waits(run.note, {})).put()]

    def _answer(
        self,
        seen: _Seen,
        standing: StandingWaits,
        message: Message,
        ops: Sequence[Op],
        after: Waits,
        woken: Woken,
    ) -> Program[Woken | None]:
        """Put an answer into the inbox, as if a person had given it."""
        inbox, inbox_ops = accept(seen.inbox, message, self.now, self.fresh)
        timer = _timer(seen.timer, next_due(after.values()), self.fresh)
        woken = woken._replace(message=message, inbox=inbox.mark_stored(self.fresh))
        return (yield from self._commit((*inbox_ops, *ops, *timer, standing.unchanged), woken))

    def _remind(self, seen: _Seen, standing: StandingWaits, unchanged: Check) -> Program[Woken | None]:
        """Send the reminders that are due, as many as one commit takes; the rest stays due."""
        room = self.budget.ops - _CHECKS
        due: dict[str, Wait] = {}
        for name, wait in standing.waits.items():
            if wait.is_to_remind(self.now) and (len(wait.replies) <= room or not due):
                due[name], room = wait, room - len(wait.replies)
        after = {**standing.waits, **{name: wait.note_reminders(self.now) for name, wait in due.items()}}
        next_at = next_due(after.values())
        ops: list[Op] = [*_timer(seen.timer, next_at, self.fresh), unchanged, standing.unchanged]
        # Waits that do not count now stay only with a time at which the thread is looked at: waits without
        # one would be taken for damage.
        stored = read_waits(standing.run.note)
        kept = {**stored, **after}
        if next_at is None:
            kept = after
        if kept != stored:
            ops.append(_put_waits(standing, kept))
        if not due:
            return (yield from self._commit(tuple(ops), Woken(due_at=next_at)))
        run, sent = standing.run, sum(wait.reminded for wait in stored.values())
        payloads = [payload for wait in due.values() for payload in wait.replies if run.channel]
        if payloads:
            outbox = seen.outbox.begin(self.fresh)
            first, place = outbox.last + 1, _REMINDER_ORD + sent * self.budget.ops
            ops.append(outbox.append(self.now, len(payloads)).put(self.fresh))
            ops += [
                Reply(first + n, run.id, place + n, run.channel, payload, created_at=self.now).put()
                for n, payload in enumerate(payloads)
            ]
        interrupts = [{"id": name, "until": wait.until} for name, wait in due.items()]
        data = {"run_id": run.id, "interrupts": interrupts}
        number = yield from events.find_first_free(self.partition, self.now)
        reminder_event = events.Event(number, run.id, REMINDER, encode(data, "event").decode())
        keeping = events.keep_until(self.now + self.keep_events, self.fresh)
        ops += [*events.puts(run.id, [reminder_event]), keeping]
        woken = Woken(reminded=len(due), has_replies=bool(payloads), due_at=next_at)
        return (yield from self._commit(tuple(ops), woken))

    def _commit(self, ops: tuple[Op, ...], woken: Woken) -> Program[Woken | None]:
        return (yield from commit_for(self.partition, ops, woken))


class _Seen(NamedTuple):
    timer: Lane
    inbox: Lane
    outbox: Lane
    early: tuple[Record, ...]


def _fits(message: Message) -> bool:
    try:
        message.put()
    except TooLarge:
        return False
    return True


def accept(inbox: Lane, message: Message, now: int, fresh: int) -> tuple[Lane, list[Op]]:
    """Return an idle inbox with a message added, and the operations that store both."""
    inbox = inbox.accept(now, Debounce())
    stored = replace(message, seq=inbox.last, accepted_at=now)
    return inbox, [inbox.put(fresh), *stored.put_with_key()]


def _put_waits(standing: StandingWaits, waits: Waits) -> Put:
    """Return the operation that stores waits with their run."""
    return replace(standing.run, note=with_waits(standing.run.note, waits)).put()


# Signals that came early


@dataclass(frozen=True, slots=True)
class EarlySignal:
    """A signal that a thread had no wait for when it came. ``dedupe`` is its key as it is stored, in hex, or
    empty; ``to_all`` is false for one that ends a single wait."""

    name: str
    value: Any
    to_all: bool
    dedupe: str

    def answers(self, waits: Waits) -> dict[str, Any]:
        """Return the answers that it gives to waits, by interrupt."""
        names = [each for each, wait in waits.items() if wait.kind == "signal" and wait.name == self.name]
        if not self.to_all:
            names = names[:1]
        return dict.fromkeys(names, mark_given(self.value))


def read_early_signals(found: tuple[Record, ...]) -> list[EarlySignal]:
    """Return the signals in the document of a thread, in the order in which they came."""
    if found:
        return [EarlySignal(**each) for each in Document.read(found[0]).body["signals"]]
    return []


def find_to_give_back(message: Message, state: str) -> tuple[Get, ...]:
    """Return what to read at the end of a run in this state to keep the signal of its message again: nothing
    unless it was rolled back and a signal has become its message."""
    if state == ROLLED_BACK and message.is_signal:
        return (Get(DOCUMENT, SIGNALS),)
    return ()


def _give_back(
    message: Message, note: Mapping[str, Any], early: tuple[Record, ...], now: int, fresh: int
) -> tuple[Mapping[str, Any], list[Op]]:
    """Return the note of a run that was rolled back, and the operations by which the signal that its message
    brought is kept again, before those that came after it. The signal's key is no longer the message's."""
    value = unmark(next(iter(message.payload[RESUME].values()), None))
    signal = EarlySignal(**message.options[SIGNAL], value=value, dedupe=message.dedupe.hex())
    try:
        kept = make_early_put([signal, *read_early_signals(early)], early, now, fresh)
    except TooLarge as error:
        # The run has to end, and the thread has no room for its signal: an operator finds it by the note.
        return {**note, _NOT_GIVEN_BACK: f"{signal.name}: {error}"}, []
    if not message.dedupe:
        return note, [kept]
    released = replace(message, dedupe=b"")
    return note, [kept, released.put(Expect.PRESENT), Delete(DEDUPE, (message.dedupe,))]


def make_early_put(signals: Sequence[EarlySignal], found: tuple[Record, ...], now: int, fresh: int) -> Op:
    """Return the operation that stores the signals of a thread in place of those that were read."""
    before = first_of(found)
    if before is not None and not signals:
        return Delete(DOCUMENT, SIGNALS, before.version)
    plain = {"signals": [asdict(one) for one in signals]}
    body = encode(plain, "collection of signals")
    if before is not None:
        fresh = successor(before.version, fresh, now)
    return Put(DOCUMENT, SIGNALS, {"updated_at": now}, body, expect_unchanged(before), fresh)
