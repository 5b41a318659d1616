"""Expired threads read as absent: a driver that answers for them as if they were removed.

It wraps the driver of a database, so that every reader and writer above it agrees, whatever it reads. The
first write to an expired thread removes it, so that a thread of the same name starts without any of its past.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar, cast

from perdure.engine.documents import Document
from perdure.engine.retention.expiring_threads import Overdue, find_overdue
from perdure.engine.retention.thread_expiry import Clocks, ExpiryFacts, read_expiry_facts
from perdure.engine.retention.thread_removal import remove_expired
from perdure.engine.transact import ATTEMPTS
from perdure.errors import Corrupt
from perdure.model.bounded_cache import BoundedCache
from perdure.model.ops import (
    Check,
    Commit,
    Committed,
    CopyCondition,
    Delete,
    Drop,
    Fetch,
    FindListed,
    FindRuns,
    FindThreads,
    Get,
    IndexHit,
    Now,
    Op,
    Refused,
    Stage,
)
from perdure.model.program import Effect, Program, ask
from perdure.model.records import DOCUMENT, EPOCH, HEAD, OF_THREAD, RESERVED, TAG, THREADS, Partition, Record
from perdure.model.retention_policy import RetentionRules
from perdure.model.times import time_of
from perdure.storage.port import Answers, Driver, WrappingDriver, acommit_and_fetch, arun, run

R = TypeVar("R")

_FRESH_US = 10_000_000
"""Time for which a thread that is alive is not checked again. It is short, as another process may shorten the
thread's time to live, give it another policy or remove its tag."""
_CLOCK_US = 60_000_000
"""Time for which the difference of the two clocks is not read again. It is short, as a clock may be set."""

_KNOWN_MAX = 20_000
_PAGE = 1000
_FEW = 64
"""Number of threads up to which all whose own time to live is over are read first. More are read only as far
as a page needs it."""

_LOOKS = (Get(HEAD, ("",)), Get(EPOCH, ()), Get(DOCUMENT, OF_THREAD))


def host_clock() -> int:
    """Return the host's time in microseconds since 1970."""
    return time.time_ns() // 1000


class ExpiringDriver(WrappingDriver):
    """A driver behind retention rules.

    A thread's first request in ten seconds also reads its head, its open run and its document; no further
    request is made unless they show that it may have expired. Then the whole decision is made once, by the
    database's clock.
    """

    def __init__(self, inner: Driver, rules: RetentionRules) -> None:
        super().__init__(inner)
        self._rules = rules
        self._alive: BoundedCache[Partition, int] = BoundedCache(_KNOWN_MAX)
        self._listed_expired: BoundedCache[Partition, int] = BoundedCache(_KNOWN_MAX)
        self._clocks: Clocks | None = None
        self._lock = threading.Lock()

    @property
    def inner(self) -> Driver:
        """The driver that shows expired threads, for those that remove them."""
        return self._inner

    def perform(self, effect: Effect[R]) -> R:
        return run(self._answer(effect), self._inner)

    async def aperform(self, effect: Effect[R]) -> R:
        return await arun(self._answer(effect), self._inner)

    async def acommit_and_fetch(
        self, commit: Commit, fetch: Fetch
    ) -> tuple[Committed | Refused, Answers | None]:
        """See ``port.acommit_and_fetch``. The fetch is made only for a thread that is known not to be
        expired."""
        if _is_thread(commit.partition) and not self._is_alive(commit.partition):
            return await self.aperform(commit), None
        done = await acommit_and_fetch(self._inner, commit, fetch)
        self._note_written(commit)
        return done

    def _answer(self, effect: Effect[R]) -> Program[R]:
        if isinstance(effect, Fetch):
            if _is_thread(effect.partition) and not self._is_alive(effect.partition):
                return cast("Program[R]", self._fetch(effect))
        elif isinstance(effect, FindThreads | FindListed | FindRuns):
            if not isinstance(effect, FindThreads) or effect.space == THREADS:
                return cast("Program[R]", self._find(effect))
        elif isinstance(effect, Commit | Stage):
            if _is_thread(effect.partition):
                return cast("Program[R]", self._write(effect))
        elif isinstance(effect, Drop):
            self._forget(effect.partition)
        return ask(cast("Effect[R]", cast("Effect[Any]", effect)))

    def _fetch(self, effect: Fetch) -> Program[tuple[tuple[Record, ...], ...]]:
        count = len(effect.items)
        try:
            answers = yield from ask(replace(effect, items=(*effect.items, *_LOOKS)))
        except Corrupt:
            if (yield from self._find_expired(effect.partition)) is not None:
                return ((),) * count
            # The requested records may be sound; a caller that requests the damaged one gets the error.
            return (yield from ask(effect))
        heads, epochs, documents = answers[count:]
        if not self._may_be_expired(effect.partition, heads, epochs, documents):
            return answers[:count]
        if (yield from self._find_expired(effect.partition)) is None:
            # Another process may have removed the thread since the answers were read.
            return (yield from ask(effect))
        return ((),) * count

    def _find(self, effect: FindThreads | FindListed | FindRuns) -> Program[tuple[IndexHit, ...]]:
        """Return a page without expired threads. It is shorter than its limit only at the end."""
        overdue: Overdue | None = None
        if effect.tenant is not None and not isinstance(effect, FindRuns):
            overdue = yield from self._find_overdue(effect.tenant)
            if not overdue.names and self._rules.shortest_idle_us is None:
                return (yield from ask(effect))
        out: list[IndexHit] = []
        page, passed = effect, 0
        copies: CopyCondition | None = None
        meeting: set[Partition] = set()
        if isinstance(effect, FindListed):
            # Places count only threads that are not expired, so skipped ones are checked, too.
            passed, copies, limit = effect.skip, effect.copies, min(effect.limit + effect.skip, _PAGE)
            page = replace(effect, skip=0, copies=None, limit=limit)
        while len(out) < effect.limit:
            found = yield from ask(page)
            if copies is not None and isinstance(page, FindListed):
                meeting.update(hit.partition for hit in (yield from ask(replace(page, copies=copies))))
            for hit in found:
                if len(out) < effect.limit and not (yield from self._is_expired(hit, overdue)):
                    if passed:
                        passed -= 1
                    else:
                        out.append(hit)
            if len(found) < page.limit or isinstance(page, FindRuns):
                break
            last = found[-1]
            if not isinstance(page, FindListed):
                page = replace(page, after=last.partition)
            elif last.listed is not None:
                page = page.after(last.listed)
            page = replace(page, limit=max(page.limit, min(page.limit * 4, _PAGE)))
        if copies is not None:
            numbered = [_number(hit, number) for number, hit in enumerate(out, 1)]
            return tuple(hit for hit in numbered if hit.partition in meeting or hit is numbered[-1])
        return tuple(out)

    def _find_overdue(self, tenant: str) -> Program[Overdue]:
        """Return the threads whose own time to live is over. If they are few, each is read, and those that
        live on, e.g. because of a tag, are left out."""
        overdue = yield from find_overdue(tenant)
        if len(overdue.names) > _FEW:
            return overdue
        expired = set[str]()
        for name in overdue.names:
            if (yield from self._is_over(Partition(tenant, name), overdue.now)):
                expired.add(name)
        return overdue._replace(names=frozenset(expired))

    def _is_expired(self, hit: IndexHit, overdue: Overdue | None) -> Program[bool]:
        """Return True if a thread of a listing is expired. Without ``overdue``, the threads whose own time to
        live is over are not known."""
        partition, idle = hit.partition, self._rules.shortest_idle_us
        if overdue is not None and partition.thread in overdue.names:
            was_read = len(overdue.names) <= _FEW
            return was_read or (yield from self._is_over(partition, overdue.now))
        if not _is_thread(partition) or self._is_alive(partition):
            return False
        is_recent = idle is None or (hit.listed is not None and hit.listed.updated_at + idle > host_clock())
        if overdue is not None and is_recent:
            return False
        heads, epochs, documents = yield from ask(Fetch(partition, _LOOKS))
        if not self._may_be_expired(partition, heads, epochs, documents):
            return False
        return (yield from self._find_expired(partition)) is not None

    def _is_over(self, partition: Partition, now: int) -> Program[bool]:
        """Return True if a thread whose own time to live is over is expired. For ten seconds, further
        listings do not read it again; if it is created again meanwhile, its time is not over."""
        if self._listed_expired.get(partition, 0) > now:
            return True
        is_expired = (yield from self._find_expired(partition, now)) is not None
        if is_expired:
            with self._lock:
                self._listed_expired[partition] = now + _FRESH_US
        return is_expired

    def _write(self, effect: Commit | Stage) -> Program[Any]:
        if self._is_suspect(effect.partition):
            yield from self._remove_expired(effect)
        done = yield from ask(cast("Effect[Any]", effect))
        self._note_written(effect)
        return done

    def _remove_expired(self, effect: Commit | Stage) -> Program[None]:
        for _ in range(ATTEMPTS):
            thread = yield from self._find_expired(effect.partition)
            if thread is None:
                break
            if (yield from remove_expired(effect.partition, thread, is_replaced=True)):
                self._forget(effect.partition)
                break
            # Another writer is removing it: look again, as a record that is stored now would be removed with
            # it.

    def _note_written(self, effect: Commit | Stage) -> None:
        """Let a thread be checked again after a change of what decides when it expires. The end of its work
        is not one: that was considered before."""
        if effect.partition in self._alive and any(map(_decides, effect.ops)):
            self._remember(effect.partition, 0)

    def _find_expired(self, partition: Partition, now: int | None = None) -> Program[ExpiryFacts | None]:
        """Return the thread if it is expired by the database's clock; ``now`` is its time, if it was read."""
        asked_at = host_clock()
        try:
            thread = yield from read_expiry_facts(partition)
            expires_at = thread.expires_at(self._rules)
        except (Corrupt, LookupError):
            # A thread that is damaged, or names an unknown policy, is left to those who report that.
            self._remember(partition, asked_at + _FRESH_US)
            return None
        if now is None:
            asked_at = host_clock()
            now = yield from ask(Now())
            self._clocks = Clocks(now, asked_at)
        if expires_at is not None and expires_at <= now:
            self._remember(partition, 0)
            return thread
        if thread.is_busy:
            # It expires as soon as it is not, perhaps by another process.
            expires_at = self._find_end_at_rest(now, thread.ttl)
        if expires_at is None:
            self._remember(partition, asked_at + _FRESH_US)
        else:
            self._remember(partition, asked_at + min(_FRESH_US, expires_at - now))
        return None

    def _find_end_at_rest(self, now: int, ttl: Mapping[str, Any] | None) -> int | None:
        """Return the earliest time at which a thread could expire if its work ended now."""
        if ttl is not None:
            return int(ttl["expires_at"]) if ttl.get("strategy") == "delete" else None
        idle = self._rules.shortest_idle_us
        return None if idle is None else now + idle

    def _may_be_expired(
        self,
        partition: Partition,
        heads: tuple[Record, ...],
        epochs: tuple[Record, ...],
        documents: tuple[Record, ...],
    ) -> bool:
        """Return True if a thread may be expired, as far as these records show; otherwise remember until when
        it is not."""
        now = host_clock()
        is_open = bool(epochs and epochs[0].fields["open_run"] is not None)
        until = self._find_end_of_life(now, heads, documents, is_open=is_open)
        if until > now or is_open:
            self._remember(partition, until)
            return False
        return True

    def _find_end_of_life(
        self, now: int, heads: tuple[Record, ...], documents: tuple[Record, ...], *, is_open: bool
    ) -> int:
        """Return the host's time until which a thread is not expired, whatever another process ends in it;
        ``now`` if that takes more than these records."""
        fresh = now + _FRESH_US
        try:
            ttl = _read_ttl(documents)
        except Corrupt:
            return now
        if ttl is not None or is_open:
            ahead = 0 if ttl is None else self._find_difference(now)
            if ahead is None:
                return now
            end = self._find_end_at_rest(now + ahead, ttl)
            return fresh if end is None else min(fresh, end - ahead)
        idle = self._rules.shortest_idle_us
        if idle is None:
            return fresh
        times = [each.fields["updated_at"] for each in documents]
        if heads:
            active_at = time_of(heads[0].fields["checkpoint_id"])
            if active_at is None:
                return now
            times.append(active_at)
        return min(fresh, max(times) + idle) if times else fresh

    def _find_difference(self, now: int) -> int | None:
        """Return how far the database's clock is ahead of the host's, ``None`` if that is not known now."""
        clocks = self._clocks
        if clocks is None or not clocks.host <= now < clocks.host + _CLOCK_US:
            return None
        return clocks.database - clocks.host

    def _is_alive(self, partition: Partition) -> bool:
        return self._alive.get(partition, 0) > host_clock()

    def _is_suspect(self, partition: Partition) -> bool:
        """Return True if a thread was checked before, and may have expired since."""
        until = self._alive.get(partition)
        return until is not None and until <= host_clock()

    def _remember(self, partition: Partition, until: int) -> None:
        with self._lock:
            self._alive[partition] = until

    def _forget(self, partition: Partition) -> None:
        with self._lock:
            self._alive.pop(partition, None)
            self._listed_expired.pop(partition, None)


def _number(hit: IndexHit, number: int) -> IndexHit:
    return replace(hit, listed=hit.listed and hit.listed._replace(number=number))


def _decides(op: Op) -> bool:
    """Return True if an operation may let a thread expire earlier, by its time to live, policy or tags."""
    if op.kind is DOCUMENT:
        return op.key == OF_THREAD and not isinstance(op, Check)
    return op.kind is TAG and isinstance(op, Delete)


def _read_ttl(documents: tuple[Record, ...]) -> Mapping[str, Any] | None:
    """Return the time to live that a client set for a thread, from its document."""
    if not documents or b'"expires_at"' not in documents[0].body:
        return None
    return Document.read(documents[0]).body.get("ttl")


def _is_thread(partition: Partition) -> bool:
    return partition.space == THREADS and partition != RESERVED


def with_expired(driver: Driver) -> Driver:
    """Return the driver that shows expired threads."""
    if isinstance(driver, ExpiringDriver):
        return driver.inner
    return driver
