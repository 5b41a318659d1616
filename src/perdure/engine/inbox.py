"""Accepting messages: durable before it is said, and once however often they are sent."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from perdure.engine.paging import PAGE
from perdure.engine.transact import retrying
from perdure.errors import Busy, Corrupt, NotFound, NotWaiting, TryLater
from perdure.model.lane import IN, INTERRUPT, ROLLBACK, Debounce, Lane
from perdure.model.messages import DEAD, FAILED, UNKNOWN, Message, Reply, Run, dedupe_put
from perdure.model.ops import Commit, Committed, Fetch, Get, Op, Range
from perdure.model.program import Program, ask
from perdure.model.records import DEDUPE, INBOX, LANE, OUTBOX, RUN, Key, Partition, Record

Strategy = Literal["enqueue", "reject", "interrupt", "rollback"]
"""What becomes of a message whose thread has an open run: it waits for its turn, is refused, ends the run
and keeps what it stored, or ends it and takes that back."""

_BODIES = 50


class Accepted(NamedTuple):
    """A message that is durable: its number on the thread, its id, and whether it had been accepted before.
    If not, ``lane`` is the inbox then, ``message`` is what was stored, and ``is_first`` says that the thread
    had no inbox."""

    seq: int
    id: str
    is_duplicate: bool
    lane: Lane | None = None
    message: Message | None = None
    is_first: bool = False


@dataclass(frozen=True, slots=True)
class Accept:
    """A message to be accepted at ``now``, with at most ``most`` waiting. ``message.dedupe`` is empty where
    its sender never sends it twice. ``fresh`` starts the versions of a new lane."""

    partition: Partition
    message: Message
    now: int
    debounce: Debounce
    strategy: Strategy
    most: int
    fresh: int

    def store(self, known: Lane | None) -> Program[Accepted]:
        """Store it. ``known`` is how the caller knows the inbox."""
        refused = known is None or self._refusal(known) is not None or self.message.mode == "answer"
        guess = None if refused or known is None else _Seen(known)
        return (yield from retrying(self.partition, guess, self._load, self._attempt))

    def _load(self) -> Program[_Seen]:
        dedupe = (Get(DEDUPE, (self.message.dedupe,)),) if self.message.dedupe else ()
        found, *rest = yield from ask(Fetch(self.partition, (Get(LANE, (IN,)), *dedupe)))
        if rest and rest[0]:
            seq: int = rest[0][0].fields["seq"]
            (row,) = yield from ask(Fetch(self.partition, (Get(INBOX, (seq,)),)))
            message_id = Message.read(row[0]).id if row else self.message.id
            return _Seen(Lane.read(IN, found), Accepted(seq, message_id, True))
        return _Seen(Lane.read(IN, found))

    def _refusal(self, lane: Lane) -> Exception | None:
        thread = self.partition.thread
        if lane.pending >= self.most:
            return TryLater(
                f"thread {thread!r} has {lane.pending} messages waiting, as many as it may have; nothing of "
                "this one was stored. Send it again later"
            )
        if self.strategy == "reject" and (lane.run_id is not None or lane.pending):
            return Busy(
                f"thread {thread!r} has an open run or messages that wait for one; nothing of this message "
                "was stored, as its strategy is to be rejected then"
            )
        return None

    def _attempt(self, seen: _Seen) -> Program[Accepted | None]:
        if seen.before is not None:
            return seen.before
        lane = seen.lane
        refusal = self._refusal(lane)
        if refusal is not None:
            raise refusal
        message = self.message
        if message.mode == "answer":
            lane, message = yield from self._answering(lane)
        else:
            # It starts over: an answer that came behind it would be given to what is asked next.
            lane = lane._replace(waiting=None)
            if lane.run_id is not None and self.strategy in (INTERRUPT, ROLLBACK):
                lane = lane.stopping(self.strategy, self.now)
        lane = lane.accepted(self.now, self.debounce)
        message = replace(message, seq=lane.last, accepted_at=self.now)
        ops: list[Op] = [lane.put(self.fresh), message.put()]
        if message.dedupe:
            ops.append(dedupe_put(message.dedupe, message.seq))
        outcome = yield from ask(Commit(self.partition, tuple(ops)))
        if not isinstance(outcome, Committed):
            return None
        is_first = not lane.version
        return Accepted(message.seq, message.id, False, lane.stored(self.fresh), message, is_first)

    def _answering(self, lane: Lane) -> Program[tuple[Lane, Message]]:
        """The lane without what waits for this answer, of two answers the second finds it gone; and the
        answer, which goes to the graph that asked, and whose replies go where those of the question went
        unless it says otherwise."""
        thread, wanted = self.partition.thread, self.message.options.get("interrupt_id")
        if lane.waiting is None:
            raise NotWaiting(
                f"thread {thread!r} waits for no answer: nothing interrupted it, or it was answered already; "
                "nothing of this answer was stored. Look at the thread's state"
            )
        (found,) = yield from ask(Fetch(self.partition, (Get(RUN, (lane.waiting,)),)))
        if not found:
            raise Corrupt(f"thread {thread!r}: the run {lane.waiting!r} that waits is not stored")
        run = Run.read(found[0])
        ids = [i["id"] for i in run.note.get("interrupts", ())]
        if wanted is not None and wanted not in ids:
            raise NotWaiting(
                f"thread {thread!r} waits for the answer to {' and '.join(map(repr, ids)) or 'nothing'}, "
                f"not to {wanted!r}; nothing of this answer was stored. Look at the thread's state"
            )
        message = replace(self.message, graph=run.graph, channel=self.message.channel or run.channel)
        return lane._replace(waiting=None), message


class _Seen(NamedTuple):
    """The inbox, and what is known of the message if it was accepted before."""

    lane: Lane
    before: Accepted | None = None


class Standing(NamedTuple):
    """Where a message stands: the run that took it, or none while it waits."""

    message: Message
    run: Run | None


def look(partition: Partition, seq: int) -> Program[Standing]:
    """Where a message stands. ``NotFound`` when it was never accepted, or was removed since."""
    found, runs = yield from ask(
        Fetch(partition, (Get(INBOX, (seq,)), Range(RUN, by="first", reverse=True, after=seq + 1, limit=1)))
    )
    if not found:
        raise NotFound(f"thread {partition.thread!r} has no message {seq}: it was removed, or never accepted")
    run = Run.read(runs[0]) if runs else None
    return Standing(Message.read(found[0]), run if run is not None and run.last >= seq else None)


def latest(partition: Partition, limit: int, after: int | None = None) -> Program[tuple[Standing, ...]]:
    """The newest messages of a thread, newest first, before number ``after``, each with where it stands."""
    messages, runs = yield from ask(
        Fetch(
            partition,
            (
                Range(INBOX, reverse=True, after=None if after is None else (after,), limit=limit),
                # One more than messages: the last one may have begun before them.
                Range(RUN, by="first", reverse=True, after=after, limit=limit + 1),
            ),
        )
    )
    found = [Run.read(record) for record in runs]
    standing: list[Standing] = []
    for message in map(Message.read, messages):
        taken = next((run for run in found if run.first <= message.seq <= run.last), None)
        standing.append(Standing(message, taken))
    return tuple(standing)


class GivenUp(NamedTuple):
    """What went wrong for good on a thread, newest first: failed runs, and replies that are dead or held."""

    runs: tuple[Run, ...]
    replies: tuple[Reply, ...]


def given_up(partition: Partition) -> Program[GivenUp]:
    """What was given up on a thread. Bodies are read of that only."""
    runs = yield from _in_state(partition, Range(RUN, by="first", reverse=True), (FAILED,))
    replies = yield from _in_state(partition, Range(OUTBOX, reverse=True), (DEAD, UNKNOWN))
    return GivenUp(tuple(map(Run.read, runs)), tuple(map(Reply.read, replies)))


def _in_state(partition: Partition, every: Range, states: tuple[str, ...]) -> Program[list[Record]]:
    keys: list[Key] = []
    after = None
    while True:
        (page,) = yield from ask(Fetch(partition, (every._replace(limit=PAGE, bodies=False, after=after),)))
        keys += [record.key for record in page if record.fields["state"] in states]
        if len(page) < PAGE:
            break
        after = page[-1].key if every.by is None else page[-1].fields[every.by]
    records: list[Record] = []
    for at in range(0, len(keys), _BODIES):
        gets = tuple(Get(every.kind, key) for key in keys[at : at + _BODIES])
        records += [record for answer in (yield from ask(Fetch(partition, gets))) for record in answer]
    return [record for record in records if record.fields["state"] in states]
