"""Attempts that failed because the database was unavailable or answered too late do not count.

Claiming a run counts an attempt, so that attempts of killed processes count. A worker that is still alive
after such a failure excuses the attempt, which uncounts it, as soon as the database answers again.
"""

from __future__ import annotations

import asyncio

from langgraph.errors import is_invalid_resume

from perdure.engine.queue import runs
from perdure.engine.queue.runs import HeldRun
from perdure.engine.threads.steering import TakenBack
from perdure.errors import (
    KeyMissing,
    LimitPending,
    LimitReached,
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
from perdure.runtime.runtime_context import RuntimeContext
from perdure.runtime.worker.leases import fields_of

_RETRY_S = 300.0
"""Seconds for which excusing an attempt is retried while the database is unavailable."""

NO_FAULT = (SchemaTooNew, ThreadPinned, TakenBack, KeyMissing, LimitPending)
"""Errors after which an attempt does not count. In a rolling deploy, a worker of the other version or with
the new key continues the run; a user may withdraw a message while a node uses it; a run may wait for a
limit."""
PERMANENT = (
    LimitReached,
    NotAllowed,
    NoWindow,
    OtherGraph,
    QuestionExpired,
    Unreadable,
    Unserialisable,
    TooLarge,
)
"""Errors that another attempt would raise again."""


def is_permanent(error: BaseException) -> bool:
    """Return True if another attempt would raise an error again: one of ``PERMANENT``, or that of an answer
    that does not fit the schema of its question."""
    return isinstance(error, PERMANENT) or is_invalid_resume(error)


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
