"""Following a run while it goes on, wherever it is worked on: from this process's memory, or from the log.

Who follows is told each event once and in order, then the run's end. What is told here is told at once; what
another process tells is read when it has been stored.
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
"""How long to wait before the log is looked at again: at first, and when nothing came for a while."""
_IDLE_S = 3.0
"""The same for a whole thread, on which nothing may happen for long."""
_FOLLOWED_S = 90.0
"""How long a process's record that it follows a thread lasts; it is renewed three times as often."""
_UNHEARD_S = 30.0
"""How long what a run told is held here when nobody followed it and it is stored nowhere."""


class Subscriptions:
    """The tapes of this process, and the way to everything that other processes tell."""

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
        """Whether a thread is followed in this process."""
        return partition in self._waiting

    async def note(self, partition: Partition) -> None:
        """Record that a thread is followed here, for as long as it is and some time more: the processes that
        work on its runs store from now on what these tell."""
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
        """A thread was removed, with the record that it is followed."""
        if partition in self._noted:
            self._noted[partition] = -_FOLLOWED_S

    def close(self) -> None:
        """Renew no record any more."""
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
            # It lasts for two more attempts.
            self._observers.event(
                "thread.follow_not_renewed",
                tenant=partition.tenant,
                thread=partition.thread,
                error=type(error).__name__,
            )
        else:
            self._noted[partition] = began

    def opened(self, tape: EventBuffer) -> None:
        """A run of this process begins to tell."""
        self._tapes[tape.partition] = tape
        for tapes in self._waiting.get(tape.partition, ()):
            # What is over and stored is read from the log by who has not come so far.
            tapes[1:] = [before for before in tapes[1:] if not (before.is_over and before.is_stored)]
            tapes.append(tape)

    def closed(self, tape: EventBuffer, last: Event | None) -> None:
        """It tells no more; ``last`` is its end, if it has ended."""
        tape.over(last)
        if self._tapes.get(tape.partition) is tape:
            del self._tapes[tape.partition]
        if not tape.is_stored and not tape.is_heard:
            # A run can be over before the request that began it comes to follow it.
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
        """There is something new of a thread, in this process."""
        self._signals.happened(STORED, partition)

    async def latest(self, partition: Partition) -> int:
        """The number of what was told last on a thread."""
        tape = self._tapes.get(partition)
        if tape is not None and (held := tape.newest) is not None:
            return held
        return await self._database.arun(events.first_free(partition, 0)) - 1

    async def run(self, partition: Partition, run_id: str, after: int = 0) -> AsyncIterator[Event | Standing]:
        """What a run tells after a number, then where it stands when it has ended. ``NotFound`` when there is
        no such run; ``SubscriberTooSlow`` when what comes next is held here and not any more."""
        pause, longest = _LOOK_S
        tape: EventBuffer | None = None
        while True:
            news = self._signals.expect(STORED, partition)
            tape = tape or self._tape(partition, run_id)
            if tape is not None:
                told = tape.since(after)
                if told is None and not tape.is_in_log(after):
                    if after >= tape.first:
                        raise _too_slow(tape)
                    after, told = tape.floor, tape.since(tape.floor)
                if told is not None:
                    for event in told:
                        after = event.seq
                        if event.name != events.END:
                            yield event
                    if told:
                        # While that was taken more may have been told, and the run may have ended.
                        continue
                    if not tape.is_over:
                        await self._signals.wait(news, longest)
                        continue
            begun = tape.first - 1 if tape is not None else None
            tape = None
            # First where it stands, then what it told: what comes after its end was told before it.
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
                # What earlier attempts stored has been read; the rest is on the tape.
                after = begun
                continue
            await self._signals.wait(news, pause)
            pause = min(longest, pause * 1.5)

    async def thread(self, partition: Partition, after: int) -> AsyncIterator[Event]:
        """What is told on a thread after a number, by whichever run, with the ends of those that are told
        about; without an end. ``SubscriberTooSlow`` when what comes next was held here and is not any
        more."""
        current = self._tapes.get(partition)
        tapes: list[EventBuffer] = [] if current is None else [current]
        self._waiting.setdefault(partition, []).append(tapes)
        try:
            await self.note(partition)
            pause = _LOOK_S[0]
            while True:
                news = self._signals.expect(STORED, partition)
                tape = tapes[0] if tapes else None
                if tape is not None and (told := tape.since(after)) is not None:
                    is_over = tape.is_over
                    for event in told:
                        after = event.seq
                        yield event
                    if is_over and tapes[0] is tape:
                        del tapes[0]
                    elif not told:
                        await self._signals.wait(news, _LOOK_S[1])
                    pause = _LOOK_S[0]
                    continue
                if tape is not None and after >= tape.first - 1 and not tape.is_in_log(after):
                    if after >= tape.first:
                        raise _too_slow(tape)
                    after = tape.floor
                    continue
                page = await self._database.arun(events.read(partition, after))
                # What comes behind the beginning of a run of this process waits until that was told.
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
            # By what it is: another follower's list may hold the same.
            waiting[:] = [held for held in waiting if held is not tapes]
            if not waiting:
                del self._waiting[partition]


def _too_slow(tape: EventBuffer) -> SubscriberTooSlow:
    return SubscriberTooSlow(
        f"thread {tape.partition.thread!r}: run {tape.run_id!r} tells faster than it is followed, and what "
        "it tells is not kept; read the thread's state instead"
    )
