"""What is due as a worker last saw it, in the order in which it is tried.

Lanes that came to nothing are put off for longer each time, so that those which this worker cannot serve, or
which fail, never stand in front of others: of what is due, lanes that were not tried yet come first. The
database is read page by page, from the lane due longest and from where the last look ended, so that however
much is put off, every lane is seen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Literal, NamedTuple

from perdure.database import Database
from perdure.model.ops import Find
from perdure.model.program import ask
from perdure.runtime.worker.fairness import Due, in_turn

_PAGE = 1000
_PAGES = 8
"""How many pages a look reads at most."""
_TIMES_MAX = 6
_RETRIED_EVERY = 8
"""Every so many times a lane that was put off comes first, so that those never tried cannot keep it away."""


class Foreign(NamedTuple):
    """Why a lane is for another worker: the graph of its next run, or the channel of its next reply, is not
    served by this one."""

    what: Literal["graph", "channel"]
    name: str


class Failing(NamedTuple):
    """Why a lane came to nothing: an error, by the name of its type, was raised each time."""

    lane: str
    error: str


Reason = Foreign | Failing


class _PutOff(NamedTuple):
    """How often a lane came to nothing and until when it is passed over. ``due_at`` is what it was due at
    then, if that says whether it has moved on since; ``reason`` is why it came to nothing, if that is
    counted."""

    times: int
    until: float
    due_at: int | None
    reason: Reason | None


class Backlog:
    """The due lanes of a tenant, or of all tenants without one. ``pause`` is for how many seconds a lane is
    put off the first time."""

    def __init__(self, database: Database, tenant: str | None, pause: float) -> None:
        self._database = database
        self._tenant = tenant
        self._pause = pause
        self._new: dict[Due, int | None] = {}
        self._again: dict[Due, int | None] = {}
        self._tried: dict[Due, int | None] = {}
        self._put_off: dict[Due, _PutOff] = {}
        self._cursor: int | None = None
        self._turns = 0
        self.looked_at = 0.0
        self.counts: Counter[Reason] = Counter()

    def __len__(self) -> int:
        return len(self._new) + len(self._again)

    def add(self, due: Due) -> None:
        """A lane that is due by what this process knows itself."""
        self._new.setdefault(due, None)

    async def look(self, now: int, time: float, serving: Mapping[Due, object], enough: int) -> int:
        """Read what is due at ``now`` until ``enough`` of it can be tried at ``time``, a bounded number of
        pages; how many lanes can be tried."""
        self.looked_at = time
        self._new = {due: due_at for due, due_at in self._new.items() if due_at is None}
        self._again.clear()
        seen: set[Due] = set()
        last = await self._read(now, None, serving, time, seen)
        if last is None:
            self._cursor = None
            self._forget(due for due in self._put_off if due not in seen)
            return len(self)
        for _ in range(_PAGES - 1):
            # From where the last look ended, and behind the first page in any case.
            self._cursor = await self._read(now, max(last, self._cursor or last), serving, time, seen)
            if self._cursor is None:
                oldest = time - 2.0**_TIMES_MAX * self._pause
                self._forget(due for due, put_off in self._put_off.items() if put_off.until < oldest)
                break
            if len(self) >= enough:
                break
        return len(self)

    async def _read(
        self, now: int, since: int | None, serving: Mapping[Due, object], time: float, seen: set[Due]
    ) -> int | None:
        """Take down the lanes of a page that can be tried; the time of its last one, from which the next page
        is read, or ``None`` when there is no more."""
        limit = _PAGE
        while True:
            find = Find("due", self._tenant, until=now, since=since, limit=limit)
            page = [f for f in await self._database.arun(ask(find)) if f.record is not None]
            times = [found.record.fields["due_at"] for found in page if found.record is not None]
            if len(page) < limit or times[0] < times[-1]:
                break
            # All are due at one microsecond: a page goes on behind a time, so it has to hold all of them.
            limit *= 4
        for found, due_at in zip(page, times, strict=True):
            due = (found.partition, found.record.key[0]) if found.record is not None else None
            if due is not None and due not in seen:
                seen.add(due)
                if due not in serving:
                    self._sort(due, due_at, time)
        return times[-1] if len(page) == limit else None

    def _sort(self, due: Due, due_at: int, time: float) -> None:
        before = self._put_off.get(due)
        if before is not None and before.due_at not in (None, due_at):
            # It has moved on since it came to nothing.
            self._drop(due)
            before = None
        if before is None:
            self._new.setdefault(due, due_at)
        elif before.until <= time:
            self._again[due] = due_at

    def take(self, running: Mapping[str, int], slots: int, per_tenant: int | None) -> Sequence[Due]:
        """At most ``slots`` lanes to be tried now, tenants in turn."""
        self._turns += 1
        first = 1 if self._turns % _RETRIED_EVERY == 0 else 0
        order: Iterator[Due] = chain(islice(self._again, first), self._new, islice(self._again, first, None))
        chosen = in_turn(order, running, slots, per_tenant)
        for due in chosen:
            waiting = self._new if due in self._new else self._again
            self._tried[due] = waiting.pop(due)
        return chosen

    def served(self, due: Due) -> None:
        """Something was done on a lane."""
        self._tried.pop(due, None)
        self._drop(due)

    def in_vain(self, due: Due, time: float, reason: Reason | None = None, *, failed: bool = False) -> None:
        """There was nothing to do on a lane for this worker, or it ``failed``; lanes are counted by the
        ``reason``."""
        due_at = self._tried.pop(due, None)
        before = self._put_off.get(due)
        self._drop(due)
        times = 0 if before is None else before.times + 1
        until = time + self._pause * 2.0 ** min(times, _TIMES_MAX)
        # The due time of a lane that fails may move with each failure.
        self._put_off[due] = _PutOff(times, until, None if failed else due_at, reason)
        if reason is not None:
            self.counts[reason] += 1

    def _drop(self, due: Due) -> None:
        before = self._put_off.pop(due, None)
        if before is not None and before.reason is not None:
            self.counts[before.reason] -= 1

    def _forget(self, lanes: Iterable[Due]) -> None:
        """Forget that lanes were put off."""
        for due in list(lanes):
            self._drop(due)
