"""Queue records of a thread: their contents, the time at which they are due, and their lease; pure rules.

A thread has two queues: its inbox, whose messages become runs, and its outbox, whose replies become
deliveries. Messages and replies are numbered from 1 without a gap; those up to ``bound`` were taken, the rest
is pending. Four more records of a thread have only a time: when the next postponed message enters the inbox,
when a deadline or a reminder of a question is due, when the events of its runs are removed, and until when
the thread is followed. A fifth one, of a tenant, is due when the first of its crons is, and a sixth one, of a
limit's key, when the limit's state may have no effect any more. Times are microseconds of the database's
clock. A lease only keeps other workers from trying for a while. Safety comes from the epoch, which the
database checks in the same commit as every write.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from perdure.model.ops import Expect, Expectation, Put
from perdure.model.record_versions import successor
from perdure.model.records import LANE, Record

IN = "inbox"
OUT = "outbox"
EVENTS = "told"
LATER = "later"
WAITS = "waits"
FOLLOWED = "followed"
CRONS = "crons"
LIMITS = "limits"
"""Names of the queue records, as they are stored."""

Stop = Literal["interrupt", "rollback"]
"""Treatment of what a stopped run stored: kept (``interrupt``) or removed (``rollback``)."""

INTERRUPT_RUN: Stop = "interrupt"
ROLLBACK: Stop = "rollback"

_FIELDS = tuple(column.name for column in LANE.fields)


class Debounce(NamedTuple):
    """Time that messages wait for further ones: ``quiet`` after the latest, at most ``most`` after the first,
    in microseconds."""

    quiet: int = 0
    most: int = 0


class Lane(NamedTuple):
    """A queue record of a thread. Its ``version`` is 0 while it is not stored.

    Attributes:
        last: number assigned last.
        bound: number taken last.
        since: time until which the pending messages may wait for further ones: the earliest of their limits.
        ready_at: time at which the pending messages may be taken, not after ``since``.
        run_id: the open run.
        owner: holder of the open run's lease, until ``lease_until`` under ``epoch``.
        retry_at: time of the next attempt of an open run without a holder.
        waiting: the run whose question the thread's latest checkpoint asks (``model.runs.lifecycle``).
        stop: requested end of the open run, an ``interrupt`` or a ``rollback``.
    """

    name: str
    version: int = 0
    last: int = 0
    bound: int = 0
    since: int | None = None
    ready_at: int | None = None
    run_id: str | None = None
    owner: str | None = None
    epoch: int = 0
    lease_until: int | None = None
    retry_at: int | None = None
    waiting: str | None = None
    stop: str | None = None

    @property
    def pending(self) -> int:
        """Number of messages or replies that are not taken yet."""
        return self.last - self.bound

    @property
    def due_at(self) -> int | None:
        """Time at which a worker has to look: the lease's end, the next attempt, or the time at which pending
        ones may be taken; ``None`` if there is nothing to do."""
        if self.owner is not None:
            return self.lease_until
        if self.run_id is not None:
            return self.retry_at
        if self.pending:
            return self.ready_at
        return None

    def is_due(self, now: int) -> bool:
        return self.due_at is not None and self.due_at <= now

    def accept(self, now: int, debounce: Debounce, count: int = 1) -> Lane:
        """Return the record with ``count`` more messages.

        The pending messages wait until ``debounce.quiet`` has passed without another, but not longer than any
        of them allows. A message without a wait makes all earlier ones due at once, whatever follows it.
        """
        latest = now
        if debounce.quiet > 0:
            latest += debounce.most
        if self.pending and self.since is not None:
            latest = min(latest, self.since)
        ready = min(now + max(debounce.quiet, 0), latest)
        return self._replace(last=self.last + count, since=latest, ready_at=ready)

    def at_time(self, time: int) -> Lane:
        """Return a record that has only a time, due at this one."""
        return self._replace(last=1, bound=0, since=time, ready_at=time)

    def begin(self, epoch: int) -> Lane:
        """Return the outbox. A new one gets an epoch that a sender of an earlier thread of its name does not
        have."""
        if self.version:
            return self
        return self._replace(epoch=epoch)

    def append(self, now: int, count: int) -> Lane:
        """Return the outbox with ``count`` more replies. If the first pending one waits for its next
        attempt, the new ones wait behind it."""
        ready = now
        if self.pending and self.ready_at is not None:
            ready = self.ready_at
        return self.accept(now, Debounce(), count)._replace(ready_at=ready)

    def take(self, run_id: str, bound: int, next_since: int | None) -> Lane:
        """Return the record with a new run over the pending messages up to ``bound``.

        ``next_since`` is the time at which the first message after ``bound`` was accepted. The messages after
        ``bound`` have waited and may be taken next, whatever is accepted after them.
        """
        return self._replace(run_id=run_id, bound=bound, since=next_since, ready_at=next_since)

    def join(self, bound: int) -> Lane:
        """Return the record with the pending messages up to ``bound`` taken by the open run."""
        return self._replace(bound=bound)

    def hold(self, owner: str, epoch: int, now: int, ttl: int) -> Lane:
        """Return the record with a lease holder for the open run."""
        return self._replace(owner=owner, epoch=epoch, lease_until=now + ttl, retry_at=None)

    def renew(self, now: int, ttl: int) -> Lane:
        return self._replace(lease_until=now + ttl)

    def postpone(self, until: int) -> Lane:
        """Return the record without a holder and with the run still open, to be tried again."""
        return self._replace(owner=None, lease_until=None, retry_at=until)

    def complete(self, bound: int) -> Lane:
        """Return the outbox with the replies up to ``bound`` settled."""
        return self._replace(bound=bound, since=self.since if bound < self.last else None)

    def release(self, ready_at: int) -> Lane:
        """Return the outbox without a holder; the pending replies may be taken at ``ready_at``."""
        return self._replace(owner=None, lease_until=None, ready_at=ready_at)

    def close(self, waiting: str | None = None) -> Lane:
        """Return the record without an open run. ``waiting`` is the run that asked the thread's question, if
        any."""
        return self._replace(
            run_id=None, owner=None, lease_until=None, retry_at=None, stop=None, waiting=waiting
        )

    def request_stop(self, how: str, now: int) -> Lane:
        """Return the record with a request to end the open run.

        A holder sees it at its next renewal; a run without a holder is due at once.
        """
        stopped = self._replace(stop=how)
        if self.owner is not None:
            return stopped
        return stopped._replace(retry_at=now)

    def stop_of(self, run_id: str) -> str | None:
        """Return the requested end of a run; ``None`` if it is not open or is to continue."""
        if self.run_id == run_id:
            return self.stop
        return None

    def put(self, fresh: int) -> Put:
        """Return the operation that stores the record over the version that was read.

        A new record gets the version ``fresh``, which no earlier record of a thread of this name may have
        had.
        """
        values = self._asdict()
        values["due_at"] = self.due_at
        expect: Expectation = self.version or Expect.ABSENT
        fields = {n: values[n] for n in _FIELDS}
        return Put(LANE, (self.name,), fields, expect=expect, version=self._make_lane_version(fresh))

    def mark_stored(self, fresh: int) -> Lane:
        """Return the record as it is once ``put`` is committed."""
        return self._replace(version=self._make_lane_version(fresh))

    def _make_lane_version(self, fresh: int) -> int:
        if self.version:
            return successor(*self[1:])
        return fresh

    @classmethod
    def read(cls, name: str, records: tuple[Record, ...]) -> Lane:
        """Decode the answer to a ``Get``."""
        if not records:
            return cls(name)
        fields: dict[str, Any] = {n: records[0].fields[n] for n in _FIELDS if n != "due_at"}
        return cls(name, records[0].version, **fields)
