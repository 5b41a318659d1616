"""Due queues as a worker last read them, in the order in which it tries them.

A queue that this worker cannot serve, or that fails, is put off with exponential backoff, so that it never
blocks others: due queues that were not tried yet come first. The database is read page by page: each read
takes the queues that have been due longest, and then continues where the last read ended, so that every queue
is reached however many are put off.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Literal, NamedTuple

from perdure.database.handle import DatabaseHandle
from perdure.model.ops import FindDue
from perdure.model.program import ask
from perdure.runtime.worker.fairness import Due, choose_in_turn

_PAGE = 1000
_PAGES = 8
"""Maximum number of pages in one read."""
_AHEAD_US = 1_000_000
"""Microseconds from now within which a read finds queues that are not due yet."""
_TIMES_MAX = 6
PAUSES_MAX = 2**_TIMES_MAX
"""Longest time for which a queue is put off, in pauses."""
_RETRIED_EVERY = 8
"""Every so many turns a queue that was put off comes first, so that new ones cannot starve it."""


class Foreign(NamedTuple):
    """Reason why a queue is for another worker: this one does not serve the graph of its next run, the
    channel of its next reply, or a service such as crons."""

    what: Literal["graph", "channel", "service"]
    name: str


class Failing(NamedTuple):
    """Reason why a queue was put off: each attempt raised an error, given by the name of its type."""

    lane: str
    error: str


class Limited(NamedTuple):
    """Reason why a queue waits: a limit on runs leaves no room for its next one now."""

    limit: str


Reason = Foreign | Failing | Limited


class _PutOff(NamedTuple):
    """Backoff of a queue: how often it was put off, and until when. ``due_at`` is when it was due at that
    time: a queue with another due time has made progress. It is None if such a change means nothing.
    ``reason`` is set if the queue is counted."""

    times: int
    until: float
    due_at: int | None
    reason: Reason | None


class Backlog:
    """Due queues of a tenant, or of all tenants without one. ``pause`` is the seconds for which a queue is
    put off the first time."""

    def __init__(self, database: DatabaseHandle, tenant: str | None, pause: float) -> None:
        self._database = database
        self._tenant = tenant
        self._pause = pause
        self._new: dict[Due, int | None] = {}
        """Due times of queues that were not put off; ``None`` for those that this process made due."""
        self._retried: dict[Due, int | None] = {}
        """Due times of queues that were put off until a time that has passed."""
        self._tried: dict[Due, int | None] = {}
        """Due times of queues that were taken, and whose result is not known yet."""
        self._put_off: dict[Due, _PutOff] = {}
        self._cursor: int | None = None
        self._turns = 0
        self.looked_at = 0.0
        self.next_due_at: int | None = None
        """The earliest time among queues that the last read found not due yet, at most a second ahead: by
        this process's estimate of the time a queue may be due a moment later than by another's."""
        self.counts: Counter[Reason] = Counter()

    def __len__(self) -> int:
        return len(self._new) + len(self._retried)

    @property
    def waiting_count(self) -> int:
        """The number of queues that wait for a slot, except those that were tried in vain: most of these are
        for other workers."""
        return len(self._new)

    def __contains__(self, due: Due) -> bool:
        return due in self._new or due in self._retried

    def add(self, due: Due) -> None:
        """Add a queue that this process made due itself."""
        self._new.setdefault(due, None)

    async def read_due(self, now: int, time: float, serving: Mapping[Due, object], enough: int) -> int:
        """Read due queues, a bounded number of pages, and return how many can be tried.

        Args:
            now: The time of the database, in microseconds.
            time: The time of the event loop, in seconds.
            serving: The queues that are served now; they are left out.
            enough: Stop when this many queues can be tried.
        """
        self.looked_at = time
        self.next_due_at = None
        self._new = {due: due_at for due, due_at in self._new.items() if due_at is None}
        self._retried.clear()
        seen: set[Due] = set()
        last = await self._read(now, None, serving, time, seen)
        if last is None:
            self._cursor = None
            self._drop_all(due for due in self._put_off if due not in seen)
            return len(self)
        for _ in range(_PAGES - 1):
            # Continue where the last read ended, but after the first page.
            self._cursor = await self._read(now, max(last, self._cursor or last), serving, time, seen)
            if self._cursor is None:
                oldest = time - PAUSES_MAX * self._pause
                self._drop_all(due for due, put_off in self._put_off.items() if put_off.until < oldest)
                break
            if len(self) >= enough:
                break
        return len(self)

    async def _read(
        self, now: int, since: int | None, serving: Mapping[Due, object], time: float, seen: set[Due]
    ) -> int | None:
        """Read a page and add its queues. Return the due time of its last one, from which the next page
        is read, or ``None`` after the last page."""
        limit = _PAGE
        while True:
            find = FindDue(self._tenant, until=now + _AHEAD_US, since=since, limit=limit)
            page: list[tuple[int, Due]] = [
                (hit.record.fields["due_at"], (hit.partition, hit.record.key[0]))
                for hit in await self._database.arun(ask(find))
                if hit.record is not None
            ]
            if len(page) < limit or page[0][0] < page[-1][0]:
                break
            # The next page starts after a time, so a page has to hold all queues due at the same time.
            limit *= 4
        for due_at, due in page:
            if due_at > now:
                self.next_due_at = min(due_at, self.next_due_at or due_at)
            elif due not in seen:
                seen.add(due)
                if due not in serving:
                    self._add_found(due, due_at, time)
        if len(page) < limit:
            return None
        return page[-1][0]

    def _add_found(self, due: Due, due_at: int, time: float) -> None:
        put_off = self._put_off.get(due)
        if put_off is not None and put_off.due_at not in (None, due_at):
            # The queue has made progress since it was put off.
            self._drop(due)
            put_off = None
        if put_off is None:
            self._new.setdefault(due, due_at)
        elif put_off.until <= time:
            self._retried[due] = due_at

    def take(self, running: Mapping[str, int], slots: int, per_tenant: int | None) -> Sequence[Due]:
        """Return at most ``slots`` queues to try now, tenants in turn."""
        self._turns += 1
        first = int(self._turns % _RETRIED_EVERY == 0)
        order: Iterator[Due] = chain(
            islice(self._retried, first), self._new, islice(self._retried, first, None)
        )
        chosen = choose_in_turn(order, running, slots, per_tenant)
        for due in chosen:
            self.take_one(due)
        return chosen

    def take_one(self, due: Due) -> None:
        """Take a queue that is to be tried now."""
        waiting = self._new if due in self._new else self._retried
        self._tried[due] = waiting.pop(due)

    def note_served(self, due: Due) -> None:
        """Reset the backoff of a queue on which work was done."""
        self._tried.pop(due, None)
        self._drop(due)

    def postpone(self, due: Due, time: float, reason: Reason | None = None, *, failed: bool = False) -> None:
        """Put off a queue on which this worker found nothing to do, or which ``failed``.

        Args:
            due: The queue.
            time: The time of the event loop, in seconds.
            reason: The reason under which the queue is counted, if any.
            failed: True after an error: then the queue's due time says nothing about progress.
        """
        due_at = self._tried.pop(due, None)
        put_off = self._put_off.get(due)
        self._drop(due)
        times = 0 if put_off is None else put_off.times + 1
        until = time + self._pause * 2.0 ** min(times, _TIMES_MAX)
        # The due time of a failing queue may move with each failure.
        self._put_off[due] = _PutOff(times, until, None if failed else due_at, reason)
        if reason is not None:
            self.counts[reason] += 1

    def _drop(self, due: Due) -> None:
        put_off = self._put_off.pop(due, None)
        if put_off is not None and put_off.reason is not None:
            self.counts[put_off.reason] -= 1

    def _drop_all(self, queues: Iterable[Due]) -> None:
        """Reset the backoff of queues."""
        for due in list(queues):
            self._drop(due)
