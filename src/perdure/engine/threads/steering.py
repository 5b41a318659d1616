"""Taking of waiting messages by an open run: the commit that stores them in the thread's state binds them to
the run.

A message that is to steer waits in the inbox like any other. The open run takes it by extending its range of
numbers over it, in the same commit as the writes that hold the message. So there is no moment at which a
message is in the thread's state and not the run's, or the other way round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from perdure.engine.complete_reads import PAGE
from perdure.engine.decoding import read_each, read_one
from perdure.engine.requests import read_records
from perdure.errors import Conflict, Corrupt, Fenced
from perdure.model.ops import Fetch, Get, Op, Range
from perdure.model.program import Program, ask
from perdure.model.records import INBOX, LANE, RUN, Partition, Record
from perdure.model.runs.messages import Message, Run
from perdure.model.runs.payloads import are_alike, can_be_joined
from perdure.model.runs.queue import IN, Lane

STEER, WITHDRAWN = "steer", "withdrawn"
"""Mode of a message that an open run may take, and of one that it passes over."""


class TakenBack(Conflict):
    """Raised when a message was withdrawn while a step that took it was under way; nothing of the step was
    stored."""


def find_taken(partition: Partition, message_id: str) -> Program[tuple[Message, Run] | None]:
    """Return the message with an id, and its run: the one that took the message together with others or while
    under way, or that passed over the message because it was withdrawn. ``None`` if there is no such message
    or run. The message with which a run began has the id of the run, and is not looked for here."""
    page = Range(INBOX, reverse=True, limit=PAGE, bodies=False)
    its_runs = Range(RUN, by="first", reverse=True, limit=PAGE, bodies=False)
    while True:
        found, begun = yield from ask(Fetch(partition, (page, its_runs)))
        firsts = {row.fields["first"] for row in begun}
        wanted = [
            row.key
            for row in found
            if row.fields["mode"] in (STEER, WITHDRAWN)
            or (row.fields["mode"] == "coalesce" and row.key[0] not in firsts)
        ]
        rows = yield from read_records(partition, INBOX, wanted)
        for message in read_each(partition, Message.read, rows):
            if message.id == message_id:
                (runs,) = yield from ask(Fetch(partition, (newest_run_up_to(message.seq),)))
                for run in read_each(partition, Run.read, runs):
                    if run.last >= message.seq:
                        return message, run
                return None
        if len(found) < PAGE:
            return None
        page, its_runs = page._replace(after=found[-1].key), its_runs._replace(after=found[-1].key[0])


def newest_run_up_to(seq: int) -> Range:
    """Return the read of the last run that began with this message or an earlier one."""
    return Range(RUN, by="first", reverse=True, after=seq + 1, limit=1)


def load_held(partition: Partition, run: Run) -> Program[tuple[Lane, Run]]:
    """Return the inbox, and a held run as it is stored: it may have taken messages since it was claimed.

    Raises:
        Fenced: another worker holds the run.
    """
    lanes, runs = yield from ask(Fetch(partition, (Get(LANE, (IN,)), Get(RUN, (run.id,)))))
    return read_held(partition, run, lanes, runs)


def read_held(
    partition: Partition, run: Run, lanes: tuple[Record, ...], runs: tuple[Record, ...]
) -> tuple[Lane, Run]:
    """Return what ``load_held`` does, from the answers to its reads."""
    lane = Lane.read(IN, lanes)
    if lane.run_id != run.id or lane.epoch != run.epoch:
        raise Fenced(
            f"thread {partition.thread!r}: run {run.id!r} was held under epoch {run.epoch} and is not any "
            "more; another worker has taken over, and nothing of this write was stored"
        )
    if not runs:
        raise Corrupt(f"thread {partition.thread!r}: its open run {run.id!r} is not stored")
    return lane, read_one(partition, Run.read, runs[0])


@dataclass(slots=True, eq=False)
class Taking:
    """Messages that a held run has taken, and those that one of its tasks is about to take.

    Only one task of a step at a time may hold messages, because a range of numbers has no gaps.

    Attributes:
        run: the run as it is stored.
        may_join: returns True if a message fits the run.
        most: maximum number of messages that are taken at once.
        taken: messages that are bound to the run, in order.
        task_id: the task that holds ``held``, messages that are not bound yet.
        has_written: True if the task's result, which holds them, was passed on to be stored.
        has_more: True if the run may take the message behind those that were last found waiting, but only in
            a later step, as it cannot be joined with them.
    """

    partition: Partition
    run: Run
    may_join: Callable[[Message], bool]
    most: int
    taken: list[Message] = field(default_factory=list[Message])
    task_id: str | None = None
    held: tuple[Message, ...] = ()
    has_written: bool = False
    has_more: bool = False

    def load_waiting(self) -> Program[tuple[Message, ...]]:
        """Return the messages at the front of the inbox that the run may take and that can be joined to one
        input. They end before the first message for which this is not so; withdrawn ones are passed over.

        Raises:
            Fenced: another worker holds the run.
        """
        lane, _ = yield from load_held(self.partition, self.run)
        front: list[Message] = []
        payloads: list[object] = []
        self.has_more = False
        after = lane.bound
        while True:
            (found,) = yield from ask(Fetch(self.partition, (Range(INBOX, after=(after,), limit=self.most),)))
            for message in read_each(self.partition, Message.read, found):
                if message.is_withdrawn:
                    continue
                if message.mode != STEER or not self.may_join(message):
                    return tuple(front)
                if len(front) == self.most or not can_be_joined(payloads, message.payload):
                    self.has_more = are_alike(front[0].payload, message.payload)
                    return tuple(front)
                front.append(message)
                payloads.append(message.payload)
            if len(found) < self.most:
                return tuple(front)
            after = found[-1].key[0]

    def offer(self, task_id: str, messages: Sequence[Message]) -> None:
        """Hold messages for a task, until its result is stored. They replace those that were held before."""
        self.task_id, self.held, self.has_written = task_id, tuple(messages), False

    def is_held_by_another(self, task_id: str) -> bool:
        """Return True if a task other than this one holds messages."""
        return bool(self.held) and self.task_id != task_id

    def note_written(self, task_id: str) -> None:
        """Note that a task's result was passed on to be stored."""
        if self.held and self.task_id == task_id:
            self.has_written = True

    def plan_ops(self) -> Program[tuple[Op, ...]]:
        """Return the operations that bind held messages to the run, for the commit that stores the result of
        their task or what follows from it. The result is empty if there are no such messages.

        Raises:
            Fenced: another worker holds the run.
            TakenBack: one of the messages was withdrawn.
        """
        if not self.has_written:
            return ()
        lane, run = yield from load_held(self.partition, self.run)
        upto = self.held[-1].seq
        if run.last >= upto:
            # An earlier commit, whose answer was lost, has bound them.
            return ()
        span = Range(INBOX, after=(lane.bound,), limit=upto - lane.bound, bodies=False)
        (found,) = yield from ask(Fetch(self.partition, (span,)))
        # Withdrawn messages between them are passed over.
        waiting = [(row.key[0], row.fields["mode"]) for row in found if row.fields["mode"] != WITHDRAWN]
        if waiting != [(message.seq, STEER) for message in self.held]:
            raise TakenBack(
                f"thread {self.partition.thread!r}: a message was taken back while a step of run "
                f"{self.run.id!r} took it up; nothing of the step was stored. It is repeated without it"
            )
        return lane.join(upto).put(0), replace(run, last=upto).put()

    def note_stored(self) -> None:
        """Note that the commit with ``ops`` was accepted."""
        if self.has_written:
            upto = self.held[-1].seq
            if self.run.last < upto:
                self.run = replace(self.run, last=upto, version=self.run.version + 1)
            self.taken += self.held
            self.task_id, self.held, self.has_written = None, (), False
