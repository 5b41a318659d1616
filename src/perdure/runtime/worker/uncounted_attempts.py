"""Which failed attempts do not count, as the database was unavailable or answered too late. Also which errors
are no fault of the run, and which ones no further attempt could avoid.

Claiming a run counts an attempt, so that attempts of killed processes count. A worker that is still alive
after such a failure excuses the attempt, which uncounts it, as soon as the database answers again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from langgraph.errors import is_invalid_resume

from perdure.database.handle import DatabaseHandle
from perdure.engine.queue import runs
from perdure.engine.queue.runs import HeldRun
from perdure.engine.threads.steering import TakenBack
from perdure.errors import (
    KeyMissing,
    LimitPending,
    LimitReached,
    MissingStart,
    NotAllowed,
    NoWindow,
    OtherGraph,
    PerdureError,
    QuestionExpired,
    SchemaTooNew,
    ThreadPinned,
    TooLarge,
    Unavailable,
    Unreadable,
    Unserialisable,
)
from perdure.model.limits import SharedLimit
from perdure.model.records import THREADS
from perdure.retention.expiring_driver import ExpiringDriver
from perdure.runtime.runtime_context import RuntimeContext
from perdure.runtime.worker.leases import fields_of
from perdure.storage.error_origins import find_origin
from perdure.storage.port import Driver

_RETRY_S = 300.0
"""Seconds for which excusing an attempt is retried while the database is unavailable."""

_THREAD_ERRORS = (SchemaTooNew, ThreadPinned, TakenBack, KeyMissing)
"""Errors of the run's own thread after which an attempt does not count: in a rolling deploy, a worker of the
other version or with the new key continues the run; a user may withdraw a message while a node uses it."""
_DATABASE_ERRORS = (Unavailable, KeyMissing)
"""Errors of the worker's database after which some attempts do not count."""
PERMANENT = (
    LimitReached,
    MissingStart,
    NotAllowed,
    NoWindow,
    OtherGraph,
    QuestionExpired,
    Unreadable,
    Unserialisable,
    TooLarge,
)
"""Errors that another attempt would raise again."""


class Judge:
    """Decides what an error says of the run in which it was raised. A node may raise the same errors about
    another thread or database, or a limit of another run: these are errors like any other."""

    def __init__(self, database: DatabaseHandle, limits: Mapping[str, SharedLimit]) -> None:
        self._database = database
        self._limits = limits

    def is_no_fault(self, error: BaseException, held: HeldRun) -> bool:
        """Return True if the run is to be continued later, however often: its own thread is not for this
        worker now, or the run waits for one of its limits."""
        if isinstance(error, LimitPending):
            return self._concerns_own_limits(error, held)
        return isinstance(error, _THREAD_ERRORS) and self._concerns_own_thread(error, held)

    def may_excuse(self, error: BaseException) -> bool:
        """Return True if the attempt need not count, as the worker's own database was at fault."""
        if isinstance(error, KeyMissing) and find_origin(error) is None:
            return False
        return isinstance(error, _DATABASE_ERRORS) and self._concerns_own_database(error)

    def is_permanent(self, error: BaseException, held: HeldRun) -> bool:
        """Return True if another attempt would raise the error again."""
        if isinstance(error, LimitReached):
            return not isinstance(error, LimitPending) and self._concerns_own_limits(error, held)
        if is_invalid_resume(error):
            return True
        return isinstance(error, PERMANENT) and not self._concerns_another_thread(error, held)

    def _concerns_own_database(self, error: BaseException) -> bool:
        # An error without an origin was raised outside of every engine program: by the worker itself, or by
        # the checkpointer that it runs. Both use its own database.
        origin = find_origin(error)
        return origin is None or _bare(origin.driver) is _bare(self._database.driver)

    def _concerns_own_thread(self, error: BaseException, held: HeldRun) -> bool:
        origin = find_origin(error)
        is_there = origin is not None and origin.partition in (None, held.partition)
        return is_there and self._concerns_own_database(error)

    def _concerns_another_thread(self, error: BaseException, held: HeldRun) -> bool:
        origin = find_origin(error)
        if origin is None or not self._concerns_own_database(error):
            return origin is not None
        place = origin.partition
        return place is not None and place.space == THREADS and place != held.partition

    def _concerns_own_limits(self, error: LimitReached, held: HeldRun) -> bool:
        limit = self._limits.get(error.limit)
        return limit is not None and limit.of != "run" and limit.is_of(held.run.graph)


def _bare(driver: Driver) -> Driver:
    """Return a driver without the retention around it, which is put there once a server uses a database."""
    while isinstance(driver, ExpiringDriver):
        driver = driver.inner
    return driver


class Excuses:
    """Attempts that this process has to excuse, and has not stored as excused yet."""

    def __init__(self, context: RuntimeContext) -> None:
        self._database = context.database
        self._observers = context.observers
        self._pause = context.settings.poll
        self._storing: set[asyncio.Task[None]] = set()

    def add(self, held: HeldRun) -> None:
        """Excuse the attempt at a run, now or when the database answers again."""
        task = asyncio.create_task(self._store(held))
        self._storing.add(task)
        task.add_done_callback(self._storing.discard)

    async def close(self) -> None:
        """Stop retrying; attempts that are not stored as excused by then count."""
        storing = list(self._storing)
        for task in storing:
            task.cancel()
        await asyncio.gather(*storing, return_exceptions=True)

    async def _store(self, held: HeldRun) -> None:
        until = asyncio.get_running_loop().time() + _RETRY_S
        while True:
            try:
                await self._database.arun(runs.excuse(held))
                return
            except PerdureError as error:
                if not isinstance(error, Unavailable) or asyncio.get_running_loop().time() > until:
                    self._observers.event("run.not_excused", **fields_of(held), error=type(error).__name__)
                    return
            await asyncio.sleep(self._pause)
