"""Attempts that ended because the database was away, or because of its late answers, are not counted.

The claim of a run counts its attempt, so that the end of a process counts. A worker that outlives the attempt
excuses it as soon as the database answers again.
"""

from __future__ import annotations

import asyncio

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

_TRIED_S = 300.0
"""Seconds for which a database that is away is asked again; after that the attempt counts."""

NO_FAULT = (SchemaTooNew, ThreadPinned, TakenBack, KeyMissing, LimitPending)
"""Errors of attempts that do not count: in a rolling deploy a worker of the other version, or with the new
key, goes on, and a user may withdraw a message while a node holds it. Waiting for a limit is none."""
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
"""Errors that another attempt would meet again."""


class Excuses:
    """Excuses of this process that are not stored yet."""

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
        """Stop; what is not stored by now counts."""
        storing = list(self._storing)
        for task in storing:
            task.cancel()
        await asyncio.gather(*storing, return_exceptions=True)

    async def _store(self, held: HeldRun) -> None:
        until = asyncio.get_running_loop().time() + _TRIED_S
        while True:
            try:
                await self._database.arun(runs.excuse(held))
                return
            except PerdureError as error:
                if not isinstance(error, Unavailable) or asyncio.get_running_loop().time() > until:
                    self._observers.event("run.not_excused", **fields_of(held), error=type(error).__name__)
                    return
            await asyncio.sleep(self._pause)
