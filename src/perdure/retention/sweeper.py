"""Applies retention to a database at a limited share of the time, blocking or awaited."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

from perdure.engine import session_histories
from perdure.engine.complete_reads import list_all_partitions
from perdure.engine.items import items
from perdure.engine.retention import server_records, sweep
from perdure.engine.retention.sweep import RetentionProgress, RetentionResult, RetentionTerms
from perdure.engine.retention.thread_expiry import Clocks
from perdure.engine.transact import Budget
from perdure.errors import PerdureError, Unavailable
from perdure.model.ops import Now
from perdure.model.program import Program, ProgramResult, advance, ask
from perdure.model.records import SESSIONS, STORE, Partition
from perdure.model.retention_policy import RetentionRules
from perdure.model.values.chunks import Digester
from perdure.retention.expiring_driver import host_clock, with_expired
from perdure.storage.port import Driver, arun, run

R = TypeVar("R")
S = TypeVar("S")

_log = logging.getLogger("perdure.retention")

LEASE_S = 60.0
"""Seconds after which another process takes over a sweep that is not continued."""

QUANTUM = 32
"""Threads that a tenant gets in one step."""

Steps = Generator[Program[Any] | float, Any, R]
"""Programs to run, and seconds to wait, one after the other; the result comes last."""


def report_nothing(progress: RetentionProgress) -> None:
    """Report nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionOptions:
    """How retention is applied.

    Args:
        owner: name of this process; a random one by default.
        all_tenants: look at the threads of all tenants.
        dry_run: remove nothing, and return what would be removed.
        share: the share of its time for which it works, above 0 and at most 1; the rest it waits.
        on_step: called with the progress after each step.
        rules: the policies; by default those of the database.
        keep: seconds for which the outcome of a message is remembered, as ``Settings.keep`` of the runtimes
            of this database; ``None`` leaves ended messages to the next runs of their threads.

    Raises:
        ValueError: the share is out of range.
    """

    owner: str = ""
    all_tenants: bool = False
    dry_run: bool = False
    share: float = 0.05
    on_step: Callable[[RetentionProgress], None] = report_nothing
    rules: RetentionRules | None = None
    keep: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"share is {self.share}; it has to be above 0 and at most 1")

    def pause_after(self, worked: float) -> float:
        """Return the seconds to wait after so many seconds of work."""
        return worked * (1 - self.share) / self.share


class _Saved(NamedTuple):
    """A sweep under way, the version of its record, and the seconds to wait before the next step."""

    progress: RetentionProgress
    version: int
    pause: float = 0.0


class Sweeper:
    """Applies retention to the threads, items and histories of a database, as the only process that does.

    A sweep is stored as it goes: after a crash the next one continues where it stopped, once the lease of
    60 s is over. Where another process sweeps, nothing is done.

    Args:
        driver: the database.
        digest: names its chunks.
        tenant: the tenant, unless the options name all.
        rules: the policies of the database.
        options: how retention is applied.
    """

    def __init__(
        self, driver: Driver, digest: Digester, tenant: str, rules: RetentionRules, options: RetentionOptions
    ) -> None:
        self._driver = with_expired(driver)
        self._options = options
        self._owner = options.owner or secrets.token_hex(8)
        whose = None if options.all_tenants else tenant
        limits = Budget(driver.limits.ops, driver.limits.bytes)
        keep_us = None if options.keep is None else _to_microseconds(options.keep)
        self._terms = RetentionTerms(options.rules or rules, digest, limits, whose, options.dry_run, keep_us)

    def run(self, steps: Steps[R]) -> R:
        """Return the result of steps, blocking. After Ctrl-C, or an error of another kind than
        ``Unavailable``, any process can continue at once."""
        try:
            step = advance(steps)
            while not isinstance(step, ProgramResult):
                if isinstance(step, float | int):
                    time.sleep(step)
                    step = advance(steps)
                else:
                    step = advance(steps, run(step, self._driver))
            return step.result
        except Unavailable:
            raise
        except BaseException:
            with suppress(PerdureError):
                run(self._release(), self._driver)
            raise

    async def arun(self, steps: Steps[R]) -> R:
        """Return the result of steps, without blocking the event loop."""
        step = advance(steps)
        while not isinstance(step, ProgramResult):
            wait = asyncio.sleep(step) if isinstance(step, float | int) else arun(step, self._driver)
            step = advance(steps, await wait)
        return step.result

    def apply(self) -> Steps[RetentionResult | None]:
        """Look at every thread once, then at what is stored of tenants and chats outside of threads, then at
        expired items; the result is ``None`` if another process sweeps."""
        saved: _Saved | None = yield self._begin()
        while saved is not None and not saved.progress.is_over:
            yield saved.pause
            saved = yield self._step(saved.progress, saved.version)
        if saved is None:
            return None
        yield from self._remove_left()
        return replace(saved.progress.last, items=(yield from self.remove_items()))

    def apply_to(self, partition: Partition) -> Steps[RetentionResult]:
        """Apply the policies to one thread, beside any sweep.

        Raises:
            LookupError: the thread's metadata names a policy that does not exist.
        """
        result: RetentionResult = yield self._visit(partition)
        return result

    def remove_items(self) -> Steps[int]:
        """Remove expired items of stores and histories, and the remains of histories left by dead processes;
        the result is the number of items. DynamoDB removes expired items itself; there the result is 0."""
        removed = 0
        programs: list[Program[int]] = yield self._find_expiring()
        for program in programs:
            removed += yield from self._pace(program)
        return removed

    def _remove_left(self) -> Steps[None]:
        """Remove what is stored, outside of threads, of threads that do not exist any more or for a time that
        is over."""
        if self._terms.dry_run or self._terms.rules.only_default:
            return
        places: list[Partition] = yield server_records.list_places(self._terms.tenant)
        for place in places:
            after: str | None = ""
            while after is not None:
                after = yield from self._pace(self._remove_from_place(place, after))

    def _remove_from_place(self, place: Partition, after: str) -> Program[str | None]:
        now = yield from ask(Now())
        return (yield from server_records.remove_from(place, after, now, self._terms.budget))

    def _pace(self, program: Program[S]) -> Steps[S]:
        """Run a program, and wait for the rest of its share of the time."""
        began = time.monotonic()
        result: S = yield program
        yield self._options.pause_after(time.monotonic() - began)
        return result

    def _find_expiring(self) -> Program[list[Program[int]]]:
        """Return the programs that remove expired items of stores and histories."""
        if self._terms.dry_run or self._terms.rules.only_default:
            return []
        namespaces = yield from list_all_partitions(self._terms.tenant, STORE)
        sessions = yield from list_all_partitions(self._terms.tenant, SESSIONS)
        tenants = sorted({partition.tenant for partition in (*namespaces, *sessions)})
        return [
            *(self._remove_from(items.sweep, tenant) for tenant in tenants),
            *(self._remove_from(session_histories.sweep, session) for session in sessions),
        ]

    def _remove_from(self, removal: Callable[[S, int, Budget], Program[int]], subject: S) -> Program[int]:
        now = yield from ask(Now())
        return (yield from removal(subject, now, self._terms.budget))

    def _visit(self, partition: Partition) -> Program[RetentionResult]:
        now = yield from ask(Now())
        return (yield from sweep.visit(partition, self._terms, Clocks(now, host_clock())))

    def _begin(self) -> Program[_Saved | None]:
        now = yield from ask(Now())
        if self._terms.dry_run:
            return _Saved(RetentionProgress(owner=self._owner, started_at=now), 0)
        begun = yield from sweep.begin(
            self._owner, self._terms.tenant, now, _to_microseconds(LEASE_S), self._terms.rules.fingerprint
        )
        if begun is None:
            return None
        return _Saved(*begun)

    def _step(self, progress: RetentionProgress, version: int) -> Program[_Saved | None]:
        began = time.monotonic()
        clocks = Clocks((yield from ask(Now())), host_clock())
        progress, failures = yield from sweep.step(progress, self._terms, QUANTUM, clocks)
        for failure in failures:
            _log.warning("thread %r was not swept: %s", failure.partition.thread, failure.reason)
        now = yield from ask(Now())
        if progress.is_over:
            pause = 0.0
        else:
            pause = self._options.pause_after(time.monotonic() - began)
        if not progress.is_over:
            # The lease has to outlast the pause that follows. It counts from ``now``, as the database's clock
            # may have been set meanwhile.
            progress = replace(progress, until=now + _to_microseconds(LEASE_S + pause))
        saved_version: int | None = 0
        if not self._terms.dry_run:
            saved_version = yield from sweep.save(progress, self._terms.tenant, version, now)
        if saved_version is None:
            _log.warning("another process has taken over the sweep; it continues there")
            return None
        self._options.on_step(progress)
        return _Saved(progress, saved_version, pause)

    def _release(self) -> Program[None]:
        """End the lease of a sweep that was begun here, if it is not over."""
        # The interrupted write may still be executed; writes are stored in order.
        yield from sweep.await_progress_writes(self._terms.tenant)
        progress, version = yield from sweep.read_progress(self._terms.tenant)
        if progress.owner == self._owner:
            now = yield from ask(Now())
            yield from sweep.save(replace(progress, until=now), self._terms.tenant, version, now)


def _to_microseconds(seconds: float) -> int:
    return round(seconds * 1_000_000)
