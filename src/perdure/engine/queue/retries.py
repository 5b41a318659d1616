"""Repetition of failed runs: from their last step if that is the thread's latest, otherwise from their
messages. The record of the failure stays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from perdure.engine.complete_reads import PAGE
from perdure.engine.decoding import read_each, read_one
from perdure.engine.queue import questions
from perdure.engine.queue.inbox import Accepted, find, find_accepted, read_standing
from perdure.engine.requests import commit_for, expect_unchanged, first_of, read_records
from perdure.engine.transact import retry_attempt
from perdure.errors import Conflict, NotFound, QueueFull, RunInProgress
from perdure.model.checkpoint import CheckpointRecord
from perdure.model.heads import ROOT, belongs
from perdure.model.ops import Check, Expect, Fetch, Get, Op, Range
from perdure.model.program import Program, ask
from perdure.model.records import CHECKPOINT, DEDUPE, HEAD, INBOX, LANE, RUN, WRITE, Partition, Record
from perdure.model.runs.lifecycle import may_retry
from perdure.model.runs.messages import (
    ANSWERS,
    INTERRUPTED,
    RETRY_OF,
    ROLLED_BACK,
    START,
    Message,
    Run,
    dedupe_digest,
    dedupe_put,
)
from perdure.model.runs.payloads import COMMAND, INPUT, RESUME, holds_anything
from perdure.model.runs.queue import IN, Debounce, Lane
from perdure.model.write_records import read_writes

_STOPPED = (INTERRUPTED, ROLLED_BACK)


def make_repetition_key(run_id: str) -> bytes:
    """Return the dedupe key of the message that repeats a failed run."""
    return dedupe_digest(f"retry {run_id}")


def find_repetitions(partition: Partition, run_ids: Sequence[str]) -> Program[dict[str, str | None]]:
    """Return those of a thread's failed runs that were run again, each with the run that repeats it, or will;
    ``None`` if its message was removed."""
    found: dict[str, str | None] = {}
    for at in range(0, len(run_ids), PAGE):
        part = run_ids[at : at + PAGE]
        keys = tuple(Get(DEDUPE, (make_repetition_key(run_id),)) for run_id in part)
        answers = yield from ask(Fetch(partition, keys))
        seqs = {name: each[0].fields["seq"] for name, each in zip(part, answers, strict=True) if each}
        rows = yield from read_records(partition, INBOX, [(seq,) for seq in seqs.values()])
        ids = {message.seq: message.id for message in read_each(partition, Message.read, rows)}
        found |= {run_id: ids.get(seq) for run_id, seq in seqs.items()}
    return found


@dataclass(frozen=True, slots=True)
class Retry:
    """Request to run a failed run again.

    If its last step is the latest of the thread, or what its command wrote is stored there, the graph goes on
    from there without input. If nothing of it is stored, as after a rollback, its messages are accepted
    again, as new ones. If an answer started the run, that answer is given again, without the parts that
    finished tasks have taken. However often this is requested, a run has one repetition, unless that was
    cancelled. A repetition that failed may be repeated, too.

    Attributes:
        run_id: id of the failed run, or of a message that was joined into it.
        now: current time in microseconds.
        max_pending: maximum number of messages that may wait on the thread.
        fresh: start of the versions of a new inbox.
        new_id: draws the id of a message.
        read_asked: reads what the thread asks.
    """

    partition: Partition
    run_id: str
    now: int
    max_pending: int
    fresh: int
    new_id: Callable[[], str]
    read_asked: questions.ReadAsked

    def store(self) -> Program[Accepted]:
        """Store the messages of the repetition.

        Raises:
            NotFound: there is no such run.
            Conflict: it has not failed, or the thread has gone on since.
            RunInProgress: another run of the thread is open or waits, and this one would go on from the
                thread's latest step.
            NotWaiting: it was an answer, and its question is not open any more.
            QueueFull: too many messages wait.
        """
        (runs,) = yield from ask(Fetch(self.partition, (Get(RUN, (self.run_id,)),)))
        if not runs:
            # This may be the id of a message that was joined into the run of an earlier one: find that run.
            joined = yield from find(self.partition, self.run_id)
            if joined is not None and joined.run is not None:
                return (yield from replace(self, run_id=joined.run.id).store())
        return (
            yield from retry_attempt(
                self.partition, None, self._load, self._attempt, refusals=questions.REFUSALS
            )
        )

    @property
    def _key(self) -> bytes:
        return make_repetition_key(self.run_id)

    def _load(self) -> Program[_Seen]:
        lanes, runs, heads, keys = yield from ask(
            Fetch(
                self.partition,
                (Get(LANE, (IN,)), Get(RUN, (self.run_id,)), Get(HEAD, (ROOT,)), Get(DEDUPE, (self._key,))),
            )
        )
        if not runs:
            raise NotFound(
                f"thread {self.partition.thread!r} has no run {self.run_id!r}: it never began, or its "
                "record was removed"
            )
        run = read_one(self.partition, Run.read, runs[0])
        earlier = yield from find_accepted(self.partition, self._key, keys)
        stopped: Message | None = None
        if earlier is not None:
            standing = yield from read_standing(self.partition, earlier.seq, earlier.id)
            if standing.is_over and (standing.run is None or standing.run.state in _STOPPED):
                earlier, stopped = None, standing.message
        latest = [(ROOT, head.fields["checkpoint_id"]) for head in heads]
        checkpoints = yield from read_records(self.partition, CHECKPOINT, latest)
        has_written = yield from questions.has_written(self.partition, run)
        (messages,) = yield from ask(
            Fetch(self.partition, (Range(INBOX, after=(run.first - 1,), limit=run.last - run.first + 1),))
        )
        return _Seen(
            Lane.read(IN, lanes),
            run,
            tuple(
                each for each in read_each(self.partition, Message.read, messages) if not each.is_withdrawn
            ),
            first_of(heads),
            any(CheckpointRecord.read(each).run_id == run.id for each in checkpoints),
            has_written,
            earlier,
            stopped,
        )

    def _attempt(self, seen: _Seen) -> Program[Accepted | None]:
        if seen.earlier is not None:
            return seen.earlier
        thread, lane, run = self.partition.thread, seen.lane, seen.run
        if not may_retry(run.state):
            raise Conflict(
                f"thread {thread!r}: run {run.id!r} is {run.state}; only one that failed is run again"
            )
        if not seen.messages:
            raise NotFound(
                f"thread {thread!r}: the messages of run {run.id!r} were removed, as they are too old; "
                "send them anew"
            )
        if not seen.has_latest_checkpoint and (yield from self._has_checkpoint()):
            raise Conflict(
                f"thread {thread!r} has gone on after run {run.id!r}: what that run had done is not its "
                "latest state any more; send its message again, or fork the thread"
            )
        messages, checks = yield from self._plan_repetition(seen)
        if lane.pending + len(messages) > self.max_pending:
            raise QueueFull(
                f"thread {thread!r} has {lane.pending} messages waiting, at most {self.max_pending} may; "
                "nothing was stored. Try again later"
            )
        lane = lane.accept(self.now, Debounce(), len(messages))
        first = lane.last - len(messages) + 1
        stored = [
            replace(message, seq=first + n, accepted_at=self.now, dedupe=b"")
            for n, message in enumerate(messages)
        ]
        stored[0] = replace(stored[0], dedupe=self._key)
        expect = Expect.ABSENT
        ops: list[Op] = [lane.put(self.fresh), *checks, *(message.put() for message in stored)]
        if seen.stopped is not None:
            # The cancelled message loses the key, as its removal would otherwise remove the key.
            expect = Expect.ANY
            ops.append(replace(seen.stopped, dedupe=b"").put(Expect.PRESENT))
        ops.append(dedupe_put(self._key, first, expect))
        accepted = Accepted(
            first, stored[0].id, False, lane.mark_stored(self.fresh), stored[0], False, lane.version
        )
        return (yield from commit_for(self.partition, ops, accepted))

    def _plan_repetition(self, seen: _Seen) -> Program[tuple[list[Message], tuple[Op, ...]]]:
        """Return the messages to accept, and the checks that these are still the right ones."""
        run, lane, head = seen.run, seen.lane, seen.head
        first = seen.messages[0]
        options = {**first.options, RETRY_OF: run.id}
        unmoved = Check(HEAD, (ROOT,), expect_unchanged(head))
        is_answer = first.mode == "answer" or ANSWERS in options
        if seen.has_latest_checkpoint or (seen.has_written and not is_answer):
            if lane.run_id is not None or lane.pending:
                raise RunInProgress(
                    f"thread {self.partition.thread!r} has an open run or messages that wait, and run "
                    f"{run.id!r} would go on from the thread's latest step; wait for them, or cancel them"
                )
            for name in (START, ANSWERS):
                options.pop(name, None)
            going_on = Message(self.new_id(), {INPUT: None}, run.graph, run.channel, "enqueue", options)
            return [going_on], (unmoved,)
        if is_answer:
            message = replace(first, id=self.new_id(), mode="answer", options=options, channel=run.channel)
            if seen.has_written and COMMAND in message.payload:
                message = replace(message, payload={RESUME: message.payload[COMMAND][RESUME]})
            return (yield from self._answer_again(seen, message))
        return [
            replace(message, id=self.new_id(), options={**message.options, RETRY_OF: run.id})
            for message in seen.messages
        ], (unmoved,)

    def _answer_again(self, seen: _Seen, message: Message) -> Program[tuple[list[Message], tuple[Op, ...]]]:
        """Return the answer to give again: without the parts that were taken by tasks which finished beside
        the one that failed."""
        lane, named = seen.lane, message.options.get(ANSWERS, ())
        if lane.last == seen.run.last and (yield from self._has_pending_writes(seen)):
            question, unchanged = yield from questions.find_open_question(
                self.partition, lane, self.read_asked
            )
            left = [name for name in named if question is not None and question.knows(name)]
            if len(left) < len(named):
                message = _reduce_answer(message, left)
                yield from questions.refuse_abandoning(self.partition, message, lane, self.read_asked)
                return [replace(message, graph=seen.run.graph)], unchanged
        message, checks = yield from questions.address_answer(self.partition, message, lane, self.read_asked)
        return [message], checks

    def _has_pending_writes(self, seen: _Seen) -> Program[bool]:
        """Return True if tasks of the run have stored writes on the thread's latest checkpoint."""
        if seen.head is None:
            return False
        place = ROOT, seen.head.fields["checkpoint_id"]
        (records,) = yield from ask(Fetch(self.partition, (Range(WRITE, place),)))
        return any(belongs(write.nonce, (seen.run.id,)) for write in read_writes(records))

    def _has_checkpoint(self) -> Program[bool]:
        """Return True if a checkpoint of the run is stored. Checkpoints of its subgraphs alone do not count:
        their step is not finished."""
        after: int | None = None
        while True:
            page = Range(CHECKPOINT, (ROOT,), by="seq", reverse=True, after=after, limit=PAGE, bodies=False)
            (found,) = yield from ask(Fetch(self.partition, (page,)))
            if any(record.fields["run_id"] == self.run_id for record in found):
                return True
            if len(found) < PAGE:
                return False
            after = found[-1].fields["seq"]


def _reduce_answer(message: Message, left: Sequence[str]) -> Message:
    """Return an answer reduced to the answers to the questions in ``left``; the rest of its command stays."""
    command = dict(message.payload.get(COMMAND, {}))
    resume = command.pop(RESUME, message.payload.get(RESUME))
    if left:
        command[RESUME] = {name: resume[name] for name in left}
        options = {**message.options, ANSWERS: list(left)}
        return replace(message, payload={COMMAND: command}, options=options)
    options = {name: value for name, value in message.options.items() if name not in (START, ANSWERS)}
    payload: dict[str, Any] = {INPUT: None}
    if holds_anything(command):
        payload = {COMMAND: command}
    return replace(message, payload=payload, mode="enqueue", options=options)


class _Seen(NamedTuple):
    lane: Lane
    run: Run
    messages: tuple[Message, ...]
    head: Record | None
    has_latest_checkpoint: bool
    """True if the thread's latest checkpoint is the run's."""
    has_written: bool
    """True if what the run's command wrote is stored beside the thread's latest checkpoint."""
    earlier: Accepted | None
    stopped: Message | None
    """The first message of a repetition that was cancelled: a further request makes another."""
