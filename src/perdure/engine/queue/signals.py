"""Signals: values that end the waits of a thread for them, or are kept for a wait that has not begun yet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from perdure.engine.queue import waits
from perdure.engine.queue.inbox import Accepted, find_accepted, get_key
from perdure.engine.queue.questions import ReadAsked
from perdure.engine.queue.waits import SIGNALS, EarlySignal, make_early_put, read_early_signals
from perdure.engine.requests import commit_for
from perdure.engine.transact import retry_attempt
from perdure.errors import Conflict, NotFound, QueueFull, TooLarge
from perdure.model.heads import ROOT
from perdure.model.ops import Check, Expect, Fetch, Get, Op
from perdure.model.program import Program, ask
from perdure.model.records import DOCUMENT, HEAD, LANE, OF_THREAD, Partition, Record
from perdure.model.runs.messages import dedupe_digest
from perdure.model.runs.queue import IN, Lane

EARLY_MOST = 100
"""Maximum number of signals that a thread keeps for waits which have not begun. Together they have at most
``MESSAGE_MAX`` bytes."""


class Signalled(NamedTuple):
    """A durable signal: the acceptance of the answer that it has become, ``None`` while it is kept for a
    wait. ``is_duplicate`` is true if it was accepted before."""

    accepted: Accepted | None
    is_duplicate: bool


def signal_key(name: str, key: str) -> bytes:
    """Return the stored form of a signal's key."""
    return dedupe_digest(f"signal\0{name}\0{key}")


@dataclass(frozen=True, slots=True)
class Signal:
    """Request to give a signal to a thread.

    Attributes:
        name: the name for which threads wait.
        value: plain data.
        key: ``signal_key``, empty for a sender that never sends it twice.
        to_all: false to end one wait only, the first.
        message_id: id of the answer that it becomes.
        now: current time in microseconds.
        fresh: start of the versions of new records.
        read_asked: reads what the thread asks.
    """

    partition: Partition
    name: str
    value: object
    key: bytes
    to_all: bool
    message_id: str
    now: int
    fresh: int
    read_asked: ReadAsked

    def store(self) -> Program[Signalled]:
        """End the waits for the signal, or keep the signal for a wait that has not begun.

        Raises:
            NotFound: there is no such thread.
            QueueFull: the thread keeps too many signals already, or too many bytes of them.
            Conflict: the thread's waits were handed over to another database.
            Unserialisable, TooLarge: the value cannot be stored.
        """
        return (
            yield from retry_attempt(self.partition, None, self._load, self._attempt, refusals=(Conflict,))
        )

    def _load(self) -> Program[_Seen]:
        items = (Get(LANE, (IN,)), Get(DOCUMENT, SIGNALS), Get(HEAD, (ROOT,)), Get(DOCUMENT, OF_THREAD))
        answers = yield from ask(Fetch(self.partition, (*items, *get_key(self.key))))
        lanes, early, heads, documents, *keys = answers
        before = yield from find_accepted(self.partition, self.key, *keys)
        return _Seen(Lane.read(IN, lanes), early, (*lanes, *heads, *documents)[:1], before)

    def _attempt(self, seen: _Seen) -> Program[Signalled | None]:
        inbox, kept = seen.inbox, read_early_signals(seen.early)
        if seen.before is not None:
            return Signalled(seen.before, True)
        signal = EarlySignal(self.name, self.value, self.to_all, self.key.hex())
        if signal.dedupe and any(one.dedupe == signal.dedupe for one in kept):
            return Signalled(None, True)
        if not seen.shown_by:
            raise NotFound(
                f"there is no thread {self.partition.thread!r} for the signal {self.name!r}; nothing of it "
                "was stored. Create the thread, or send it a message, first"
            )
        if inbox.run_id is None and not inbox.pending:
            found = yield from waits.load_waits(self.partition, inbox, self.read_asked)
            if found is not None and (answers := signal.answers(found.waits)):
                message = waits.make_message(self.message_id, found.run, found.options, answers, signal)
                lane, ops = waits.accept(inbox, message, self.now, self.fresh)
                accepted = Accepted.of(message, lane.mark_stored(self.fresh), lane.last, inbox.version)
                signalled = Signalled(accepted, False)
                return (yield from commit_for(self.partition, [*ops, found.unchanged], signalled))
        unchanged = Check(LANE, (IN,), inbox.version or Expect.ABSENT)
        keep = self._make_early_put([*kept, signal], seen.early)
        # A thread that is deleted meanwhile is not created again by a signal; the inbox is checked already.
        others = [each for each in seen.shown_by if each.kind is not LANE]
        presence_checks = [Check(each.kind, each.key, Expect.PRESENT) for each in others]
        ops = [keep, unchanged, *presence_checks]
        return (yield from commit_for(self.partition, ops, Signalled(None, False)))

    def _make_early_put(self, signals: list[EarlySignal], found: tuple[Record, ...]) -> Op:
        if len(signals) > EARLY_MOST:
            kept = f"{EARLY_MOST} signals that nothing waited for, the maximum"
        else:
            try:
                return make_early_put(signals, found, self.now, self.fresh)
            except TooLarge:
                if len(signals) == 1:
                    raise
                kept = "as many bytes of signals that nothing waited for as it may"
        raise QueueFull(
            f"thread {self.partition.thread!r} keeps {kept}; nothing of this "
            f"signal {self.name!r} was stored. Send it again once the thread waits for it"
        )


class _Seen(NamedTuple):
    """Records that decide on a signal; ``shown_by`` has one that proves that the thread exists."""

    inbox: Lane
    early: tuple[Record, ...]
    shown_by: tuple[Record, ...]
    before: Accepted | None
