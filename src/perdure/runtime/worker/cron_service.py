"""Start of the crons that are due, by whichever process serves them.

A cron is started at least once for each of its times, each time with the same key, ``Firing.key``: what is
accepted with that key as its dedupe key is accepted once, on any number of processes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

from perdure.engine import crons
from perdure.engine.crons import Cron, Due
from perdure.engine.retention import all_partitions
from perdure.model.queue import CRONS, Lane
from perdure.model.records import SERVER, Partition
from perdure.runtime.context import RuntimeContext
from perdure.runtime.worker.backlog import Foreign
from perdure.runtime.worker.dispatch import Dispatch

_PAGE = 32


@dataclass(frozen=True, slots=True)
class Firing:
    """One time at which a cron is started.

    Attributes:
        tenant: The owner of the cron.
        cron: The cron; ``cron.due_at`` is the time.
        now: The database's time, in microseconds.
    """

    tenant: str
    cron: Cron
    now: int

    @property
    def key(self) -> str:
        """Key of this cron at this time."""
        return f"cron {self.cron.id} {self.cron.due_at}"


Outcome = Literal["started", "missed", "failed", "disabled"]


@dataclass(frozen=True, slots=True)
class Fired:
    """Result of a start.

    Attributes:
        after: The cron as it is from then on, with the time after this one.
        outcome: What happened: the event ``cron.<outcome>`` says so.
        error: The name of the error's type, if there was one.
    """

    after: Due
    outcome: Outcome = "started"
    error: str = ""


Fire = Callable[[Firing], Awaitable[Fired]]
"""Starts what a cron is for. Called again for the same time after a crash, or at the same time in another
process."""


class CronService:
    """Starts the crons that are due, with the function that ``serve`` sets. Created by ``Worker``."""

    def __init__(self, context: RuntimeContext, dispatch: Dispatch) -> None:
        self._context = context
        self._dispatch = dispatch
        self._fire: Fire | None = None

    def serve(self, fire: Fire) -> None:
        """Start crons with this function from now on."""
        self._fire = fire

    async def arm(self) -> None:
        """Find the crons that arrived without their queue record, as in a copy of the database."""
        context = self._context
        if self._fire is None:
            return
        for partition in await context.database.arun(all_partitions(context.tenant, SERVER)):
            if partition == crons.place(partition.tenant):
                await context.database.arun(crons.arm(partition, context.database.fresh()))

    async def start_due(self, partition: Partition) -> bool | Foreign:
        """Start the crons of a tenant that are due.

        Returns:
            True if there may be more, or that this process starts none.

        Raises:
            Corrupt: One of them cannot be read; the others were started.
        """
        if self._fire is None:
            return Foreign("service", CRONS)
        context = self._context
        now = await context.clock.now()
        found = await context.database.arun(crons.due(partition, now, _PAGE))
        for cron in found.crons:
            await self._start(self._fire, Firing(partition.tenant, cron, now), partition)
        if found.fault is not None:
            raise found.fault
        return len(found.crons) == _PAGE

    async def _start(self, fire: Fire, firing: Firing, partition: Partition) -> None:
        context, cron = self._context, firing.cron
        fired = await fire(firing)
        is_first = False

        def passed(held: Cron) -> Due | None:
            nonlocal is_first
            # Another process may have been faster, or a client may have changed it since.
            is_first = held.version == cron.version
            return fired.after if is_first else None

        fresh = context.database.fresh()
        await context.database.arun(crons.change(partition, cron.id, passed, firing.now, fresh))
        if is_first:
            late = firing.now - (cron.due_at or firing.now)
            named = {"tenant": firing.tenant, "cron": cron.id, "late": late, "error": fired.error}
            context.observers.event(f"cron.{fired.outcome}", **named)
        if fired.after.due_at is not None:
            self._dispatch.schedule(partition, queue_of(fired.after.due_at), firing.now)


def queue_of(due_at: int) -> Lane:
    """Return the queue record of crons of which the first is due at a time, to schedule it."""
    return Lane(CRONS, last=1, since=due_at, ready_at=due_at)
