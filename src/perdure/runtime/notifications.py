"""Notifications between the runtimes on one database, if it supports them.

Their subjects: a queue is due, a run has to stop or has ended, an event is stored, a thread is followed. They
are hints: a lost one costs the time until the next poll, and each receiver reads the database itself. A
notification names a thread by a digest, a keyed one if the database is encrypted, so that a listener on the
server learns that something happens, but not to whom.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from weakref import WeakValueDictionary

from perdure.database.handle import DatabaseHandle
from perdure.model.records import Partition
from perdure.runtime.jitter import spread

DUE = "in"
"""A queue of the tenant is due now, and the sender does not serve it."""
STOP = "stop"
"""A run of the thread has to stop."""
ENDED = "run"
"""A run of the thread has ended; its events are stored."""
STORED = "ev"
"""Events of the thread are stored."""
FOLLOWED = "fo"
"""A process began to follow the thread."""

SELDOM_S = 10.0
"""Seconds between polls for events that occur in this process: it is always notified of them."""
_SOON_S = 0.02
_LATEST_S = 0.25


class Wakeup:
    """A notification that is awaited, set once; for one event loop. Cheaper than an event with a timeout: a
    stream waits for each of its tokens."""

    __slots__ = ("__weakref__", "_waiting", "is_set")

    def __init__(self) -> None:
        self.is_set = False
        self._waiting: list[asyncio.Future[None]] = []

    def set(self) -> None:
        """Wake all that wait, now and later."""
        self.is_set = True
        for waiter in self._waiting:
            _wake(waiter)

    async def wait(self, within: float) -> None:
        """Wait until it is set, at most ``within`` seconds."""
        if self.is_set:
            return
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiting.append(waiter)
        timer = loop.call_later(within, _wake, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            self._waiting.remove(waiter)


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class Notifications:
    """Notifications that one runtime sends and receives; for use from its event loop. The
    runtime is notified of the due queues of ``tenant``, or with ``None`` of all tenants. Without support by
    the database notifications reach this process only."""

    def __init__(self, database: DatabaseHandle, tenant: str | None) -> None:
        self._database = database
        self._expected: WeakValueDictionary[str, Wakeup] = WeakValueDictionary()
        self._due_timers: dict[Partition, asyncio.TimerHandle] = {}
        self._on_due: Callable[[], None] = _ignore
        self._on_asked: Callable[[Callable[[Partition], bool]], None] = _ignore
        self._on_followed: Callable[[Callable[[Partition], bool]], None] = _ignore
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop_listening: Callable[[], None] = _ignore
        self._lock = threading.Lock()
        self._heard: set[str] = set()
        # Cached, as each stored event of a thread computes its digest.
        self._make_word = lru_cache(maxsize=4096)(lambda kind, *names: f"{kind}:{database.alias(*names)}")
        self._own_due = None
        if tenant is not None:
            self._own_due = self._make_word(DUE, tenant)

    # Sending

    def notify_due(self, partition: Partition, delay: float = 0.0) -> None:
        """Notify that a queue of a thread is due in ``delay`` seconds and this runtime does not serve it. The
        notification is sent at that time; a later call for the thread replaces it."""
        if delay <= 0:
            self._database.notify(self._make_word(DUE, partition.tenant))
            return
        if (timer := self._due_timers.get(partition)) is not None:
            timer.cancel()
        self._due_timers[partition] = asyncio.get_running_loop().call_later(
            delay, self._notify_due_now, partition
        )

    def notify(self, kind: str, partition: Partition) -> None:
        """Notify other processes, and those who wait in this one, of what happened to a thread."""
        word = self._make_thread_word(kind, partition)
        self._database.notify(word)
        self._wake_expected(word)

    def notify_here(self, kind: str, partition: Partition) -> None:
        """Act as if a notification had been received, in this process only."""
        self._wake_expected(self._make_thread_word(kind, partition))

    # Receiving

    def listen(self) -> None:
        """Receive notifications from other processes from now on; idempotent."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._stop_listening = self._database.listen(self._take_notification)

    def serve(
        self,
        due: Callable[[], None],
        asked: Callable[[Callable[[Partition], bool]], None],
        followed: Callable[[Callable[[Partition], bool]], None],
    ) -> None:
        """Set the callbacks of a worker and listen.

        Args:
            due: Called when a queue may be due.
            asked: Called when runs may have to stop, with a predicate for the threads concerned.
            followed: Called when threads are followed, with a predicate for the threads concerned.
        """
        self._on_due, self._on_asked, self._on_followed = due, asked, followed
        self.listen()

    def expect(self, kind: str, partition: Partition) -> Wakeup:
        """Return a signal that the next notification of a kind, ``ENDED`` or ``STORED``, about a thread sets.
        Get it first, then read the database, then wait for it, so that none is missed; and with a timeout, as
        notifications can be lost."""
        self.listen()
        word = self._make_thread_word(kind, partition)
        signal = self._expected.get(word)
        if signal is None:
            signal = self._expected[word] = Wakeup()
        return signal

    def close(self) -> None:
        """Stop receiving, and cancel delayed notifications."""
        self._stop_listening()
        self._on_due = self._on_asked = self._on_followed = _ignore
        for timer in self._due_timers.values():
            timer.cancel()
        self._due_timers.clear()

    def _notify_due_now(self, partition: Partition) -> None:
        del self._due_timers[partition]
        self.notify_due(partition)

    def _make_thread_word(self, kind: str, partition: Partition) -> str:
        return self._make_word(kind, partition.tenant, partition.thread)

    def _take_notification(self, word: str) -> None:
        """Receive a notification in an OS thread of the database."""
        with self._lock:
            is_first = not self._heard
            self._heard.add(word)
        if is_first and self._loop is not None:
            # The loop may have been closed meanwhile.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._dispatch)

    def _dispatch(self) -> None:
        with self._lock:
            words, self._heard = self._heard, set()
        for word in words:
            kind = word.partition(":")[0]
            if kind == DUE and self._own_due in (None, word):
                self._on_due()
            elif kind in (ENDED, STORED):
                self._wake_expected(word)
        if any(word.startswith(f"{STOP}:") for word in words):
            self._on_asked(lambda partition: self._make_thread_word(STOP, partition) in words)
        if any(word.startswith(f"{FOLLOWED}:") for word in words):
            self._on_followed(lambda partition: self._make_thread_word(FOLLOWED, partition) in words)

    def _wake_expected(self, word: str) -> None:
        if (signal := self._expected.pop(word, None)) is not None:
            signal.set()
        kind, _, thread = word.partition(":")
        if kind == ENDED:
            self._wake_expected(f"{STORED}:{thread}")


class PollDelay:
    """Delay between a notification that a queue is due and the worker's poll: random, so that not all workers
    poll at once, and longer each time that the poll found nothing, so that workers with successful polls come
    first."""

    def __init__(self, look: Callable[[], None]) -> None:
        self._poll = look
        self._spread = _SOON_S
        self._next_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._is_summoned = False

    def schedule_now(self) -> None:
        """Schedule a poll after a notification."""
        self._schedule(0.0)

    def note_look(self, *, in_vain: bool, due_in: float | None = None) -> None:
        """Adapt the delay to the result of a poll, whatever caused it.

        Args:
            in_vain: True if the poll found nothing to do.
            due_in: Seconds until the next queue is due, if that is soon. A notification may have been about
                that queue, so there is another poll at that time.
        """
        if self._is_summoned:
            self._is_summoned = False
            if in_vain:
                self._spread = min(2 * self._spread, _LATEST_S)
            else:
                self._spread = _SOON_S
            if due_in is not None:
                self._schedule(due_in)

    def cancel(self) -> None:
        """Cancel the scheduled poll."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self, at_least: float) -> None:
        if self._timer is not None:
            return
        loop = asyncio.get_running_loop()
        pause = max(at_least, spread() * self._spread, self._next_at - loop.time())
        self._timer = loop.call_later(pause, self._poll_now)

    def _poll_now(self) -> None:
        self._timer = None
        self._next_at = asyncio.get_running_loop().time() + _SOON_S
        self._is_summoned = True
        self._poll()


def _ignore(*_: object) -> None:
    """No-op callback."""
