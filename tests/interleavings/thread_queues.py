"""A thread's queues as one process uses them, and what a reader sees of them.

All times are arguments, so that an operation does the same whenever it comes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from perdure.engine.checks.fsck_queue import check_queue
from perdure.engine.queue import (
    accept_and_claim,
    events,
    inbox,
    outbox,
    questions,
    runs,
    scheduled,
    subscribers,
)
from perdure.engine.queue.accept_and_claim import Begun
from perdure.engine.queue.claims import Claim, RememberedInbox
from perdure.engine.queue.inbox import Accept, Accepted
from perdure.engine.queue.outbox import DeliveryOutcome, Sending, Take
from perdure.engine.queue.runs import Ending, Followed, HeldRun
from perdure.engine.retention import queue_retention
from perdure.engine.threads.steering import TakenBack, Taking
from perdure.engine.transact import Budget, retry_attempt
from perdure.model.ops import Check, Commit, Committed, Fetch, Get, Put
from perdure.model.program import Program, ask
from perdure.model.records import DOCUMENT, EPOCH, LANE, OF_THREAD
from perdure.model.runs.messages import (
    DONE,
    WAITING,
    Message,
    dedupe_digest,
)
from perdure.model.runs.queue import EVENTS, FOLLOWED, IN, LATER, OUT, Debounce, Lane
from perdure.storage.port import Driver
from tests.interleavings.explorer import World

QUEUES = (IN, OUT, LATER, EVENTS, FOLLOWED)
NOW = 2000
"""Time of the operations; those of a set-up came before."""
BEFORE = 1000
TTL = 10_000
BUDGET = Budget(1000, 1 << 20)
MOST = 100
FRESH = 1 << 24
"""Distance of the versions of new records; each writer has its own start."""
STATE = "state"
"""Collection of the documents that stand for the state of a run."""


class Thread(World):
    """A thread with its queues, and what one process holds of them and remembers."""

    def __init__(self, driver: Driver) -> None:
        super().__init__(driver)
        self.now = BEFORE
        self.held: HeldRun | None = None
        self.sending: Sending | None = None
        self.remembered: RememberedInbox | None = None

    # Senders

    def accept(self, name: str, mode: Any = "coalesce", **options: Any) -> Any:
        """Accept a message; return what its sender is told."""
        accepted: Accepted = self.run(self._accept(name, mode, **options).store(self._known(options)))
        return accepted.seq, accepted.id, accepted.is_duplicate

    def _known(self, options: Mapping[str, Any]) -> Lane | None:
        remembered = self.remembered
        return remembered.lane if options.get("knows") and remembered is not None else None

    def _accept(self, name: str, mode: Any = "coalesce", *, key: str = "", **options: Any) -> Accept:
        options.pop("knows", None)
        quiet = options.pop("quiet", 0)
        payload = {"message": name}
        channel = options.pop("channel", "post")
        message = Message(name, payload, "g", channel, mode, dedupe=dedupe_digest(key) if key else b"")
        terms = {"strategy": "enqueue", "max_pending": MOST, "read_asked": self._read_asked, **options}
        return Accept(self.here, message, self.now, Debounce(quiet, quiet), fresh=FRESH, **terms)

    def _read_asked(self, checkpoint_id: str | None = None, /) -> Program[questions.Asked]:
        """Return what the latest checkpoint would ask, which these threads do not have."""
        (found,) = yield from ask(Fetch(self.here, (Get(LANE, (IN,)),)))
        return questions.Asked(interrupts=() if Lane.read(IN, found).waiting is None else ("i",))

    def accept_and_claim(self, name: str, *, knows: bool) -> Any:
        """Accept a message, and claim its run in the same commit if the thread is idle, as a worker does."""
        accept = self._accept(name)
        known = self.remembered if knows else None
        for _ in range(3):
            known = known or accept_and_claim.read(self.run(ask(Fetch(self.here, accept_and_claim.GETS))))
            if not accept_and_claim.may_begin(accept, known, ["g"]):
                break
            planned = accept_and_claim.plan(accept, self._claim(f"worker of {name}"), known)
            begun = self.run(accept_and_claim.begin(accept, planned, known))
            if isinstance(begun, Begun):
                return begun.accepted.seq, begun.accepted.id, False
            known = None
        accepted = self.run(accept.store(None if known is None else known.lane))
        return accepted.seq, accepted.id, accepted.is_duplicate

    def postpone(self, name: str, due: int, key: str = "") -> Any:
        message = Message(name, {"message": name}, "g", dedupe=dedupe_digest(key) if key else b"")
        accepted = self.run(scheduled.postpone(self.here, message, due, MOST, 2 * FRESH, None))
        return accepted.seq, accepted.id, accepted.is_duplicate

    def cancel(self, name: str, how: Any) -> bool:
        """Cancel a message wherever it is, as the runtime does."""
        for program in (
            inbox.withdraw(self.here, name, how, self.now),
            scheduled.withdraw(self.here, name, how, self.now, 3 * FRESH),
            runs.stop(self.here, name, how, self.now),
            inbox.withdraw(self.here, name, how, self.now),
            scheduled.withdraw(self.here, name, how, self.now, 3 * FRESH),
        ):
            if self.run(program):
                return True
        return False

    # Workers

    def _claim(self, owner: str) -> Claim:
        return Claim(self.here, owner, ["g"], self.now, TTL, MOST, 4 * FRESH)

    def claim(self, owner: str, *, knows: bool = False) -> Any:
        """Claim the next run; return its messages."""
        held = self.run(self._claim(owner).take(self.remembered if knows else None))
        if not isinstance(held, HeldRun):
            return held
        return held.run.id, [message.id for message in held.messages], held.lane.stop, held.is_followed

    def hold(self, owner: str, ttl: int = TTL) -> HeldRun:
        held = self.run(Claim(self.here, owner, ["g"], self.now, ttl, MOST, 4 * FRESH).take(None))
        assert isinstance(held, HeldRun)
        return held

    def finish(self, state: str = DONE, replies: Sequence[Any] = (), **note: Any) -> Any:
        held = self._holding()
        ending = Ending(state, note, replies)
        finish = partial(runs.finish, held, ending, self.now, 5 * FRESH, BUDGET.ops)
        try:
            _, sent = self.run(finish())
        except Followed:
            _, sent = self.run(finish([event_put(held, self.now)]))
        return [(reply.seq, reply.payload) for reply in sent]

    def ask_question(self) -> Any:
        note = {"interrupts": [{"id": "i", "value": "really?"}]}
        return self.finish(WAITING, ["really?"], **note)

    def put_off(self, *, counts: bool) -> Any:
        held = self.run(runs.postpone(self._holding(), NOW + 50, {"error": "x"}, self.now, counts=counts))
        return held.run.attempts, held.lane.retry_at

    def renew(self) -> Any:
        held = self.run(runs.renew(self._holding(), self.now, TTL))
        return held.lane.stop, held.lane.lease_until

    def take_up(self) -> Any:
        """Take waiting messages into the open run with what it stores, as a step does."""
        held = self._holding()
        taking = Taking(self.here, held.run, lambda message: True, MOST)

        def load() -> Program[tuple[Message, ...]]:
            return (yield from taking.load_waiting())

        def attempt(waiting: tuple[Message, ...]) -> Program[list[str] | None]:
            if not waiting:
                return []
            taking.offer("task", waiting)
            taking.note_written("task")
            names = [message.id for message in waiting]
            write = Put(DOCUMENT, (STATE, held.run.id), {"updated_at": NOW}, " ".join(names).encode())
            ops = (Check(EPOCH, (), held.epoch), *(yield from taking.plan_ops()), write)
            outcome = yield from ask(Commit(self.here, ops))
            return names if isinstance(outcome, Committed) else None

        for _ in range(3):
            try:
                return self.run(retry_attempt(self.here, None, load, attempt))
            except TakenBack:
                # The runtime repeats the step.
                continue
        return "taken back all the time"

    def tell(self) -> Any:
        """Store an event of the open run, with the schedule of its removal."""
        held = self._holding()
        first = self.run(events.find_first_free(self.here, self.now))
        event = events.Event(first, held.run.id, "values", "{}")
        self.run(events.append(self.here, held.run.id, [event], held.epoch, BUDGET))
        return first

    def _holding(self) -> HeldRun:
        assert self.held is not None
        return self.held

    # Senders of replies

    def take(self, owner: str, ttl: int = TTL) -> Sending | None:
        sending = self.run(Take(self.here, owner, ["post"], self.now, ttl, 20).take())
        return sending if isinstance(sending, Sending) else None

    def send_next(self, owner: str) -> Any:
        return told(self.take(owner))

    def settle(self, state: str, **outcome: Any) -> Any:
        sending = self._sending()
        settled = DeliveryOutcome(state, **outcome)
        return told(self.run(outbox.record_outcome(sending, settled, ["post"], self.now, TTL)))

    def send_again(self) -> Any:
        return told(self.run(outbox.send_again(self._sending(), self.now, TTL)))

    def retry(self, seq: int) -> Any:
        reply = self.run(outbox.retry(self.here, seq, self.now))
        return reply.seq, reply.id

    def _sending(self) -> Sending:
        assert self.sending is not None
        return self.sending

    # Others

    def forget(self) -> int:
        return self.run(queue_retention.forget(self.here, NOW, BUDGET.ops))

    def remove_run(self, name: str) -> bool:
        standing = self.run(inbox.find(self.here, name))
        if standing is None or standing.run is None or not standing.is_over:
            return False
        return self.run(queue_retention.remove(self.here, standing.run, BUDGET.ops))

    def follow(self) -> None:
        self.run(subscribers.note(self.here, NOW + TTL, 6 * FRESH))

    def bring(self) -> Any:
        return self.run(scheduled.bring(self.here, self.now, BUDGET, 7 * FRESH))


def event_put(held: HeldRun, number: int) -> Put:
    """Return the operation that stores the last event of a run."""
    (put,) = events.puts(held.run.id, [events.Event(number, held.run.id, events.END, "{}")])
    return put


def told(sending: Sending | None) -> Any:
    if sending is None:
        return None
    return [(reply.seq, reply.state, reply.attempts) for reply in sending.replies], sending.in_doubt


def read(world: Thread) -> Any:
    """Return what readers of the queues see: statuses of messages, runs, replies, queues, and damage."""
    here = world.here
    lanes = world.run(ask(Fetch(here, tuple(Get(LANE, (name,)) for name in QUEUES))))
    standing = world.run(inbox.read_latest(here, 100))
    postponed = world.run(scheduled.list_postponed(here, 100))
    told = world.run(events.read(here, 0))
    state, _ = world.run(ask(Fetch(here, (Get(DOCUMENT, (STATE, "a")), Get(DOCUMENT, OF_THREAD)))))
    return {
        "messages": [
            (s.message.seq, s.message.id, s.message.mode, s.message.accepted_at, _run(s.run), s.stop)
            for s in standing
        ],
        "by id": {
            name: (found.message.seq, found.message.mode, _run(found.run), found.stop)
            for name in ("a", "b", "c", "key", "late", "soon")
            if (found := world.run(inbox.find(here, name))) is not None
        },
        "runs": [
            (*_run(run), run.first, run.last, dict(run.note))
            for run in world.run(runs.read_latest(here, 100))
        ],
        "replies": [
            (r.seq, r.id, r.channel, r.payload, r.state, r.attempts, r.error)
            for r in world.run(outbox.read_replies(here, 100))
        ],
        "postponed": [(message.id, message.accepted_at) for message in postponed],
        "queues": [_lane(Lane.read(name, found)) for name, found in zip(QUEUES, lanes, strict=True)],
        "events": [(event.seq, event.run_id) for event in told.events],
        "state": [record.body for record in state],
        "damage": [finding.detail for finding in world.run(check_queue(here))],
    }


def _run(run: Any) -> Any:
    return () if run is None else (run.id, run.state, run.attempts, run.updated_at)


def _lane(lane: Lane) -> Any:
    """Return what a queue record says that matters at ``NOW``: since when something is due does not."""
    if not lane.version:
        return lane.name
    due_at = None if lane.due_at is None else max(lane.due_at, NOW)
    ready_at = max(lane.ready_at or 0, NOW) if lane.pending else None
    numbers = lane.name, lane.last, lane.bound, ready_at, due_at
    return numbers, lane.run_id, lane.owner, lane.lease_until, lane.retry_at, lane.waiting, lane.stop
