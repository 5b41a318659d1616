"""Subscriptions to runs in any process: events come from this process's memory, or from storage.

A subscriber receives each event once and in order, then the run's end. Events of this process are delivered
at once, those of other processes as soon as they are stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable

from perdure.database.handle import DatabaseHandle
from perdure.engine.queue import events, inbox, subscribers
from perdure.engine.queue.events import Event
from perdure.engine.queue.inbox import Standing
from perdure.engine.queue.runs import compute_closed_epoch
from perdure.errors import NotFound, PerdureError, SubscriberTooSlow
from perdure.model.bounded_cache import BoundedCache
from perdure.model.records import Partition
from perdure.runtime.clock import DatabaseClock
from perdure.runtime.events.publisher import Ended, EventBuffer
from perdure.runtime.notifications import FOLLOWED, SELDOM_S, STORED, Notifications
from perdure.runtime.observers import Observers

_POLL_S = (0.1, 1.0)
"""Seconds between polls of the event log: at first, and at most after polls without a result."""
_IDLE_S = 3.0
"""Maximum of these seconds for the subscription to a thread, which may be idle for long."""
_FOLLOWED_S = 90.0
"""Seconds until the record that this process follows a thread expires; it is renewed three times as often."""
_UNHEARD_S = 30.0
"""Seconds for which the events of a finished run are held if they had no subscriber and are not stored."""

_FREE_MOST = 4096
"""Maximum number of threads whose next event number is remembered."""


class Subscriptions:
    """Event buffers of this process, and access to the events that other processes publish."""

    def __init__(
        self, database: DatabaseHandle, signals: Notifications, clock: DatabaseClock, observers: Observers
    ) -> None:
        self._database = database
        self._signals = signals
        self._clock = clock
        self._observers = observers
        self._noted: dict[Partition, float] = {}
        self._renewing: asyncio.Task[None] | None = None
        self._buffers: dict[Partition, EventBuffer] = {}
        self._unheard: dict[tuple[Partition, str], EventBuffer] = {}
        self._waiting: dict[Partition, list[list[EventBuffer]]] = {}
        """For each subscriber of a thread the buffers that it still has to read."""
        self._will_serve: Callable[[Partition], bool] = lambda _: False
        self._next_numbers: BoundedCache[Partition, tuple[int, int]] = BoundedCache(_FREE_MOST)

    def serve(self, will_serve: Callable[[Partition], bool]) -> None:
        """Set the function of a worker that returns True for a thread on which this process works, or will
        once it has a slot. The events of such a thread are polled for seldom."""
        self._will_serve = will_serve

    def is_followed(self, partition: Partition) -> bool:
        """Return True if a thread is followed in this process."""
        return partition in self._waiting

    async def note(self, partition: Partition) -> None:
        """Record that this process follows a thread, until some time after it stops doing so. Processes that
        work on the thread's runs store their events from now on."""
        time = asyncio.get_running_loop().time
        if (noted_at := self._noted.get(partition)) is not None and time() - noted_at < _FOLLOWED_S / 3:
            return
        began = time()
        await self._database.arun(subscribers.note(partition, *await self._make_terms()))
        self._noted[partition] = began
        self._signals.notify(FOLLOWED, partition)
        if self._renewing is None or self._renewing.done():
            self._renewing = asyncio.create_task(self._renew())

    def forget(self, partition: Partition) -> None:
        """Note that a thread was removed, and with it the record that this process follows it. Subscribers
        stay, as of a thread that does not exist yet."""
        if partition in self._noted:
            self._noted[partition] = -_FOLLOWED_S

    def close(self) -> None:
        """Stop the renewal of records."""
        if self._renewing is not None:
            self._renewing.cancel()

    async def _make_terms(self) -> tuple[int, int]:
        """Return the time until which a record is valid, and a version for it."""
        until = await self._clock.now() + round(_FOLLOWED_S * 1_000_000)
        return until, self._database.draw_version()

    async def _renew(self) -> None:
        while self._noted:
            await asyncio.sleep(_FOLLOWED_S / 3)
            for partition in [noted for noted in self._noted if noted not in self._waiting]:
                del self._noted[partition]
            await asyncio.gather(*map(self._renew_one, list(self._noted)))

    async def _renew_one(self, partition: Partition) -> None:
        began = asyncio.get_running_loop().time()
        try:
            is_stored = await self._database.arun(subscribers.renew(partition, *await self._make_terms()))
        except PerdureError as error:
            # The record is valid for two more attempts at its renewal.
            self._observers.thread_event("thread.follow_not_renewed", partition, error=type(error).__name__)
        else:
            if is_stored:
                self._noted[partition] = began
            else:
                self.forget(partition)

    def find_first_free(self, partition: Partition, now: int, over: int | None) -> int | None:
        """Return the number from which a run may number its events, if this process knows it: the run is the
        first of its thread, or the run before it ended here.

        Args:
            partition: The run's thread.
            now: The current time in microseconds.
            over: The thread's epoch when the run was claimed, 0 if it had none, None if it is not known.
        """
        epoch, free = self._next_numbers.get(partition, (0, 0))
        # Only the holder of a run numbers events, and there was no holder in between.
        if over is not None and over in (0, epoch):
            return max(now, free if over else 0)
        return None

    def register(self, buffer: EventBuffer) -> None:
        """Register the buffer of a run that starts in this process."""
        self._buffers[buffer.partition] = buffer
        for buffers in self._waiting.get(buffer.partition, ()):
            # Subscribers that are behind read finished runs from the log, if they are stored.
            buffers[1:] = [before for before in buffers[1:] if not (before.is_over and before.is_stored)]
            buffers.append(buffer)
        self.wake(buffer.partition)

    def unregister(self, buffer: EventBuffer, last: Event | None, ended: Ended | None = None) -> None:
        """Close and unregister a buffer. ``last`` is the end of its run, if the run has ended, and ``ended``
        the state of the run's message then."""
        buffer.ended = ended
        buffer.close(last)
        if last is not None:
            self._next_numbers[buffer.partition] = compute_closed_epoch(buffer.epoch), last.seq + 1
        if self._buffers.get(buffer.partition) is buffer:
            del self._buffers[buffer.partition]
        if not buffer.is_stored and not buffer.is_heard:
            # A run can end before the request that started it subscribes.
            key = (buffer.partition, buffer.run_id)
            self._unheard[key] = buffer
            asyncio.get_running_loop().call_later(_UNHEARD_S, self._unheard.pop, key, None)

    def _find_buffer(self, partition: Partition, run_id: str) -> EventBuffer | None:
        buffer = self._buffers.get(partition)
        if buffer is None or buffer.run_id != run_id:
            buffer = self._unheard.get((partition, run_id))
        if buffer is not None:
            buffer.is_heard = True
        return buffer

    def wake(self, partition: Partition) -> None:
        """Wake the subscribers of a thread in this process."""
        self._signals.notify_here(STORED, partition)

    async def latest(self, partition: Partition) -> int:
        """Return the number of the latest event of a thread."""
        buffer = self._buffers.get(partition)
        if buffer is not None and (held := buffer.newest) is not None:
            return held
        return await self._database.arun(events.find_first_free(partition, 0)) - 1

    async def follow_run(
        self, partition: Partition, run_id: str, after: int = 0
    ) -> AsyncIterator[Event | Standing]:
        """Yield the events of a run after a number, then the state in which it ended: an ``Ended`` if it
        ended in this process while it was followed here.

        Args:
            partition: The run's thread.
            run_id: The run, or a message that is to steer: the events are those of the run that takes it.
            after: The number of the last event that the caller has; 0 for all.

        Raises:
            NotFound: There is no such run.
            SubscriberTooSlow: The next event is not stored, and not held in memory any more.
        """
        pause, longest = _POLL_S
        buffer: EventBuffer | None = None
        finished: EventBuffer | None = None
        while True:
            buffer = buffer or self._find_buffer(partition, run_id)
            if buffer is not None:
                after, found = _read_held(buffer, after)
                if found is not None:
                    for event in _without_end(found):
                        yield event
                    if found:
                        # More events may have been published meanwhile, and the run may have ended.
                        after = found[-1].seq
                        continue
                    if not buffer.is_over:
                        await buffer.wait_for_more(after)
                        continue
                    if buffer.ended is not None and buffer.run_id == run_id:
                        yield buffer.ended
                        return
            news = self._signals.expect(STORED, partition)
            buffer_start = buffer.first - 1 if buffer is not None else None
            finished, buffer = buffer or finished, None
            # The state is read before the events, so that those of a run that has ended are complete.
            standing = await self._database.arun(inbox.find(partition, run_id))
            if run_id != (run_id := _find_run_id(standing, run_id)):
                continue
            page = await self._database.arun(events.read(partition, after, run_id))
            for event in _without_end(page.events):
                yield event
            if page.after > after:
                after, pause = page.after, _POLL_S[0]
            if not page.is_last:
                continue
            state = _require_standing(standing, partition, run_id)
            if state.is_over:
                new_buffer = self._find_buffer(partition, run_id)
                if new_buffer is not None and new_buffer is not finished:
                    # The run began and ended here while its state was read.
                    buffer = new_buffer
                    continue
                yield state
                return
            if buffer_start is not None and after < buffer_start:
                # The stored events of earlier attempts have been read; the rest is in the buffer.
                after = buffer_start
                continue
            await news.wait(SELDOM_S if self._will_serve(partition) else pause)
            pause = min(longest, pause * 1.5)

    async def follow_thread(self, partition: Partition, after: int) -> AsyncIterator[Event]:
        """Yield the events of all runs of a thread after a number, without end.

        They include the end of each run that streams.

        Raises:
            SubscriberTooSlow: The next event is not stored, and not held in memory any more.
        """
        current = self._buffers.get(partition)
        buffers: list[EventBuffer] = [] if current is None else [current]
        self._waiting.setdefault(partition, []).append(buffers)
        try:
            await self.note(partition)
            pause = _POLL_S[0]
            while True:
                news = self._signals.expect(STORED, partition)
                buffer = next(iter(buffers), None)
                if buffer is not None and (found := buffer.list_after(after)) is not None:
                    is_over = buffer.is_over
                    for event in found:
                        after = event.seq
                        yield event
                    if not found and is_over and buffers[0] is buffer:
                        del buffers[0]
                    elif not found:
                        await news.wait(_POLL_S[1])
                    pause = _POLL_S[0]
                    continue
                if buffer is not None and after >= buffer.first - 1 and not buffer.is_in_log(after):
                    if after >= buffer.first:
                        raise _too_slow_error(buffer)
                    after = buffer.floor
                    continue
                page = await self._database.arun(events.read(partition, after))
                # Read up to the start of the next run of this process: its events come from its buffer.
                next_start = next((each.first for each in buffers if each.first - 1 > after), None)
                before = after
                for event in page.events:
                    if next_start is not None and event.seq >= next_start:
                        break
                    after = event.seq
                    yield event
                if next_start is not None and (page.is_last or page.after >= next_start):
                    after = next_start - 1
                    continue
                after = max(after, page.after)
                if after > before:
                    pause = _POLL_S[0]
                if not page.is_last or (buffer is None and buffers):
                    continue
                await news.wait(pause)
                pause = _POLL_S[0] if news.is_set else min(_IDLE_S, pause * 1.5)
        finally:
            waiting = self._waiting[partition]
            # By identity: the list of another subscriber may be equal.
            waiting[:] = [held for held in waiting if held is not buffers]
            if not waiting:
                del self._waiting[partition]


def _without_end(found: Iterable[Event]) -> list[Event]:
    return [event for event in found if event.name != events.END]


def _require_standing(standing: Standing | None, partition: Partition, run_id: str) -> Standing:
    if standing is None:
        raise NotFound(f"thread {partition.thread!r} has no run {run_id!r}")
    return standing


def _find_run_id(standing: Standing | None, run_id: str) -> str:
    """Return the id of the run whose events belong to a message: that of the open run that has taken the
    message up, if one has."""
    if standing is None or standing.run is None:
        return run_id
    return standing.run.id


def _read_held(buffer: EventBuffer, after: int) -> tuple[int, list[Event] | None]:
    """Return the events that a buffer holds after a number, and the number that they follow: a later
    number if the events in between were neither stored nor published. ``None`` if they have to be read from
    the log.

    Raises:
        SubscriberTooSlow: The next event is neither stored nor held any more.
    """
    found = buffer.list_after(after)
    if found is not None or buffer.is_in_log(after):
        return after, found
    if after >= buffer.first:
        raise _too_slow_error(buffer)
    return buffer.floor, buffer.list_after(buffer.floor)


def _too_slow_error(buffer: EventBuffer) -> SubscriberTooSlow:
    return SubscriberTooSlow(
        f"thread {buffer.partition.thread!r}: run {buffer.run_id!r} publishes events "
        "faster than they are read, and does not keep them; read the thread's state instead"
    )
