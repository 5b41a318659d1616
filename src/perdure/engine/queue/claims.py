"""Claims of a thread's next run, one lease holder at a time.

A claim raises the thread's epoch, and every write of the run checks it. The database therefore refuses every
write of a holder whose run was taken over, however long it was paused.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

from perdure.engine.decoding import read_each
from perdure.engine.queue import subscribers
from perdure.engine.queue.queued_records import read_queued
from perdure.engine.queue.runs import HeldRun
from perdure.engine.requests import commit_for, version_of
from perdure.engine.transact import retry_attempt
from perdure.errors import Corrupt
from perdure.model.ops import Expect, Fetch, Get, Op, Put, Range
from perdure.model.program import Program, ask
from perdure.model.record_versions import successor
from perdure.model.records import EPOCH, HEAD, INBOX, LANE, RUN, Partition
from perdure.model.runs.messages import OPEN, VERSION, Message, Run, select_batch
from perdure.model.runs.queue import FOLLOWED, IN, Lane


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
        load = partial(self._load, known and known.lane)
        (held,) = yield from retry_attempt(self.partition, self._guess(known), load, self._attempt)
        return held

    def plan(self, known: RememberedInbox | None) -> Program[PlannedClaim | Unserved | None]:
        """Plan the claim that ``take`` would make, for ``commit``, and change nothing."""
        seen = self._guess(known)
        while seen is None:
            seen = yield from self._load(None)
        return self._plan(seen)

    def commit(self, planned: PlannedClaim) -> Program[HeldRun | None]:
        """Claim a run as it was planned; ``None`` if the thread has changed since."""
        return (yield from commit_for(self.partition, planned.ops, planned.held))

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
        guess: tuple[Range, ...] = ()
        if known is not None and known.run_id is None:
            guess = (Range(INBOX, after=(known.bound,), limit=self.most),)
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
        run = next(read_each(self.partition, Run.read, runs), None)
        head = next((each.fields["checkpoint_id"] for each in heads), None)
        seen = _Seen(lane, version_of(epochs), head, None, (), Lane.read(FOLLOWED, followed))
        if not lane.is_due(self.now):
            return seen
        queued = Range(INBOX, after=(lane.bound,), limit=self.most)
        if lane.run_id is not None:
            if run is None or run.id != lane.run_id:
                raise Corrupt(f"thread {self.partition.thread!r}: its open run {lane.run_id!r} is not stored")
            # An open run is taken over with all of its messages, whatever the caller's limit.
            seen = seen._replace(run=run)
            most = max(self.most, run.last - run.first + 1)
            queued = Range(INBOX, after=(run.first - 1,), limit=most)
        messages = rows[0] if guess == (queued,) else ()
        if not messages:
            what = f"message {queued.after[0] + 1} was accepted"
            queue = yield from read_queued(self.partition, lane, queued, what)
            if queue is None:
                return None
            messages = queue
        return seen._replace(messages=tuple(read_each(self.partition, Message.read, messages)))

    def _attempt(self, seen: _Seen) -> Program[tuple[HeldRun | Unserved | None] | None]:
        planned = self._plan(seen)
        if not isinstance(planned, PlannedClaim):
            return (planned,)
        return (yield from commit_for(self.partition, planned.ops, (planned.held,)))

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
        is_new = seen.run is None
        if seen.run is not None:
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
            place = (first.id, first.seq, last.seq)
            run = Run(*place, OPEN, first.graph, first.channel, epoch, 1, seen.head, now, now)
            since = None
            if lane.last > last.seq:
                since = next((each.accepted_at for each in seen.messages[len(messages) :]), now)
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
