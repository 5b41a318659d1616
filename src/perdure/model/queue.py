"""When a thread's queue is to be looked at, by whom, and what it holds: the pure rules of the lane.

A thread has two lanes: its inbox, whose messages become runs, and its outbox, whose replies become
deliveries. Three more have no numbers: when the next message that waits for its time enters the inbox, when
what its runs told is to be forgotten, and until when the thread is followed. Numbers are given from 1 without
a gap; those up to ``bound`` were taken, the rest is pending. Times are microseconds of the database's clock.
A lease says for how long nobody else need look, and nothing about safety: that is the epoch's, which is
checked by the database in the same commit as every write.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from perdure.model.ops import Expect, Expectation, Put
from perdure.model.records import LANE, Record
from perdure.model.versions import successor

IN = "inbox"
OUT = "outbox"
EVENTS = "told"
LATER = "later"
FOLLOWED = "followed"

Stop = Literal["interrupt", "rollback"]
"""How a run is ended: what it stored stays, or is taken back."""

INTERRUPT: Stop = "interrupt"
ROLLBACK: Stop = "rollback"

_FIELDS = tuple(column.name for column in LANE.fields)


class Debounce(NamedTuple):
    """How long messages wait for more of them: until ``quiet`` has passed since the last one, and no longer
    than ``most`` since the first. Microseconds."""

    quiet: int = 0
    most: int = 0


class Lane(NamedTuple):
    """A lane as it stands. ``version`` 0 is one that is not stored yet.

    ``last`` is the number given last, ``bound`` the number taken last. ``since`` is the time up to which the
    pending ones may wait for more of them: the earliest by which one of them is to be taken. ``ready_at`` is
    when they may be taken, at that time or before. ``run_id`` is the open run; ``owner`` holds it
    until ``lease_until`` under ``epoch``, or nobody does and it is tried again at ``retry_at``. ``waiting``
    is the run that waits for an answer, ``stop`` how the open run is to be ended.
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
        """How many are not taken yet."""
        return self.last - self.bound

    @property
    def due_at(self) -> int | None:
        """When somebody has to look: at the lease's end, at the next attempt, or when the pending may be
        taken."""
        if self.owner is not None:
            return self.lease_until
        if self.run_id is not None:
            return self.retry_at
        return self.ready_at if self.pending else None

    def is_due(self, now: int) -> bool:
        return self.due_at is not None and self.due_at <= now

    def accepted(self, now: int, debounce: Debounce, count: int = 1) -> Lane:
        """With ``count`` more. They wait until it was quiet for as long as the last one asks, and no longer
        than any one of them may. One that does not wait is due at once, with those before it, whatever comes
        after it."""
        latest = now + (debounce.most if debounce.quiet > 0 else 0)
        if self.pending and self.since is not None:
            latest = min(latest, self.since)
        ready = min(now + max(debounce.quiet, 0), latest)
        return self._replace(last=self.last + count, since=latest, ready_at=ready)

    def appended(self, now: int, count: int) -> Lane:
        """With ``count`` more replies, in a lane without runs. One that waits for its next attempt goes on
        waiting, and they behind it."""
        ready = self.ready_at if self.pending and self.ready_at is not None else now
        return self.accepted(now, Debounce(), count)._replace(ready_at=ready)

    def taken(self, run_id: str, bound: int, next_since: int | None) -> Lane:
        """With a new run over what was pending up to ``bound``; ``next_since`` is when the first of what is
        left came. What is left has waited and may be taken next, whatever comes after it."""
        return self._replace(
            run_id=run_id,
            bound=bound,
            since=next_since,
            ready_at=next_since,
            waiting=None,
        )

    def held(self, owner: str, epoch: int, now: int, ttl: int) -> Lane:
        """With a holder for the open run."""
        return self._replace(owner=owner, epoch=epoch, lease_until=now + ttl, retry_at=None)

    def renewed(self, now: int, ttl: int) -> Lane:
        return self._replace(lease_until=now + ttl)

    def put_off(self, until: int) -> Lane:
        """Without a holder, the run still open, to be tried again."""
        return self._replace(owner=None, lease_until=None, retry_at=until)

    def passed(self, bound: int) -> Lane:
        """With those up to ``bound`` settled, in a lane without runs."""
        return self._replace(bound=bound, since=self.since if bound < self.last else None)

    def released(self, ready_at: int) -> Lane:
        """Without a holder, in a lane without runs; what is pending may be taken at ``ready_at``."""
        return self._replace(owner=None, lease_until=None, ready_at=ready_at)

    def closed(self, waiting: str | None = None) -> Lane:
        """Without the open run."""
        return self._replace(
            run_id=None, owner=None, lease_until=None, retry_at=None, stop=None, waiting=waiting
        )

    def stopping(self, how: str, now: int) -> Lane:
        """With the open run to be ended. Its holder learns it when it renews its lease; a run that nobody
        holds is due for it at once."""
        stopped = self._replace(stop=how)
        return stopped if self.owner is not None else stopped._replace(retry_at=now)

    def stop_of(self, run_id: str) -> str | None:
        """How a run is to be ended, or nothing where it is not open or goes on."""
        return self.stop if self.run_id == run_id else None

    def put(self, fresh: int) -> Put:
        """The operation that stores it over the version that was read. A lane that is new gets a version that
        no earlier one of a thread of this name had."""
        values = self._asdict()
        values["due_at"] = self.due_at
        expect: Expectation = self.version or Expect.ABSENT
        fields = {n: values[n] for n in _FIELDS}
        return Put(LANE, (self.name,), fields, expect=expect, version=self._next_version(fresh))

    def stored(self, fresh: int) -> Lane:
        """As it stands once ``put`` is committed."""
        return self._replace(version=self._next_version(fresh))

    def _next_version(self, fresh: int) -> int:
        return successor(*self[1:]) if self.version else fresh

    @classmethod
    def read(cls, name: str, found: tuple[Record, ...]) -> Lane:
        """From the answer to a ``Get``."""
        if not found:
            return cls(name)
        fields: dict[str, Any] = {n: found[0].fields[n] for n in _FIELDS if n != "due_at"}
        return cls(name, found[0].version, **fields)
