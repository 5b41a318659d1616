"""Drives a sweep at a limited share of its time, blocking or awaited, as the only one of its
database."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

from perdure.care.expiring_driver import host_clock, with_expired
from perdure.engine import session_histories
from perdure.engine.items import items
from perdure.engine.range_reads import all_partitions
from perdure.engine.retention import sweep
from perdure.engine.retention.expiry import Clocks
from perdure.engine.retention.sweep import Failure, SweepState, SweepTerms, Swept
from perdure.engine.transact import Budget
from perdure.errors import PerdureError, Unavailable
from perdure.model.ops import Now
from perdure.model.program import Program, ask
from perdure.model.records import SESSIONS, STORE, Partition
from perdure.model.retention_policy import RetentionRules
from perdure.model.thread_ttl import ThreadTtl
from perdure.model.values.chunks import Digester
from perdure.storage.port import Driver, arun, run

_log = logging.getLogger("perdure.care")

LEASE_S = 60.0
"""Seconds after which another process takes over a sweep that is not continued."""

QUANTUM = 32
"""Threads that a tenant gets in one step."""

OnStep = Callable[[SweepState], None]
"""Called after each step with the state of the sweep."""


def no_report(state: SweepState) -> None:
    """Report nothing."""


@dataclass(frozen=True, slots=True)
class WorkShare:
    """Share of its time for which a sweep works, above 0 and at most 1; the rest it waits."""

    share: float = 0.05

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"share is {self.share}; it has to be above 0 and at most 1")

    def pause(self, worked: float) -> float:
        """Return the seconds to wait after so many seconds of work."""
        return worked * (1 - self.share) / self.share


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOptions:
    """Options of a sweep.

    Args:
        owner: name of this process; a random one by default.
        all_tenants: sweep the threads of all tenants.
        dry_run: remove nothing, and return what would be removed.
        share: the share of its time for which it works, above 0 and at most 1.
        on_step: called with the state after each step.
        rules: the policies; by default those of the database.
        only_default: apply the default policy to every thread: neither one that a thread's metadata name,
            nor a time to live.
        ttl: time to live of threads that no client has given one, and the most threads that a sweep removes.

    Raises:
        ValueError: the share is out of range.
    """

    owner: str = ""
    all_tenants: bool = False
    dry_run: bool = False
    share: float = 0.05
    on_step: OnStep = no_report
    rules: RetentionRules | None = None
    only_default: bool = False
    ttl: ThreadTtl | None = None

    def __post_init__(self) -> None:
        WorkShare(self.share)


class _Progress(NamedTuple):
    """A sweep under way: its state, the version of that, and the seconds to wait before the next step."""

    state: SweepState
    version: int
    pause: float = 0.0


class SweeperBase:
    """Parts that both sweepers have in common.

    Args:
        driver: the database, with its expired threads.
        terms: policies and limits.
        owner: name of this process.
        pace: the share of time to work for.
        on_step: called after each step.
    """

    def __init__(
        self, driver: Driver, terms: SweepTerms, owner: str, *, pace: WorkShare, on_step: OnStep = no_report
    ) -> None:
        self._driver = driver
        self._terms = terms
        self._owner = owner
        self._pace = pace
        self._on_step = on_step

    @classmethod
    def of(
        cls, driver: Driver, digest: Digester, tenant: str, rules: RetentionRules, options: SweepOptions
    ) -> Self:
        """Return a sweeper of a database, for its tenant unless the options name all."""
        rules = rules if options.rules is None else options.rules
        limits = Budget(driver.limits.ops, driver.limits.bytes)
        whose = None if options.all_tenants else tenant
        terms = SweepTerms(rules, digest, limits, whose, options.dry_run, options.only_default, options.ttl)
        owner = options.owner or secrets.token_hex(8)
        return cls(with_expired(driver), terms, owner, pace=WorkShare(options.share), on_step=options.on_step)

    def _visit(self, partition: Partition) -> Program[Swept]:
        now = yield from ask(Now())
        return (yield from sweep.visit(partition, self._terms, Clocks(now, host_clock())))

    def _with_items(self) -> Program[tuple[list[str], list[Partition]]]:
        """Return the tenants whose stores and histories may have expired items, and the histories."""
        if self._terms.dry_run or self._terms.only_default:
            return [], []
        namespaces = yield from all_partitions(self._terms.tenant, STORE)
        sessions = yield from all_partitions(self._terms.tenant, SESSIONS)
        return sorted({partition.tenant for partition in (*namespaces, *sessions)}), sessions

    def _remove_items(self, tenant: str) -> Program[int]:
        now = yield from ask(Now())
        return (yield from items.sweep(tenant, now, self._terms.budget))

    def _remove_leftovers(self, session: Partition) -> Program[int]:
        now = yield from ask(Now())
        return (yield from session_histories.sweep(session, now, self._terms.budget))

    def _begin(self) -> Program[_Progress | None]:
        now = yield from ask(Now())
        terms = self._terms
        if terms.dry_run:
            return _Progress(SweepState(owner=self._owner, started_at=now), 0)
        begun = yield from sweep.begin(self._owner, terms.tenant, now, _us(LEASE_S), terms.fingerprint)
        return None if begun is None else _Progress(*begun)

    def _release(self) -> Program[None]:
        """End the lease of a sweep that was begun here, if it is not over."""
        # What was interrupted may still be about to be stored; writes are stored in order.
        yield from sweep.look_behind_writes(self._terms.tenant)
        state, version = yield from sweep.read_state(self._terms.tenant)
        if state.owner == self._owner and not state.is_over:
            now = yield from ask(Now())
            yield from sweep.save(sweep.renewed(state, now), self._terms.tenant, version, now)

    def _step(self, state: SweepState, version: int) -> Program[_Progress | None]:
        began = time.monotonic()
        clocks = Clocks((yield from ask(Now())), host_clock())
        state, failures = yield from sweep.step(state, self._terms, QUANTUM, clocks)
        for failure in failures:
            _report(failure)
        now = yield from ask(Now())
        pause = 0.0 if state.is_over else self._pace.pause(time.monotonic() - began)
        if not state.is_over:
            # It has to outlast the pause that follows. The database's clock may have been set meanwhile.
            state = sweep.renewed(state, now + _us(LEASE_S + pause))
        saved: int | None = 0
        if not self._terms.dry_run:
            saved = yield from sweep.save(state, self._terms.tenant, version, now)
        if saved is None:
            _log.warning("another process has taken over the sweep; it continues there")
            return None
        self._on_step(state)
        return _Progress(state, saved, pause)


class RetentionSweeper(SweeperBase):
    """Sweeps the threads of a database, without blocking the event loop.

    A sweep is stored as it goes: after a crash the next one continues where it stopped, once the lease of
    60 s is over. Where another process sweeps, nothing is done.
    """

    async def sweep(self) -> Swept | None:
        """Sweep every thread once, then expired items, and return the result; ``None`` if another process
        sweeps."""
        at = await arun(self._begin(), self._driver)
        while at is not None and not at.state.is_over:
            await asyncio.sleep(at.pause)
            at = await arun(self._step(at.state, at.version), self._driver)
        return None if at is None else replace(at.state.last, items=await self.sweep_items())

    async def sweep_items(self) -> int:
        """Remove expired items of stores and histories, and what processes that died left of histories;
        return the number of items. DynamoDB removes expired items itself; there it finds none."""
        removed = 0
        tenants, sessions = await arun(self._with_items(), self._driver)
        for program in (*map(self._remove_items, tenants), *map(self._remove_leftovers, sessions)):
            began = time.monotonic()
            removed += await arun(program, self._driver)
            await asyncio.sleep(self._pace.pause(time.monotonic() - began))
        return removed

    async def sweep_thread(self, partition: Partition) -> Swept:
        """Apply the policies to one thread, beside any sweep.

        Raises:
            LookupError: the thread's metadata name a policy that does not exist.
        """
        return await arun(self._visit(partition), self._driver)


class SyncRetentionSweeper(SweeperBase):
    """Sweeps the threads of a database and blocks until it is done; otherwise as ``RetentionSweeper``."""

    def sweep(self) -> Swept | None:
        """Sweep every thread once, then expired items, and return the result; ``None`` if another process
        sweeps. After Ctrl-C, or an error of another kind than ``Unavailable``, any process can continue at
        once."""
        try:
            at = run(self._begin(), self._driver)
            while at is not None and not at.state.is_over:
                time.sleep(at.pause)
                at = run(self._step(at.state, at.version), self._driver)
        except Unavailable:
            raise
        except BaseException:
            with suppress(PerdureError):
                run(self._release(), self._driver)
            raise
        return None if at is None else replace(at.state.last, items=self.sweep_items())

    def sweep_items(self) -> int:
        """Remove expired items of stores and histories, and what processes that died left of histories;
        return the number of items. DynamoDB removes expired items itself; there it finds none."""
        removed = 0
        tenants, sessions = run(self._with_items(), self._driver)
        for program in (*map(self._remove_items, tenants), *map(self._remove_leftovers, sessions)):
            began = time.monotonic()
            removed += run(program, self._driver)
            time.sleep(self._pace.pause(time.monotonic() - began))
        return removed

    def sweep_thread(self, partition: Partition) -> Swept:
        """Apply the policies to one thread, beside any sweep.

        Raises:
            LookupError: the thread's metadata name a policy that does not exist.
        """
        return run(self._visit(partition), self._driver)


def _us(seconds: float) -> int:
    return round(seconds * 1_000_000)


def _report(failure: Failure) -> None:
    _log.warning("thread %r was not swept: %s", failure.partition.thread, failure.reason)
