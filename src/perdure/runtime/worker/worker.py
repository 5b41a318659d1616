"""Worker: serves the due queues of a database, each kind in its own way, until it drains."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Mapping
from typing import Any

from perdure.engine import limits
from perdure.engine.queue import events, scheduled, subscribers, waits
from perdure.engine.transact import Budget
from perdure.errors import Conflict, NotFound, Unavailable
from perdure.model.ops import Fetch, Get
from perdure.model.program import ask
from perdure.model.records import LANE, Partition
from perdure.model.runs.queue import CRONS, EVENTS, FOLLOWED, IN, LATER, LIMITS, OUT, WAITS, Lane
from perdure.runtime.runtime_context import RuntimeContext
from perdure.runtime.tickets import make_id
from perdure.runtime.worker.backlog import Foreign, Limited
from perdure.runtime.worker.cron_service import CronService
from perdure.runtime.worker.delivery import Channel, Delivery
from perdure.runtime.worker.dispatch import Dispatch
from perdure.runtime.worker.runner import CANCEL_WAIT_S, Runner

_MARGIN_US = 50_000
_AGAIN_US = 1_000_000
_LIMITED_S = 0.1
"""Seconds after which a call that works on a thread looks again whether a limit leaves room for its run."""
_OF_THREAD = (IN, OUT, LATER, WAITS)
"""Queues that are served until a thread is idle."""


class Worker:
    """Works on the due queues of a database until it is stopped. Created and run by ``Runtime``, which
    schedules due queues through ``dispatch`` and asks ``runner`` about runs."""

    def __init__(self, context: RuntimeContext, channels: Mapping[str, Channel]) -> None:
        self._context = context
        self._database = context.database
        self._delivery = Delivery(context, channels)
        self._loops: list[asyncio.Task[None]] = []
        self.dispatch = Dispatch(context)
        self.runner = Runner(context, self.dispatch, channels)
        self.crons = CronService(context, self.dispatch)
        self.beginning: set[asyncio.Task[Any]] = set()
        """Tasks that store and claim a message, and whose callers may leave before they end."""
        self._ending: dict[Partition, asyncio.Task[None]] = {}
        self.is_resumed = False
        """True if this process only works on messages that it accepts, and does not poll."""

    @property
    def was_started(self) -> bool:
        """True once the worker has been started, also after ``drain``."""
        return bool(self._loops)

    def start(self, *, polls: bool = True) -> None:
        """Start to renew leases and to receive notifications, and to poll unless ``polls`` is false. May be
        called again, also after ``drain``."""
        for loop in self._loops:
            loop.cancel()
        self._prepare()
        self._loops = [asyncio.create_task(self.runner.leases.keep_renewing())]
        if polls:
            self._loops.append(asyncio.create_task(self.dispatch.run()))
        runner = self.runner
        self._context.notifications.serve(
            self.dispatch.summons.schedule_now, runner.leases.renew_now, runner.buffers.start_storing
        )
        self._context.subscriptions.serve(self.dispatch.will_serve)

    def _prepare(self, *, waits_for_calls: bool = False) -> None:
        self._context.observers.start()
        self.dispatch.start(
            {
                IN: self.runner.run_next,
                OUT: self._delivery.deliver,
                LATER: self._bring,
                WAITS: self._wake,
                EVENTS: self._forget_events,
                FOLLOWED: self._forget_follower,
                CRONS: self.crons.start_due,
                LIMITS: self._forget_limit,
            },
            waits_for_calls=waits_for_calls,
        )

    @property
    def _budget(self) -> Budget:
        most = self._database.limits
        return Budget(most.ops, most.bytes)

    async def _read_inbox(self, partition: Partition) -> tuple[Lane, int]:
        """Return the record of a thread's inbox, and the time."""
        now = await self._context.clock.now()
        (found,) = await self._database.arun(ask(Fetch(partition, (Get(LANE, (IN,)),))))
        return Lane.read(IN, found), now

    async def watch(self, partition: Partition) -> None:
        """Serve a thread's inbox when it is due, even if that is not before the lease of another process
        ends."""
        lane, now = await self._read_inbox(partition)
        if lane.lease_until is not None:
            # A timer may fire a little early, and nothing would look again.
            lane = lane._replace(lease_until=lane.lease_until + _MARGIN_US)
        self.dispatch.schedule(partition, lane, now, is_known_free=False)

    def end_stopped(self, partition: Partition) -> None:
        """End the thread's run, which was stopped, once no process holds it. A process that works on the
        run ends it sooner."""
        if partition not in self._ending:
            task = self._ending[partition] = asyncio.create_task(self._end_stopped(partition))
            task.add_done_callback(lambda _: self._ending.pop(partition, None))

    async def _end_stopped(self, partition: Partition) -> None:
        while True:
            wait = _MARGIN_US
            try:
                lane, now = await self._read_inbox(partition)
                if lane.run_id is None or lane.stop is None:
                    return
                if lane.is_due(now):
                    await self.runner.end_stopped(partition)
                elif lane.due_at is not None:
                    wait += lane.due_at - now
            except (Unavailable, Conflict) as error:
                self._context.observers.thread_event("worker.error", partition, error=type(error).__name__)
                wait = _AGAIN_US
            await asyncio.sleep(wait / 1_000_000)

    async def leave_stopped(self) -> None:
        """Leave the runs that were stopped to other processes."""
        for task in (ending := list(self._ending.values())):
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)

    async def serve_until_idle(self, partition: Partition, within: float | None) -> int | None:
        """Serve a thread's queues until none of them is due; see ``Runtime.run_until_idle``. Return the time
        at which the next one is due, in microseconds, if any."""
        loop = asyncio.get_running_loop()
        until = None if within is None else loop.time() + within
        self._prepare(waits_for_calls=True)
        beat = asyncio.create_task(self.runner.leases.keep_renewing())
        try:
            while True:
                now = await self._context.clock.now()
                gets = tuple(Get(LANE, (name,)) for name in _OF_THREAD)
                found = await self._database.arun(ask(Fetch(partition, gets)))
                lanes = [Lane.read(name, one) for name, one in zip(_OF_THREAD, found, strict=True)]
                # If another call in this process serves a queue, wait for it.
                ready = [
                    lane
                    for lane in lanes
                    if lane.is_due(now) or self.dispatch.is_served((partition, lane.name))
                ]
                time_left = None
                if until is not None:
                    time_left = max(0.0, until - loop.time())
                is_limited = False
                for lane in ready:
                    give_up = functools.partial(self.runner.release, partition)
                    done = await self.dispatch.serve((partition, lane.name), give_up, time_left)
                    if isinstance(done, Foreign):
                        raise NotFound(
                            f"thread {partition.thread!r}: its next work is for the {done.what} "
                            f"{done.name!r}, which this runtime does not have"
                        )
                    is_limited |= isinstance(done, Limited)
                if is_limited and not time_left:
                    return now + _AGAIN_US
                if is_limited:
                    await asyncio.sleep(_LIMITED_S)
                if ready:
                    continue
                next_due_at = min((lane.due_at for lane in lanes if lane.due_at is not None), default=None)
                if next_due_at is None or time_left is None or (next_due_at - now) / 1_000_000 >= time_left:
                    return next_due_at
                await asyncio.sleep(max(0.01, (next_due_at - now) / 1_000_000))
        finally:
            beat.cancel()
            if self.runner.limits is not None:
                self.runner.limits.drop(partition)
            await self.runner.activity.flush_if_due()

    async def drain(self, within: float) -> None:
        """Claim nothing more, let current work continue for ``within`` seconds, then release the rest, which
        is due for other workers at once. A run that ignores its cancellation is left behind; it is due when
        its lease expires, and can store nothing after that. If the caller is cancelled while it waits, the
        rest is released at once, and the cancellation is passed on."""
        self.dispatch.stop()
        if self.runner.limits is not None:
            self.runner.limits.close()
        for loop in self._loops[1:]:
            loop.cancel()
        try:
            await self.dispatch.wait_until_idle(within)
        finally:
            # Also if the caller is cancelled: a run left here would keep its lease for ever.
            await self._release_rest()

    async def _release_rest(self) -> None:
        """Release what is under way, and end everything that ``start`` began."""
        try:
            behind = await self.dispatch.wait_until_idle(0)
            if behind:
                self.runner.hand_over()
                # A run that ignores its cancellation is released after the first half.
                behind = await self.dispatch.wait_until_idle(2 * CANCEL_WAIT_S)
            if self.beginning:
                # These tasks release what they have claimed, or have it served if the claim is in doubt.
                await asyncio.wait(set(self.beginning), timeout=CANCEL_WAIT_S)
                behind = await self.dispatch.wait_until_idle(CANCEL_WAIT_S)
            if behind:
                self._context.observers.event("worker.left_behind", runs=behind)
        finally:
            for loop in self._loops:
                loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        await self.runner.conversations.close()
        await self.runner.excuses.close()
        await self.runner.activity.close()

    async def _bring(self, partition: Partition) -> bool:
        """Move scheduled messages that are due into the inbox. Return True if there are more."""
        now = await self._context.clock.now()
        brought = await self._database.arun(
            scheduled.bring(partition, now, self._budget, self._database.draw_version())
        )
        for name in brought.unreadable:
            self._context.observers.thread_event("message.unreadable", partition, message=name)
        self._context.queues.forget(partition)
        self.dispatch.serve_soon((partition, IN))
        return brought.has_more

    async def _wake(self, partition: Partition) -> bool | None:
        """Do what is due for a thread's waits: answer what has expired, bring a signal that came early, send
        reminders. Return True if there may be more, ``None`` if nothing was due."""
        context, emit = self._context, self._context.observers.thread_event
        wake = waits.Wake(
            partition,
            await context.clock.now(),
            round(context.settings.keep_events * 1_000_000),
            self._database.draw_version(),
            self._budget,
            make_id,
            functools.partial(self.runner.graphs.read_asked, partition),
        )
        woken = await self._database.arun(wake.run())
        if woken.message is not None:
            about = {"message": woken.message.id, "graph": woken.message.graph}
            if woken.signal is None:
                emit("wait.expired", partition, **about, waits=woken.expired)
            else:
                emit("signal.delivered", partition, **about, signal=woken.signal)
            context.queues.forget(partition)
            context.subscriptions.wake(partition)
            self.dispatch.serve_soon((partition, IN))
        for name in woken.unfit:
            emit("signal.too_large", partition, signal=name)
        if woken.reminded:
            emit("question.reminded", partition, questions=woken.reminded)
            context.subscriptions.wake(partition)
        if woken.has_replies:
            self.dispatch.serve_soon((partition, OUT))
        if woken.reminded:
            # One commit may not have room for all reminders.
            return True
        if woken.message is None:
            return None
        return False

    async def _forget_events(self, partition: Partition) -> bool:
        """Remove expired events of a thread. Return True if there are more."""
        keep = round(self._context.settings.keep_events * 1_000_000)
        now = await self._context.clock.now()
        return await self._database.arun(events.forget(partition, now, keep, self._budget))

    async def _forget_limit(self, partition: Partition) -> bool:
        """Remove the state of a limit's key that is not used any more. Return True if there is more to do."""
        return await self._database.arun(limits.forget(partition, await self._context.clock.now()))

    async def _forget_follower(self, partition: Partition) -> bool:
        """Remove the record that a thread is followed once it has expired. Return True if there is more to
        do."""
        return await self._database.arun(subscribers.forget(partition, await self._context.clock.now()))
