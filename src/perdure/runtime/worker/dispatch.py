"""Dispatch of due queues: polled from the database, and scheduled directly when this process makes one due.

A process serves each queue only once at a time, as many queues as its settings allow, and tenants in turn. A
run that waits for another run shares its slot with that run: otherwise waiting runs could take all slots from
the runs that they wait for.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar

from perdure.errors import Unavailable
from perdure.model.records import Partition
from perdure.model.runs.queue import IN, Lane
from perdure.runtime.contained_exits import contain, create_contained_task
from perdure.runtime.jitter import spread
from perdure.runtime.notifications import ENDED, PollDelay
from perdure.runtime.runtime_context import RuntimeContext
from perdure.runtime.worker.backlog import Backlog, Failing, Foreign, Limited, Reason
from perdure.runtime.worker.credential_reports import CredentialReports
from perdure.runtime.worker.fairness import Due

_STALE_S = 1.0
"""Seconds for which the result of a poll is used before the next poll."""
_EARLY_S = 0.001
"""Seconds by which a timer is set later than a queue is due: uvloop rounds to milliseconds, and a queue that
is served before it is due would wait for the next poll."""
_CANCEL_WAIT_S = 10.0
"""Maximum seconds to wait for work that was asked to release what it holds."""
_REPORTED_EVERY_S = 60.0
"""Minimum seconds between two warnings of the same graph, channel or error."""

T = TypeVar("T")
Serve = Callable[[Partition], Awaitable[bool | Foreign | Limited | None]]
"""Serves a queue of a thread. Returns True if there is more to do, ``None`` if there was nothing, or the
reason why the queue is for another worker or has to wait."""

_SERVED: ContextVar[tuple[Dispatch, Due] | None] = ContextVar("served_queue", default=None)
"""Queue that is served in this context, after the dispatch that serves it."""


def copy_context_outside() -> Context:
    """Return a copy of the context, without the served queue, for a task that a run begins and does not wait
    for."""
    context = copy_context()
    context.run(_SERVED.set, None)
    return context


class Dispatch:
    """Serves the due queues of a database until it is stopped. Created by ``Worker``, which provides a
    function for each kind of queue."""

    def __init__(self, context: RuntimeContext) -> None:
        self._settings = context.settings
        self._clock = context.clock
        self._observers = context.observers
        self._notifications = context.notifications
        self._works = context.works
        self._backlog = Backlog(context.database, context.tenant, context.settings.poll)
        self._credentials = CredentialReports(context.database, context.observers)
        self._reported: dict[Reason, int] = {}
        self._logged: dict[Reason, tuple[float, int]] = {}
        self._work: Mapping[str, Serve] = {}
        self._waits_for_calls = False
        self._serving: dict[Due, asyncio.Task[Any]] = {}
        self._to_serve_again: set[Due] = set()
        """Queues that became due while they were served."""
        self._reserved: set[Due] = set()
        self._claimed_meanwhile: set[Due] = set()
        """Queues that ``serve_reserved`` was called for while they were served."""
        self._awaited: dict[Due, Counter[Partition]] = {}
        """Threads for whose runs the run of a queue waits."""
        self._timers: set[asyncio.Handle] = set()
        self._wake = asyncio.Event()
        self._context = copy_context()
        self.is_stopping = False
        self.summons = PollDelay(self._wake.set)

    def start(self, work: Mapping[str, Serve], *, waits_for_calls: bool = False) -> None:
        """Serve queues by their name from now on, in the context of the caller.

        Args:
            work: The function for each kind of queue.
            waits_for_calls: Serve queues only in calls of ``serve``, and begin nothing outside of them.
        """
        self._work = work
        self._waits_for_calls = waits_for_calls
        self._context = copy_context()
        self.is_stopping = False

    def stop(self) -> None:
        """Stop starting work."""
        self.is_stopping = True
        self.summons.cancel()
        self._wake.set()
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    async def wait_until_idle(self, within: float) -> int:
        """Wait at most ``within`` seconds until no queue is served, and return how many still are."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                # A queue that was claimed while it was served is served again, also by a worker that stops.
                while self._serving:
                    await asyncio.wait(set(self._serving.values()))
        return len(self._serving)

    async def wait_until_served(self, within: float) -> bool:
        """Wait at most ``within`` seconds until every queue that is known to be due has been served. Return
        True if it has."""
        try:
            async with asyncio.timeout(within):
                while self._serving or self._backlog:
                    if self._serving:
                        await asyncio.wait(set(self._serving.values()), return_when=asyncio.FIRST_COMPLETED)
                    # Queues that follow a served one are added by its task's callback.
                    await asyncio.sleep(0)
                    self._fill()
        except TimeoutError:
            return False
        return True

    async def serve_all(self, within: float) -> bool:
        """Serve what is due in the database until nothing is, at most ``within`` seconds. Return True if
        nothing is left that can be tried now."""
        try:
            async with asyncio.timeout(within):
                while True:
                    await self._poll()
                    if not self._serving and not self._backlog:
                        return True
                    await self.wait_until_served(within)
        except TimeoutError:
            return False

    async def serve(
        self, due: Due, give_up: Callable[[], None], within: float | None
    ) -> bool | Foreign | Limited | None:
        """Serve a queue now, and wait for it.

        If the queue is being served already, wait until that has ended, and then serve it.

        Args:
            due: The queue.
            give_up: Called after ``within`` seconds, to release what this call has under way.
            within: Seconds to wait at most.

        Returns:
            The result of the queue's function.

        Raises:
            TimeoutError: It took longer; what was under way is released.
            PerdureError: The error that stopped it.
        """
        loop = asyncio.get_running_loop()
        until = None if within is None else loop.time() + within
        while (other := self._serving.get(due)) is not None:
            await asyncio.wait([other], timeout=within)
            await asyncio.sleep(0)
            within = None
            if until is not None:
                within = max(0.0, until - loop.time())
            if within == 0.0 and due in self._serving:
                raise TimeoutError
        serving: asyncio.Task[bool | Foreign | Limited | None] = asyncio.ensure_future(
            self._work[due[1]](due[0])
        )
        mark = self._serving[due] = asyncio.create_task(asyncio.wait([serving]))
        try:
            await asyncio.wait([serving], timeout=within)
            if not serving.done():
                give_up()
                await asyncio.wait([serving], timeout=_CANCEL_WAIT_S)
                serving.cancel()
                raise TimeoutError
            return await serving
        except asyncio.CancelledError:
            give_up()
            await asyncio.wait([serving], timeout=_CANCEL_WAIT_S)
            raise
        finally:
            mark.cancel()
            self._end_serving(due)

    def schedule(self, partition: Partition, lane: Lane, now: int, *, is_known_free: bool = True) -> None:
        """Schedule a queue whose due time is known, without a poll of the database.

        Args:
            partition: The thread.
            lane: The record of its queue.
            now: The time of the database, in microseconds.
            is_known_free: False if the queue may have a holder: then it is served when the holder's lease
                ends.
        """
        if self.is_stopping or lane.due_at is None or (is_known_free and lane.owner is not None):
            return
        due = (partition, lane.name)
        delay = (lane.due_at - now) / 1_000_000
        if delay <= 0:
            self.serve_soon(due)
        else:
            self.serve_later(due, delay)

    def schedule_anywhere(self, partition: Partition, lane: Lane, now: int) -> None:
        """Schedule a queue as ``schedule`` does. If this process leaves the work to others, notify them at
        that time."""
        if self._works:
            self.schedule(partition, lane, now)
        elif lane.due_at is not None and lane.owner is None:
            self._notifications.notify_due(partition, (lane.due_at - now) / 1_000_000)

    def serve_later(self, due: Due, delay: float) -> None:
        """Serve a queue in ``delay`` seconds, as soon as there is a free slot then."""
        if self.is_stopping or self._waits_for_calls:
            return

        def serve() -> None:
            self._timers.discard(timer)
            self.serve_soon(due)

        timer = asyncio.get_running_loop().call_later(delay + _EARLY_S, serve)
        self._timers.add(timer)

    def is_served(self, due: Due) -> bool:
        """Return True if this process serves a queue now."""
        return due in self._serving

    def will_serve(self, partition: Partition) -> bool:
        """Return True if this process works on a thread's inbox, or will once it has a slot. Those who wait
        for a run of the thread are woken at the end of that work."""
        due = partition, IN
        is_waiting = not self.is_stopping and (due in self._backlog or due in self._to_serve_again)
        return is_waiting or due in self._serving

    @property
    def waiting_count(self) -> int:
        """The number of queues that wait for a slot of this process."""
        return self._backlog.waiting_count

    def reserve(self, due: Due) -> bool:
        """Reserve a slot for a queue that the caller is about to claim, until ``serve_reserved`` or
        ``release``. Return False if no slot is free, or the queue is served already."""
        if self.is_stopping or not self._work or due in self._reserved:
            return False
        # A served queue leaves its slot in the next round of the event loop.
        if (serving := self._serving.get(due)) is not None and not serving.done():
            return False
        if not self._has_slot(due):
            return False
        self._reserved.add(due)
        return True

    def release(self, due: Due) -> None:
        """Give a reserved slot back."""
        self._reserved.discard(due)
        if self._backlog:
            self._wake.set()

    def serve_reserved(self, due: Due) -> None:
        """Serve a queue in its reserved slot: the caller has claimed it."""
        self._reserved.discard(due)
        if due in self._serving:
            self._claimed_meanwhile.add(due)
        else:
            self._serve(due)

    def admit(self, due: Due) -> bool:
        """Serve a queue for whose run a limit leaves room now. Return False if there is no slot for it: it is
        served once there is one, and has to ask the limit again."""
        if self.is_stopping or not self._work or self._waits_for_calls:
            return self._waits_for_calls
        if due in self._serving:
            self._to_serve_again.add(due)
            return True
        if not self._has_slot(due):
            self._backlog.add(due)
            return False
        self._serve(due)
        return True

    def serve_soon(self, due: Due) -> None:
        """Serve a queue as soon as there is a free slot."""
        if self.is_stopping:
            return
        if self._waits_for_calls:
            # The call looks at all queues of its thread before it returns.
            return
        if not self._work:
            # A runtime that was not entered accepts messages, too; the next worker finds them.
            self._notifications.notify_due(due[0])
        elif due in self._serving:
            self._to_serve_again.add(due)
        elif self._has_slot(due):
            self._serve(due)
        else:
            self._backlog.add(due)
            self._notifications.notify_due(due[0])

    @contextmanager
    def share_slot(self, awaited: Partition) -> Iterator[None]:
        """During the block, let the run of the thread ``awaited`` share the slot of the run that calls this
        and waits for it. Outside of runs this does nothing."""
        served = _SERVED.get()
        if (
            served is None
            or served[0] is not self
            or served[1][0] == awaited
            or served[1] not in self._serving
        ):
            yield
            return
        due = served[1]
        threads = self._awaited.setdefault(due, Counter())
        threads[awaited] += 1
        self._fill_shared()
        if self._backlog and self._free_slots > 0:
            self._wake.set()
        try:
            yield
        finally:
            threads[awaited] -= 1
            if threads[awaited] <= 0:
                del threads[awaited]
            if not threads and self._awaited.get(due) is threads:
                del self._awaited[due]

    def share_slot_during(self, awaited: Partition, items: AsyncIterator[T]) -> AsyncIterator[T]:
        """Return ``items``, which follow a thread's run; while they are read, ``share_slot`` with that
        run."""
        if _SERVED.get() is None:
            return items
        return self._follow_sharing(awaited, items)

    async def _follow_sharing(self, awaited: Partition, items: AsyncIterator[T]) -> AsyncIterator[T]:
        with self.share_slot(awaited):
            async for item in items:
                yield item

    def _is_shared(self, threads: Counter[Partition]) -> bool:
        return any((thread, name) in self._serving for thread in threads for name in self._work)

    def _has_slot(self, due: Due) -> bool:
        most = self._settings.per_tenant
        if self._free_slots > 0 and (most is None or self._count_running()[due[0].tenant] < most):
            return True
        return any(due[0] in threads and not self._is_shared(threads) for threads in self._awaited.values())

    @property
    def _free_slots(self) -> int:
        """Number of queues that may be served beside those that are served now."""
        taken = len(self._serving) + len(self._reserved)
        return self._settings.concurrency - taken + sum(map(self._is_shared, self._awaited.values()))

    def _count_running(self) -> Counter[str]:
        running = Counter(partition.tenant for partition, _ in (*self._serving, *self._reserved))
        running.subtract(due[0].tenant for due, threads in self._awaited.items() if self._is_shared(threads))
        return running

    def _serve(self, due: Due) -> None:
        # The caller may be within a request or another run, whose context is not this run's.
        task = create_contained_task(self._serve_turns(due), self._context.copy())
        self._serving[due] = task
        task.add_done_callback(lambda _: self._note_done(due))

    def _note_done(self, due: Due) -> None:
        was_full = self._free_slots <= 0
        if self._end_serving(due) or self.is_stopping:
            return
        if due in self._to_serve_again:
            self._to_serve_again.discard(due)
            self._backlog.add(due)
        elif due[1] == IN:
            # Another process may have taken the message whose run is awaited here.
            self._notifications.notify_here(ENDED, due[0])
        is_fresh = asyncio.get_running_loop().time() - self._backlog.looked_at < _STALE_S
        if is_fresh:
            self._fill()
        else:
            self._fill_shared()
        if self._free_slots > 0 and (was_full or (self._backlog and not is_fresh)):
            self._wake.set()

    def _end_serving(self, due: Due) -> bool:
        """Note that a queue is not served any more. Return True if it is served again because it was claimed
        meanwhile: a worker that stops does that, too, to release the claim."""
        del self._serving[due]
        self._awaited.pop(due, None)
        is_claimed = due in self._claimed_meanwhile
        if is_claimed:
            self._claimed_meanwhile.discard(due)
            self._serve(due)
        return is_claimed

    async def run(self) -> None:
        """Poll for due queues until it is cancelled or stopped."""
        while not self.is_stopping:
            self._wake.clear()
            pause = self._settings.poll * (0.75 + 0.5 * spread())
            try:
                await self._poll()
            except Unavailable as error:
                self._observers.event("worker.unavailable", error=type(error).__name__)
            except Exception as error:
                # The next poll may succeed; a worker that stopped polling would fail silently.
                self._observers.event("worker.error", error=type(error).__name__)
            try:
                async with asyncio.timeout(pause):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _poll(self) -> None:
        self._credentials.report()
        slots = self._free_slots
        if slots <= 0 and not self._awaited:
            return
        now, time = await self._clock.now(), asyncio.get_running_loop().time()
        ready = await self._backlog.read_due(now, time, self._serving, slots)
        self._report(time)
        self._fill()
        due_at = self._backlog.next_due_at
        self.summons.note_look(
            in_vain=not ready, due_in=None if due_at is None else (due_at - now) / 1_000_000
        )

    def _fill(self) -> None:
        """Serve known due queues while there are free slots, tenants in turn."""
        self._fill_shared()
        slots = self._free_slots
        if self.is_stopping or slots <= 0 or not self._backlog:
            return
        for item in self._backlog.take(self._count_running(), slots, self._settings.per_tenant):
            if item not in self._serving:
                self._serve(item)
            else:
                self._to_serve_again.add(item)

    def _fill_shared(self) -> None:
        """Serve known due queues for whose runs other runs wait, in the slots of those."""
        if self.is_stopping or not self._backlog:
            return
        for threads in self._awaited.values():
            dues = [(thread, name) for thread in threads for name in self._work]
            waiting = next((due for due in dues if due in self._backlog), None)
            if waiting is not None and not self._is_shared(threads):
                self._backlog.take_one(waiting)
                self._serve(waiting)

    def _report(self, time: float) -> None:
        """Emit how many threads wait for a graph or channel that this worker does not serve, and how many
        queues fail with which error: the count whenever it changes, a warning for each at most every
        ``_REPORTED_EVERY_S`` seconds."""
        for reason, threads in self._backlog.counts.items():
            fields: dict[str, Any]
            if isinstance(reason, Foreign):
                warning, count = "worker.unserved", "worker.unserved_threads"
                fields = {reason.what: reason.name, "threads": threads}
            elif isinstance(reason, Limited):
                warning, count = "limit.full", "limit.waiting_runs"
                fields = {"limit": reason.limit, "threads": threads}
            else:
                warning, count = "worker.failing", "worker.failing_threads"
                fields = {"lane": reason.lane, "error": reason.error, "threads": threads}
            if threads != self._reported.get(reason, 0):
                self._reported[reason] = threads
                self._observers.event(count, **fields)
            logged_at, logged = self._logged.get(reason, (-math.inf, 0))
            if threads not in (0, logged) and time >= logged_at + _REPORTED_EVERY_S:
                self._logged[reason] = time, threads
                self._observers.event(warning, **fields)

    # One queue

    async def _serve_turns(self, due: Due) -> None:
        partition, name = due
        _SERVED.set((self, due))
        time = asyncio.get_running_loop().time
        try:
            more = await contain(self._work[name](partition))
            was_useful = isinstance(more, bool)
            while more is True and not self.is_stopping:
                if self._backlog:
                    # Others wait: this queue gets another turn later.
                    self._to_serve_again.add(due)
                    break
                more = await contain(self._work[name](partition))
        except Unavailable as error:
            self._observers.event("worker.unavailable", error=type(error).__name__)
            self._backlog.postpone(due, time(), failed=True)
        except Exception as error:
            # Other queues are served on; this one is retried with backoff.
            self._observers.thread_event("worker.error", partition, error=type(error).__name__)
            self._backlog.postpone(due, time(), Failing(name, type(error).__name__), failed=True)
        else:
            if was_useful:
                self._backlog.note_served(due)
            else:
                self._backlog.postpone(due, time(), None if isinstance(more, bool) else more)
