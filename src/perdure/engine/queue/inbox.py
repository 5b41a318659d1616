"""Accepting messages: durable before they are acknowledged, and once however often they are sent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from perdure.engine.complete_reads import PAGE, read_all
from perdure.engine.decoding import read_each, read_one
from perdure.engine.documents import Document
from perdure.engine.queue import questions
from perdure.engine.queue.preconditions import Precondition, check_precondition
from perdure.engine.requests import commit_for, read_lane, read_records
from perdure.engine.threads import steering
from perdure.engine.transact import ATTEMPTS, retry_attempt
from perdure.errors import Corrupt, NotFound, QueueFull, RunInProgress
from perdure.model.ops import Commit, Committed, Expect, Fetch, Get, Op, Range
from perdure.model.program import Program, ask
from perdure.model.records import DEDUPE, DOCUMENT, INBOX, LANE, OUTBOX, RUN, Partition, Record
from perdure.model.runs.messages import (
    DEAD,
    FAILED,
    INTERRUPTED,
    OPEN,
    ROLLED_BACK,
    UNKNOWN,
    Message,
    Reply,
    Run,
    divide_among_runs,
)
from perdure.model.runs.queue import IN, INTERRUPT_RUN, LATER, ROLLBACK, Debounce, Lane, Stop

Strategy = Literal["enqueue", "reject", "interrupt", "rollback", "steer"]
"""Treatment of a message whose thread has an open run: it waits its turn, is refused, stops the run and keeps
what the run stored, stops it and rolls that back, or is taken up by the run while it goes on."""

COALESCE = "coalesce"
_BODIES = 50
_KEYED = 16
"""Number of messages due at the same microsecond that are read at first to find one of them by its dedupe
key."""
_ALONE_MAX = 64


class Accepted(NamedTuple):
    """An accepted, durable message: its number on the thread, its id, and whether it was accepted before.

    For a new message ``lane`` is the inbox after the commit, ``message`` is the stored message, ``is_first``
    is true if the thread had no inbox, and ``over`` is the previous version of the inbox."""

    seq: int
    id: str
    is_duplicate: bool
    lane: Lane | None = None
    message: Message | None = None
    is_first: bool = False
    over: int = 0

    @classmethod
    def of(cls, message: Message, lane: Lane, seq: int, over: int) -> Accepted:
        """Return that of a new message; ``lane`` is the inbox after it, ``over`` the version before."""
        return cls(seq, message.id, False, lane, message, not over, over)


@dataclass(frozen=True, slots=True)
class Accept:
    """Request to accept a message.

    Attributes:
        message: the message; its ``dedupe`` is empty if its sender never sends it twice.
        now: current time in microseconds.
        max_pending: maximum number of messages that may wait.
        fresh: start of the versions of a new inbox.
        precondition: a record that must exist, or is written with the message.
        cancel_pending: True if a message that stops the open run also withdraws those that wait.
        read_asked: reads what the thread asks; by default nothing.
    """

    partition: Partition
    message: Message
    now: int
    debounce: Debounce
    strategy: Strategy
    max_pending: int
    fresh: int
    precondition: Precondition | None = None
    cancel_pending: bool = False
    read_asked: questions.ReadAsked = questions.ask_nothing

    def store(self, known: Lane | None) -> Program[Accepted]:
        """Store the message; ``known`` is the inbox as the caller remembers it.

        Raises:
            QueueFull: too many messages wait.
            RunInProgress: the strategy is ``reject``, and a run is open or a message waits.
            NotWaiting: the message is an answer, and the thread has no such open question.
            Conflict: the message is a command that would abandon an open question.
            NotFound: the record that must exist does not.
            AlreadyCreated: the record to create exists.
        """
        must_load = (
            known is None
            or self._refusal(known) is not None
            or self.message.mode == "answer"
            or questions.would_abandon_question(self.message.payload)
            or (self.cancel_pending and known.pending > 0)
        )
        guess = None
        if known is not None and not must_load:
            guess = _Seen(known)
        return (
            yield from retry_attempt(
                self.partition, guess, self._load, self._attempt, refusals=questions.REFUSALS
            )
        )

    def _load(self) -> Program[_Seen]:
        dedupe = self.message.dedupe
        found, *keys = yield from ask(Fetch(self.partition, (Get(LANE, (IN,)), *get_key(dedupe))))
        earlier = yield from find_accepted(self.partition, dedupe, *keys)
        return _Seen(Lane.read(IN, found), earlier)

    def _refusal(self, lane: Lane) -> Exception | None:
        thread = self.partition.thread
        if lane.pending >= self.max_pending:
            return QueueFull(
                f"thread {thread!r} has {lane.pending} messages waiting, as many as it may have; nothing of "
                "this one was stored. Send it again later"
            )
        if self.strategy == "reject" and (lane.run_id is not None or lane.pending):
            return RunInProgress(
                f"thread {thread!r} has an open run or messages that wait for one; nothing of this message "
                "was stored, as its strategy is to be rejected then"
            )
        return None

    def _attempt(self, seen: _Seen) -> Program[Accepted | None]:
        if seen.earlier is not None:
            return seen.earlier
        lane = seen.lane
        refusal = self._refusal(lane)
        if refusal is not None:
            raise refusal
        message = self.message
        if message.mode == "answer":
            message, checks = yield from questions.address_answer(
                self.partition, message, lane, self.read_asked
            )
        else:
            checks = yield from questions.refuse_abandoning(self.partition, message, lane, self.read_asked)
            if lane.run_id is not None and self.strategy in (INTERRUPT_RUN, ROLLBACK):
                lane = lane.request_stop(self.strategy, self.now)
        withdrawn = yield from self._withdraw_pending(lane)
        lane = lane.accept(self.now, self.debounce)
        message = replace(message, seq=lane.last, accepted_at=self.now)
        ops = (lane.put(self.fresh), *self.ops(message), *withdrawn, *checks)
        outcome = yield from ask(Commit(self.partition, ops))
        if not isinstance(outcome, Committed):
            check_precondition(self.partition, self.precondition, outcome)
            return None
        return Accepted.of(message, lane.mark_stored(self.fresh), message.seq, lane.version)

    def ops(self, message: Message) -> list[Op]:
        """Return the operations that store the message with its number, beside that of the inbox."""
        ops = message.put_with_key()
        if self.precondition is not None:
            ops.append(self.precondition)
        return ops

    def _withdraw_pending(self, lane: Lane) -> Program[list[Op]]:
        """Return the operations that withdraw the pending messages, if this message does so."""
        how = self.strategy
        if not self.cancel_pending or how not in (INTERRUPT_RUN, ROLLBACK) or not lane.pending:
            return []
        if lane.pending > _ALONE_MAX:
            raise QueueFull(
                f"thread {self.partition.thread!r} has {lane.pending} messages waiting, at most {_ALONE_MAX} "
                "can be taken back at once; nothing of this one was stored. Cancel some of them first"
            )
        # If messages have come since the inbox was read, they are not in its count; the commit is refused
        # then.
        pending = Range(INBOX, after=(lane.bound,), limit=lane.pending)
        (found,) = yield from ask(Fetch(self.partition, (pending,)))
        # A signal comes from somebody else than a message: it is kept again, for the next wait.
        return [
            message.withdraw(ROLLBACK if message.is_signal else how).put(Expect.PRESENT)
            for message in read_each(self.partition, Message.read, found)
            if not message.is_withdrawn
        ]


def was_accepted(partition: Partition, dedupe: bytes) -> Program[bool]:
    """Return True if a message was accepted under a dedupe key."""
    (found,) = yield from ask(Fetch(partition, get_key(dedupe)))
    return bool(found)


def get_key(dedupe: bytes) -> tuple[Get, ...]:
    """Return the read of a dedupe key, none for a message without one."""
    return (Get(DEDUPE, (dedupe,)),) * bool(dedupe)


def find_accepted(
    partition: Partition, digest: bytes, found: Sequence[Record] = ()
) -> Program[Accepted | None]:
    """Return the acceptance of the message that was accepted under a dedupe key; ``None`` if there is none,
    or the key was removed since.

    Args:
        partition: the thread.
        digest: the dedupe key as it is stored.
        found: the answer to ``get_key``, if that is a read.

    Raises:
        Corrupt: the message is not stored or cannot be read.
    """
    if not found:
        return None
    seq: int = found[0].fields["seq"]
    limit = _KEYED
    for _ in range(ATTEMPTS):
        item: Get | Range = Get(INBOX, (seq,))
        if seq < 0:
            item = Range(DOCUMENT, (LATER,), by="updated_at", after=-seq - 1, limit=limit)
        keys, rows = yield from ask(Fetch(partition, (Get(DEDUPE, (digest,)), item)))
        if not keys:
            return None
        if keys[0].fields["seq"] != seq:
            # A postponed message has entered the inbox in between.
            seq = keys[0].fields["seq"]
            continue
        if seq > 0 and rows:
            return Accepted(seq, read_one(partition, Message.read, rows[0]).id, True)
        same = [row for row in rows if row.fields["updated_at"] == -seq]
        for message in map(try_read_postponed, same):
            if message is not None and message.dedupe == digest:
                return Accepted(0, message.id, True)
        if len(same) < limit:
            break
        limit *= 4
    raise Corrupt(
        f"thread {partition.thread!r}: a message was accepted under this dedupe key and cannot be read; "
        "nothing of this one was stored. Run `perdure fsck`, or send it under another key"
    )


class _Seen(NamedTuple):
    """The inbox, and the earlier acceptance of the message if there is one."""

    lane: Lane
    earlier: Accepted | None = None


class Standing(NamedTuple):
    """Status of a message: ``run`` is the run that took it, ``None`` while it waits. ``stop`` is the
    requested end of the run, while that has not ended yet. ``joins`` is the id of an earlier message with
    which a waiting message is to become one run, or was to become one."""

    message: Message
    run: Run | None
    stop: str | None = None
    joins: str | None = None

    @property
    def is_over(self) -> bool:
        """True if the status is final."""
        if self.run is None:
            return self.message.is_withdrawn
        return self.run.state != OPEN


def read_standing(partition: Partition, seq: int, message_id: str) -> Program[Standing]:
    """Return the status of a message.

    A thread that was deleted and created again numbers its messages from the beginning, so the number alone
    may name a later message.

    Args:
        partition: the thread.
        seq: the number of the message.
        message_id: its id.

    Raises:
        NotFound: it was never accepted, or was removed since.
    """
    found, runs = yield from ask(Fetch(partition, (Get(INBOX, (seq,)), steering.newest_run_up_to(seq))))
    for message in read_each(partition, Message.read, found):
        if message.id == message_id:
            return _make_standing(message, _find_run_of(seq, read_each(partition, Run.read, runs)))
    raise NotFound(
        f"thread {partition.thread!r} has no message {message_id!r}: it was removed, or never accepted"
    )


def _find_run_of(seq: int, runs: Iterable[Run]) -> Run | None:
    """Return the run that took the message with a number, ``None`` if none of these did."""
    return next((run for run in runs if run.first <= seq <= run.last), None)


def _make_standing(message: Message, run: Run | None) -> Standing:
    """Return the status of a message, given the run that covers its number. If the message was withdrawn,
    that run passed over it, and its own run is over without having begun."""
    if run is not None and message.is_withdrawn and run.id != message.id:
        return Standing(message, _make_withdrawn_run(message, run.epoch, run.started_at))
    return Standing(message, run)


def find(partition: Partition, run_id: str, most: int = 1) -> Program[Standing | None]:
    """Return the status of the message whose run has, or will have, this id; ``None`` if there is none.

    The id of a message that was, or will be, joined with an earlier one leads to their common run.

    Args:
        partition: the thread.
        run_id: the run.
        most: most messages in a run.
    """
    found, later, lanes = yield from ask(
        Fetch(partition, (Get(RUN, (run_id,)), Get(DOCUMENT, (LATER, run_id)), Get(LANE, (IN,))))
    )
    if not found:
        if later:
            return Standing(read_postponed(Document.read(later[0])), None)
        pending = yield from _load_pending(partition, Lane.read(IN, lanes), run_id)
        if pending and (earlier := pending[-1].shared_run_id) is not None:
            return (yield from find(partition, earlier, most))
        if pending:
            return Standing(_run_of(pending, pending[-1], most)[0], None)
        taken = yield from steering.find_taken(partition, run_id)
        if taken is None:
            return None
        message, its_run = taken
        if message.mode == COALESCE:
            return (yield from find(partition, its_run.id))
        if message.shared_run_id is not None:
            return (yield from find(partition, message.shared_run_id))
        return _make_standing(message, its_run)
    run = read_one(partition, Run.read, found[0])
    # Messages of a finished run are removed one by one; take the first that is left.
    (left,) = yield from ask(Fetch(partition, (Range(INBOX, after=(run.first - 1,), limit=1),)))
    first = [message for message in read_each(partition, Message.read, left) if message.seq <= run.last]
    if first:
        if (earlier := first[0].shared_run_id) is not None:
            return (yield from find(partition, earlier))
        return Standing(first[0], run, Lane.read(IN, lanes).stop_of(run.id))
    return None


def _load_pending(partition: Partition, lane: Lane, message_id: str) -> Program[list[Message]]:
    """Return the waiting messages up to and including the one with an id; an empty list if that one does not
    wait."""
    pending: list[Message] = []
    after = lane.bound
    while after < lane.last:
        (page,) = yield from ask(Fetch(partition, (Range(INBOX, after=(after,), limit=PAGE),)))
        for message in read_each(partition, Message.read, page):
            pending.append(message)
            if message.id == message_id:
                return pending
        if len(page) < PAGE:
            break
        after = page[-1].key[0]
    return []


def find_run_id(partition: Partition, seq: int, message_id: str, most: int) -> Program[str | None]:
    """Return the id of the run that took a message or will take it; ``None`` if the message was removed.

    Args:
        partition: the thread.
        seq: the number of the message.
        message_id: its id, as for ``read_standing``.
        most: most messages in a run.
    """
    items = (Get(LANE, (IN,)), Get(INBOX, (seq,)), steering.newest_run_up_to(seq))
    lanes, messages, runs = yield from ask(Fetch(partition, items))
    message = next(read_each(partition, Message.read, messages), None)
    if message is None or message.id != message_id:
        return None
    run = _find_run_of(seq, read_each(partition, Run.read, runs))
    if run is not None and message.is_withdrawn:
        return message_id
    if run is not None:
        return run.id
    after = Lane.read(IN, lanes).bound
    (found,) = yield from ask(Fetch(partition, (Range(INBOX, after=(after,), limit=seq - after),)))
    for taken in divide_among_runs(list(read_each(partition, Message.read, found)), most):
        if any(each.id == message_id for each in taken):
            return taken[0].id
    return None


def read_postponed(document: Document) -> Message:
    """Decode the message in a document; ``accepted_at`` is the time it is due."""
    fields = document.body
    return Message(
        fields["id"],
        fields["payload"],
        fields["graph"],
        fields["channel"],
        fields["mode"],
        fields["options"],
        accepted_at=document.updated_at,
        dedupe=bytes.fromhex(fields["dedupe"]),
    )


def try_read_postponed(record: Record) -> Message | None:
    """Decode the message in a document's record; ``None`` if it cannot be read."""
    try:
        return read_postponed(Document.read(record))
    except (Corrupt, ValueError, KeyError, TypeError):
        return None


def withdraw_postponed(lane: Lane, message: Message, how: Stop, now: int, fresh: int) -> list[Op]:
    """Return the operations that move a postponed message into the inbox as a withdrawn one."""
    lane = lane.accept(now, Debounce())
    message = replace(message.withdraw(how), seq=lane.last, accepted_at=now)
    lane, run_puts = _end_withdrawn(lane, [message], now)
    return [*message.put_with_key(Expect.ANY), lane.put(fresh), *run_puts]


def _end_withdrawn(lane: Lane, withdrawn: Sequence[Message], now: int) -> tuple[Lane, list[Op]]:
    """Return the inbox after messages were withdrawn, and the operations for their runs.

    If nothing else is pending, no run is open, no channel awaits a reply and none is a signal, which is kept
    again, their runs are recorded as over at once and need no worker.
    """
    if lane.run_id is not None or lane.pending != len(withdrawn) or len(withdrawn) > _ALONE_MAX:
        return lane, []
    if any(message.channel or message.is_signal for message in withdrawn):
        return lane, []
    return lane.complete(lane.last), [
        _make_withdrawn_run(message, lane.epoch, now).put() for message in withdrawn
    ]


def _make_withdrawn_run(message: Message, epoch: int, ended_at: int) -> Run:
    """Return the run of a withdrawn message, which is over."""
    state, note = {ROLLBACK: ROLLED_BACK, INTERRUPT_RUN: INTERRUPTED}[message.stop], {"begun": False}
    graph, channel, seq = message.graph, message.channel, message.seq
    return Run(message.id, seq, seq, state, graph, channel, epoch, 0, None, ended_at, ended_at, note)


def withdraw(partition: Partition, message_id: str, how: Stop, now: int, most: int = 1) -> Program[bool]:
    """Withdraw a message that still waits, so that its turn is skipped; ``False`` if it no longer waits.

    If no other message waits, the thread's question is open again.

    Args:
        partition: the thread.
        message_id: the message.
        how: treatment of the checkpoints of its run.
        now: current time in microseconds.
        most: most messages in a run: those that wait to be one run with the message are withdrawn with it.
    """

    def load() -> Program[tuple[Lane, tuple[Message, ...]] | None]:
        lane = yield from read_lane(partition, IN)
        again, found = yield from ask(Fetch(partition, (Get(LANE, (IN,)), Range(INBOX, after=(lane.bound,)))))
        if Lane.read(IN, again) != lane:
            return None
        return lane, tuple(read_each(partition, Message.read, found))

    def attempt(seen: tuple[Lane, tuple[Message, ...]]) -> Program[bool | None]:
        lane, pending = seen
        message = next((each for each in pending if each.id == message_id), None)
        if message is None:
            return False
        if message.is_withdrawn:
            return True
        together = _run_of(pending, message, most)
        taken = {each.seq: each.withdraw(how, together[0]) for each in together}
        run_puts: list[Op] = []
        afterwards = [taken.get(each.seq, each) for each in pending]
        if all(each.is_withdrawn for each in afterwards):
            if len(taken) + len(afterwards) <= _ALONE_MAX:
                lane, run_puts = _end_withdrawn(lane, afterwards, now)
            if lane.pending:
                # Only withdrawn messages are left: they are due now, as there is nothing to wait for.
                lane = lane._replace(ready_at=now)
        # The inbox is stored again, so that a claim based on the old messages is refused.
        ops = (lane.put(0), *(each.put(Expect.PRESENT) for each in taken.values()), *run_puts)
        return (yield from commit_for(partition, ops, True))

    return (yield from retry_attempt(partition, None, load, attempt))


def _run_of(pending: Sequence[Message], message: Message, most: int) -> Sequence[Message]:
    """Return the messages that wait to be one run with a message."""
    if message.mode == COALESCE:
        for taken in divide_among_runs(pending, most):
            if taken[-1].seq >= message.seq:
                return taken
    return [message]


def read_latest(
    partition: Partition, limit: int, after: int | None = None, most: int = 1
) -> Program[tuple[Standing, ...]]:
    """Read the newest messages of a thread, newest first, below number ``after``, each with its status;
    ``most`` is the maximum number of messages in a run."""
    newest = Range(INBOX, reverse=True, limit=limit)
    if after is not None:
        newest = newest._replace(after=(after,))
    # One run more than messages: the last run may have begun before them.
    newest_runs = Range(RUN, by="first", reverse=True, after=after, limit=limit + 1)
    messages, runs, lanes = yield from ask(Fetch(partition, (newest, newest_runs, Get(LANE, (IN,)))))
    found = list(read_each(partition, Run.read, runs))
    lane = Lane.read(IN, lanes)
    standing: list[Standing] = []
    for message in read_each(partition, Message.read, messages):
        its = _make_standing(message, _find_run_of(message.seq, found))
        if its.run is not None:
            its = its._replace(stop=lane.stop_of(its.run.id))
        standing.append(its._replace(joins=message.shared_run_id))
    waiting = [one.message for one in standing if one.run is None and one.message.mode == COALESCE]
    if most == 1 or not waiting:
        return tuple(standing)
    joined = yield from _find_joined(partition, lane, waiting[0].seq, most)
    return tuple(one._replace(joins=joined.get(one.message.seq, one.joins)) for one in standing)


def _find_joined(partition: Partition, lane: Lane, last: int, most: int) -> Program[dict[int, str]]:
    """Return, for each message that waits up to number ``last`` and will share the run of an earlier one, the
    id of that earlier message."""
    (found,) = yield from ask(Fetch(partition, (Range(INBOX, after=(lane.bound,), limit=last - lane.bound),)))
    pending = list(read_each(partition, Message.read, found))
    return {
        message.seq: first.id
        for first, *others in divide_among_runs(pending, most)
        for message in others
        if message.mode == COALESCE
    }


class GivenUp(NamedTuple):
    """Final failures on a thread, newest first: failed runs, and replies that are dead or held in doubt."""

    runs: tuple[Run, ...]
    replies: tuple[Reply, ...]


def read_failures(partition: Partition) -> Program[GivenUp]:
    """Read the final failures on a thread. Bodies are read only for these."""
    runs = yield from _find_in_state(partition, Range(RUN, by="first", reverse=True), (FAILED,))
    replies = yield from _find_in_state(partition, Range(OUTBOX, reverse=True), (DEAD, UNKNOWN))
    return GivenUp(
        tuple(read_each(partition, Run.read, runs)), tuple(read_each(partition, Reply.read, replies))
    )


def _find_in_state(
    partition: Partition, all_records: Range, states: tuple[str, ...]
) -> Program[list[Record]]:
    (found,) = yield from read_all(partition, all_records._replace(bodies=False))
    keys = [record.key for record in found if record.fields["state"] in states]
    records: list[Record] = []
    for at in range(0, len(keys), _BODIES):
        records += yield from read_records(partition, all_records.kind, keys[at : at + _BODIES])
    return [record for record in records if record.fields["state"] in states]
