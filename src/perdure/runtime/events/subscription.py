"""Subscriptions to runs in any process: events come from this process's memory, or from storage.

A subscriber receives each event once and in order, then the run's end. Events of this process are delivered
at once, those of other processes as soon as they are stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from perdure.database import Database
from perdure.engine import events, followers, inbox
from perdure.engine.events import Event
from perdure.engine.inbox import Standing
from perdure.errors import NotFound, PerdureError, SubscriberTooSlow
from perdure.model.records import Partition
from perdure.runtime.clock import DatabaseClock
from perdure.runtime.events.publisher import EventBuffer
from perdure.runtime.notifications import STORED, Notifications
from perdure.runtime.observe import Observers

_LOOK_S = (0.1, 1.0)
"""Seconds between polls of the event log: at first, and at most after polls without a result."""
_IDLE_S = 3.0
"""Maximum of the same for the subscription to a thread, which may be idle for long."""
_FOLLOWED_S = 90.0
"""Seconds until the record that this process follows a thread expires; it is renewed three times as often."""
_UNHEARD_S = 30.0
"""Seconds for which the events of a finished run are held if they had no subscriber and are not stored."""


class Subscriptions:
    """Event buffers of this process, and access to the events that other processes publish."""

    def __init__(
        self, database: Database, signals: Notifications, clock: DatabaseClock, observers: Observers
    ) -> None:
        self._database = database
        self._signals = signals
        self._clock = clock
        self._observers = observers
        self._noted: dict[Partition, float] = {}
        self._renewing: asyncio.Task[None] | None = None
        self._tapes: dict[Partition, EventBuffer] = {}
        self._unheard: dict[tuple[Partition, str], EventBuffer] = {}
        self._waiting: dict[Partition, list[list[EventBuffer]]] = {}

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
        await self._note(partition)
        self._noted[partition] = began
        self._signals.followed(partition)
        if self._renewing is None or self._renewing.done():
            self._renewing = asyncio.create_task(self._renew())

    def forget(self, partition: Partition) -> None:
        """Discard the record of a thread that was removed together with it."""
        if partition in self._noted:
            self._noted[partition] = -_FOLLOWED_S

    def close(self) -> None:
        """Stop the renewal of records."""
        if self._renewing is not None:
            self._renewing.cancel()

    async def _note(self, partition: Partition) -> None:
        until = await self._clock.now() + round(_FOLLOWED_S * 1_000_000)
        await self._database.arun(followers.note(partition, until, self._database.fresh()))

    async def _renew(self) -> None:
        while self._noted:
            await asyncio.sleep(_FOLLOWED_S / 3)
            for partition in [noted for noted in self._noted if noted not in self._waiting]:
                del self._noted[partition]
            await asyncio.gather(*map(self._renew_one, list(self._noted)))

    async def _renew_one(self, partition: Partition) -> None:
        began = asyncio.get_running_loop().time()
        try:
            await self._note(partition)
        except PerdureError as error:
            # The record is valid for two more attempts at its renewal.
            self._observers.event(
                "thread.follow_not_renewed",
                tenant=partition.tenant,
                thread=partition.thread,
                error=type(error).__name__,
            )
        else:
            self._noted[partition] = began

    def opened(self, tape: EventBuffer) -> None:
        """Register the buffer of a run that starts in this process."""
        self._tapes[tape.partition] = tape
        for tapes in self._waiting.get(tape.partition, ()):
            # Subscribers that are behind read finished runs from the log, if they are stored.
            tapes[1:] = [before for before in tapes[1:] if not (before.is_over and before.is_stored)]
            tapes.append(tape)

    def closed(self, tape: EventBuffer, last: Event | None) -> None:
        """Close and unregister a buffer. ``last`` is the end of its run, if the run has ended."""
        tape.over(last)
        if self._tapes.get(tape.partition) is tape:
            del self._tapes[tape.partition]
        if not tape.is_stored and not tape.is_heard:
            # A run can end before the request that started it subscribes.
            key = (tape.partition, tape.run_id)
            self._unheard[key] = tape
            asyncio.get_running_loop().call_later(_UNHEARD_S, self._unheard.pop, key, None)

    def _tape(self, partition: Partition, run_id: str) -> EventBuffer | None:
        tape = self._tapes.get(partition)
        if tape is None or tape.run_id != run_id:
            tape = self._unheard.get((partition, run_id))
        if tape is not None:
            tape.is_heard = True
        return tape

    def changed(self, partition: Partition) -> None:
        """Wake the subscribers of a thread in this process."""
        self._signals.happened(STORED, partition)

    async def latest(self, partition: Partition) -> int:
        """Return the number of the latest event of a thread."""
        tape = self._tapes.get(partition)
        if tape is not None and (held := tape.newest) is not None:
            return held
        return await self._database.arun(events.first_free(partition, 0)) - 1

    async def run(self, partition: Partition, run_id: str, after: int = 0) -> AsyncIterator[Event | Standing]:
        """Yield the events of a run after a number, then the state in which it ended.

        Args:
            partition: The run's thread.
            run_id: The run.
            after: The number of the last event that the caller has; 0 for all.

        Raises:
            NotFound: There is no such run.
            SubscriberTooSlow: The next event is not stored, and not held in memory any more.
        """
        pause, longest = _LOOK_S
        tape: EventBuffer | None = None
        while True:
            news = self._signals.expect(STORED, partition)
            tape = tape or self._tape(partition, run_id)
            if tape is not None:
                found = tape.since(after)
                if found is None and not tape.is_in_log(after):
                    if after >= tape.first:
                        raise _too_slow(tape)
                    after, found = tape.floor, tape.since(tape.floor)
                if found is not None:
                    for event in found:
                        after = event.seq
                        if event.name != events.END:
                            yield event
                    if found:
                        # More events may have been published meanwhile, and the run may have ended.
                        continue
                    if not tape.is_over:
                        await self._signals.wait(news, longest)
                        continue
            begun = tape.first - 1 if tape is not None else None
            tape = None
            # The state is read first: the events of a run that has ended are complete.
            standing = await self._database.arun(inbox.find(partition, run_id))
            page = await self._database.arun(events.read(partition, after, run_id))
            for event in page.events:
                if event.name != events.END:
                    yield event
            if page.after > after:
                after, pause = page.after, _LOOK_S[0]
            if not page.is_last:
                continue
            if standing is None:
                raise NotFound(f"thread {partition.thread!r} has no run {run_id!r}")
            if standing.is_over:
                yield standing
                return
            if begun is not None and after < begun:
                # The stored events of earlier attempts have been read; the rest is in the buffer.
                after = begun
                continue
            await self._signals.wait(news, pause)
            pause = min(longest, pause * 1.5)

    async def thread(self, partition: Partition, after: int) -> AsyncIterator[Event]:
        """Yield the events of all runs of a thread after a number, without end.

        They include the end of each run that streams.

        Raises:
            SubscriberTooSlow: The next event is not stored, and not held in memory any more.
        """
        current = self._tapes.get(partition)
        tapes: list[EventBuffer] = [] if current is None else [current]
        self._waiting.setdefault(partition, []).append(tapes)
        try:
            await self.note(partition)
            pause = _LOOK_S[0]
            while True:
                news = self._signals.expect(STORED, partition)
                tape = tapes[0] if tapes else None
                if tape is not None and (found := tape.since(after)) is not None:
                    is_over = tape.is_over
                    for event in found:
                        after = event.seq
                        yield event
                    if is_over and tapes[0] is tape:
                        del tapes[0]
                    elif not found:
                        await self._signals.wait(news, _LOOK_S[1])
                    pause = _LOOK_S[0]
                    continue
                if tape is not None and after >= tape.first - 1 and not tape.is_in_log(after):
                    if after >= tape.first:
                        raise _too_slow(tape)
                    after = tape.floor
                    continue
                page = await self._database.arun(events.read(partition, after))
                # Events after the start of a run of this process wait until that run's are delivered.
                bound = next((one.first for one in tapes if one.first - 1 > after), None)
                before = after
                for event in page.events:
                    if bound is not None and event.seq >= bound:
                        break
                    after = event.seq
                    yield event
                if bound is not None and (page.is_last or page.after >= bound):
                    after = bound - 1
                    continue
                after = max(after, page.after)
                if after > before:
                    pause = _LOOK_S[0]
                if not page.is_last or (tape is None and tapes):
                    continue
                await self._signals.wait(news, pause)
                pause = _LOOK_S[0] if news.is_set() else min(_IDLE_S, pause * 1.5)
        finally:
            waiting = self._waiting[partition]
            # By identity: the list of another subscriber may be equal.
            waiting[:] = [held for held in waiting if held is not tapes]
            if not waiting:
                del self._waiting[partition]


def _too_slow(tape: EventBuffer) -> SubscriberTooSlow:
    return SubscriberTooSlow(
        f"thread {tape.partition.thread!r}: run {tape.run_id!r} publishes events "
        "faster than they are read, and does not keep them; read the thread's state instead"
    )
