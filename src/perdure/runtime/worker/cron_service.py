"""Start of the crons that are due, by whichever process serves them.

A process claims a cron for the length of a lease before it starts it. A cron is started at least once for
each of its times. If it is started again for one time, because a process died or was paused for longer than
its claim, ``Firing.key`` is the same: a message with that dedupe key is accepted once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from perdure.engine.complete_reads import list_all_partitions
from perdure.engine.queue import crons
from perdure.engine.queue.crons import Cron, CronPage, Due
from perdure.errors import QueueFull
from perdure.model.records import SERVER, Partition
from perdure.model.runs.queue import CRONS, Lane
from perdure.runtime.runtime_context import RuntimeContext
from perdure.runtime.worker.backlog import PAUSES_MAX, Foreign
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


Outcome = Literal["started", "missed", "failed", "disabled", "removed"]


@dataclass(frozen=True, slots=True)
class Fired:
    """Result of a start.

    Attributes:
        after: The cron as it is from then on, with the time after this one; ``None`` if it is removed.
        outcome: The outcome, named by the event ``cron.<outcome>``.
        error: The name of the error's type, if there was one.
        then: Called once the cron has moved on. A message accepted once by ``Firing.key`` must be kept until
            then, as the start may be repeated.
        undo: Removes what was started. Called if the cron was removed meanwhile, as with its user.
    """

    after: Due | None
    outcome: Outcome = "started"
    error: str = ""
    then: Callable[[], None] | None = None
    undo: Callable[[], Awaitable[None]] | None = None


Fire = Callable[[Firing], Awaitable[Fired]]
"""Starts what a cron is for. Called again for the same time after a crash, or at the same time in another
process."""


class CronService:
    """Starts the crons that are due, with the function that ``serve`` sets. Created by ``Worker``."""

    def __init__(self, context: RuntimeContext, dispatch: Dispatch) -> None:
        self._context = context
        self._dispatch = dispatch
        self._fire: Fire | None = None
        self._serves: Callable[[Cron], bool] = lambda cron: True

    def serve(self, fire: Fire, serves: Callable[[Cron], bool]) -> None:
        """From now on start crons with the first function, if the second one returns True for them."""
        self._fire, self._serves = fire, serves

    async def arm(self) -> None:
        """Find the crons that arrived without their queue record, as in a copy of the database."""
        context = self._context
        if self._fire is None:
            return
        for partition in await context.database.arun(list_all_partitions(context.tenant, SERVER)):
            if partition == crons.place(partition.tenant):
                await context.database.arun(crons.arm(partition, context.database.draw_version()))

    async def start_due(self, partition: Partition) -> bool | Foreign:
        """Start the crons of a tenant that are due.

        Returns:
            True if there may be more; ``Foreign`` if due crons are left that this process does not serve.
            These, and those that failed, stay due: none of them keeps another one from its start.

        Raises:
            Exception: The first error of a cron that could not be read or started; the others were started.
        """
        if self._fire is None:
            return Foreign("service", CRONS)
        context = self._context
        now = await context.clock.now()
        first_error: Exception | None = None
        foreign = tried = 0
        async for page in self._read_pages(partition, now):
            first_error = first_error or page.fault
            for cron in page.crons:
                if tried == _PAGE and not foreign and first_error is None:
                    # Other queues have a turn first.
                    return True
                try:
                    if not self._serves(cron):
                        foreign += 1
                    elif cron.claimed_until <= now:
                        tried += 1
                        await self._start(self._fire, cron, partition, now)
                except Exception as error:
                    # A cron that cannot be started must not prevent the start of the others.
                    first_error = first_error or error
        if first_error is None and not foreign:
            return False
        await self._schedule_next(partition, now)
        if first_error is not None:
            raise first_error
        return Foreign("service", CRONS)

    async def _read_pages(
        self, partition: Partition, until: int, since: int | None = None
    ) -> AsyncIterator[CronPage]:
        """Yield the crons that are due until a time, the earliest first, each once."""
        seen = set[str]()
        while True:
            page = await self._context.database.arun(crons.list_by_time(partition, until, _PAGE, since))
            yield page._replace(crons=tuple(cron for cron in page.crons if cron.id not in seen))
            seen.update(cron.id for cron in page.crons)
            since = page.next_since
            if since is None:
                return

    async def _schedule_next(self, partition: Partition, now: int) -> None:
        """Schedule the next cron that this process serves, if it is due before a queue that is put off would
        be served again."""
        until = now + round(PAUSES_MAX * self._context.settings.poll * 1_000_000)
        async for page in self._read_pages(partition, until, now + 1):
            for cron in page.crons:
                # The error of a cron that cannot be read is reported when it is due.
                with suppress(Exception):
                    if cron.due_at is not None and self._serves(cron):
                        self._dispatch.schedule(partition, queue_of(cron.due_at), now)
                        return

    async def _start(self, fire: Fire, cron: Cron, partition: Partition, now: int) -> None:
        """Start a cron unless another process does."""
        context = self._context
        claim = now + context.settings.lease_us
        claimed = await self._replace(partition, cron, Due(cron.body, cron.due_at, claim), now)
        if claimed is None:
            return
        firing = Firing(partition.tenant, claimed, now)
        try:
            fired = await fire(firing)
        except QueueFull:
            # Nothing was started: another try need not wait for the end of the claim.
            await self._replace(partition, claimed, Due(claimed.body, claimed.due_at, now), now)
            raise
        if fired.after is None:
            is_done = await context.database.arun(crons.remove(partition, cron.id))
        else:
            is_done = await self._replace(partition, claimed, fired.after, now) is not None
        if is_done:
            late = now - (cron.due_at or now)
            named = {"tenant": firing.tenant, "cron": cron.id, "late": late, "error": fired.error}
            context.observers.event(f"cron.{fired.outcome}", **named)
            if fired.then is not None:
                fired.then()
        elif fired.undo and await context.database.arun(crons.get(partition, cron.id)) is None:
            await fired.undo()
        if fired.after is not None and fired.after.due_at is not None:
            self._dispatch.schedule(partition, queue_of(fired.after.due_at), now)

    async def _replace(self, partition: Partition, cron: Cron, after: Due, now: int) -> Cron | None:
        """Replace a cron, unless another process or a client has changed it since: then return ``None``."""
        is_same = False

        def alter(held: Cron) -> Due | None:
            nonlocal is_same
            is_same = held.version == cron.version
            if is_same:
                return after
            return None

        fresh = self._context.database.draw_version()
        changed = await self._context.database.arun(crons.change(partition, cron.id, alter, now, fresh))
        if is_same:
            return changed
        return None


def queue_of(due_at: int) -> Lane:
    """Return the queue record for crons of which the first is due at a time."""
    return Lane(CRONS, last=1, since=due_at, ready_at=due_at)
