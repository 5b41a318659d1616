"""Leases of the runs under way in this process: their renewal, and what their records ask for meanwhile.

The record of a lease says whether the run is to stop, and whether messages wait that it may take while it
is under way.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from perdure.engine.queue import runs
from perdure.engine.queue.runs import Ending, HeldRun
from perdure.errors import Fenced, PerdureError
from perdure.model.records import Partition
from perdure.runtime.nodes.lease_check import LeaseCheck
from perdure.runtime.nodes.steering import Steering
from perdure.runtime.runtime_context import RuntimeContext

LOST = "lost"
"""Cancellation reason of a run that another worker may hold."""
DELETED = "deleted"
"""Cancellation reason of a run whose thread was deleted: no record of it is left to end."""


@dataclass(slots=True, eq=False)
class Working:
    """Run under way in this process.

    Attributes:
        held: The run, with its lease.
        steering: The messages that it takes up while it is under way.
        task: The attempt at it.
        confirmed_at: The time (``time.monotonic``) from which its lease lasts for its full length, at least.
        how: The reason for its cancellation: stopped, past its deadline, lost, or drained.
        is_lost: True once it is known that this process may not hold it any more, whatever came first.
        asked: Done when the run is cancelled.
        renewal: The latest regular renewal of its lease.
    """

    held: HeldRun
    steering: Steering
    task: asyncio.Task[Ending]
    confirmed_at: float
    how: str = ""
    is_lost: bool = False
    asked: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    renewal: asyncio.Task[None] | None = None

    def cancel(self, how: str) -> None:
        """Cancel the run; the first reason counts."""
        self.is_lost = self.is_lost or how in (LOST, DELETED)
        self.how = self.how or how
        if not self.asked.done():
            self.asked.set_result(None)
        self.halt()

    def halt(self) -> None:
        """Cancel the attempt, unless it has ended. A node may ignore that: no step, and no recorded side
        effect, begins after it."""
        if self.task.cancel():
            self.steering.control.is_stopped = True


@dataclass(slots=True, eq=False)
class Starting:
    """Requests for a run of this process that arrive between its claim and its start.

    Attributes:
        run_id: The run.
        how: The reason to end it, as in ``Working``.
        has_message: True if a message waits that the run may take.
        is_asked: True if another process may have asked it to stop.
        is_followed: True if another process follows its thread.
        over: The epoch of its thread before the claim, if that is known.
    """

    run_id: str
    how: str = ""
    has_message: bool = False
    is_asked: bool = False
    is_followed: bool = False
    over: int | None = None


class Leases:
    """Runs under way by their threads, and their leases. Created by ``Runner``."""

    def __init__(self, context: RuntimeContext) -> None:
        self._database = context.database
        self._settings = context.settings
        self._clock = context.clock
        self._observers = context.observers
        self._renewing: set[asyncio.Task[None]] = set()
        self.working: dict[Partition, Working] = {}
        self.starting: dict[Partition, Starting] = {}

    def get_earlier_epoch(self, partition: Partition) -> int | None:
        """Return the epoch that a thread had before its starting run was claimed, if that is known."""
        starting = self.starting.get(partition)
        if starting is None:
            return None
        return starting.over

    def is_confirmed(self, held: HeldRun) -> bool:
        """Return True if this process works on a run, and its lease certainly lasts. Otherwise another one
        may have taken the run: this process was frozen, the database does not answer, or this attempt at the
        run is over. A later attempt here has a lease of its own."""
        return self._lasts(self._find(held))

    def _lasts(self, working: Working | None) -> bool:
        return working is not None and time.monotonic() - working.confirmed_at <= self._settings.lease

    def _find(self, held: HeldRun) -> Working | None:
        """Return the attempt under way at a run, ``None`` if it is over or lost. The thread may have another
        run by now, or the run another attempt."""
        working = self.working.get(held.partition)
        if working is None or working.is_lost or working.held.epoch != held.epoch:
            return None
        return working

    def confirmed_at(self, held: HeldRun) -> float:
        """Return the time (``time.monotonic``) from which a run's lease lasts for its full length, by the
        lease's record: the answer to the claim may have come much later."""
        left_us = (held.lane.lease_until or 0) - self._clock.estimate()
        return time.monotonic() - self._settings.lease + left_us / 1_000_000

    def check(self, held: HeldRun) -> LeaseCheck:
        """Return the check of the lease of a run."""
        return LeaseCheck(
            partial(self._may_begin, held), partial(self._confirm, held), partial(self._confirm_here, held)
        )

    def _may_begin(self, held: HeldRun) -> bool:
        working = self._find(held)
        return working is not None and not working.steering.control.is_stopped and self._lasts(working)

    def _confirm(self, held: HeldRun) -> Coroutine[Any, Any, None]:
        """Return what renews the lease of a run; raise ``Fenced`` here and now if this process has lost the
        run, or its attempt at it is over."""
        return self._renew_or_raise(held, self._require(held))

    async def _renew_or_raise(self, held: HeldRun, working: Working) -> None:
        await self._renew(working)
        self._require(held)

    def _confirm_here(self, held: HeldRun) -> None:
        """Renew the lease of a run as ``_confirm`` does, blocking the event loop as the node does that calls
        this on it."""
        working = self._require(held)
        asked_at = time.monotonic()
        renewal = runs.renew(working.held, self._clock.estimate(), self._settings.lease_us)
        working.held = working.held._replace(lane=self._database.run(renewal).lane)
        working.confirmed_at = asked_at

    def _require(self, held: HeldRun) -> Working:
        working = self._find(held)
        if working is None or working.steering.control.is_stopped:
            raise Fenced(
                f"thread {held.partition.thread!r}: this process does not hold run {held.run.id!r} under "
                f"epoch {held.epoch} any more, or has stopped it; no side effect and no step begins here"
            )
        return working

    async def keep_renewing(self) -> None:
        """Renew the leases of all runs under way, three times per lease duration. Each is renewed by itself,
        so that a renewal that the database does not answer delays no other."""
        while True:
            await asyncio.sleep(self._settings.lease / 3)
            for working in self.working.values():
                if working.renewal is None or working.renewal.done():
                    working.renewal = self._start_soon(self._renew(working))

    def renew_now(self, is_meant: Callable[[Partition], bool]) -> None:
        """Renew the leases of some threads' runs now: another process may have asked them to stop, and the
        lease's record says so."""
        for working in self.working.values():
            if is_meant(working.held.partition):
                self._start_soon(self._renew(working))
        for partition, starting in self.starting.items():
            starting.is_asked = starting.is_asked or is_meant(partition)

    def register(self, working: Working) -> None:
        """Register a run that is under way, and do what was asked for since its claim."""
        partition = working.held.partition
        starting = self.starting.pop(partition, Starting(working.held.run.id))
        self.working[partition] = working
        if working.held.lane.pending or starting.has_message:
            working.steering.first_look = self._start_soon(self._check_for_messages(working))
        if starting.is_asked:
            self._start_soon(self._renew(working))
        if starting.how:
            working.cancel(starting.how)

    def run_of(self, partition: Partition) -> str | None:
        """Return the id of the run of a thread that this process works on, or is about to."""
        if (starting := self.starting.get(partition)) is not None:
            return starting.run_id
        working = self.working.get(partition)
        if working is None:
            return None
        return working.held.run.id

    async def _renew(self, working: Working) -> None:
        asked_at = time.monotonic()
        try:
            now = await self._clock.now()
            renewed = await self._database.arun(runs.renew(working.held, now, self._settings.lease_us))
            working.held = working.held._replace(lane=renewed.lane)
        except Fenced:
            working.cancel(LOST)
        except PerdureError as error:
            self._emit("run.not_renewed", working.held, error=type(error).__name__)
            if not self.is_confirmed(working.held):
                # Another worker may hold the lease by now, and writes of this run would be refused.
                working.cancel(LOST)
        else:
            working.confirmed_at = asked_at
            if working.held.lane.stop is not None:
                working.cancel(working.held.lane.stop)
            elif working.held.lane.pending:
                self.notify_of_message(working.held.partition)

    def notify_of_message(self, partition: Partition) -> bool:
        """Look for messages that a run of this process may take while it is under way. Return True if this
        process has a run of the thread."""
        if (starting := self.starting.get(partition)) is not None:
            starting.has_message = True
            return True
        working = self.working.get(partition)
        if working is None:
            return False
        self._start_soon(self._check_for_messages(working))
        return True

    async def _check_for_messages(self, working: Working) -> None:
        try:
            await working.steering.check_for_messages()
        except Fenced:
            working.cancel(LOST)
        except PerdureError as error:
            # The next renewal of the lease looks again; at the run's end the messages become the next run.
            self._emit("run.not_steered", working.held, error=type(error).__name__)

    def _start_soon(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._renewing.add(task)
        task.add_done_callback(self._renewing.discard)
        return task

    def _emit(self, name: str, held: HeldRun, **fields: Any) -> None:
        self._observers.event(name, **fields_of(held), **fields)


def fields_of(held: HeldRun) -> dict[str, Any]:
    """Return the fields of a run in events."""
    return {
        "tenant": held.partition.tenant,
        "thread": held.partition.thread,
        "run": held.run.id,
        "graph": held.run.graph,
        "attempts": held.run.attempts,
    }
