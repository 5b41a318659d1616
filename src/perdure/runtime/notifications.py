"""What the runtimes on one database tell each other at once, where it has a bell: something is due, a run is
to be stopped, a run has ended, an event is stored, a thread is followed.

These are hints. A word that is lost costs the time until the next look, and whoever hears one looks for
himself. A word names a thread by a digest, a keyed one where the database is encrypted: whoever listens to
the server learns that something happens, and not to whom.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from weakref import WeakValueDictionary

from perdure.database import Database
from perdure.model.records import Partition
from perdure.runtime.jitter import spread

DUE = "in"
"""A lane of the tenant is due now, and whoever says so does not see to it."""
STOP = "stop"
"""A run of the thread is to be ended."""
ENDED = "run"
"""A run of the thread has ended; what it told is stored."""
STORED = "ev"
"""Events of the thread are stored."""
FOLLOWED = "fo"
"""The thread has come to be followed by a process."""

_SOON_S = 0.02
_LATEST_S = 0.25


class Notifications:
    """What one runtime tells, and hears; for its event loop alone. ``tenant`` is whose lanes are its to work
    on, ``None`` for everybody's. Without a bell it serves those of one process."""

    def __init__(self, database: Database, tenant: str | None) -> None:
        self._database = database
        self._expected: WeakValueDictionary[str, asyncio.Event] = WeakValueDictionary()
        self._later: dict[Partition, asyncio.TimerHandle] = {}
        self._due: Callable[[], None] = _nobody
        self._asked: Callable[[Callable[[Partition], bool]], None] = _nobody
        self._followed: Callable[[Callable[[Partition], bool]], None] = _nobody
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: Callable[[], None] = _nobody
        self._lock = threading.Lock()
        self._heard: set[str] = set()
        # Kept: a thread is named anew by every event that it stores.
        self._word = lru_cache(maxsize=4096)(lambda kind, *names: f"{kind}:{database.alias(*names)}")
        self._own_due = None if tenant is None else self._word(DUE, tenant)

    # Telling

    def due(self, partition: Partition, delay: float = 0.0) -> None:
        """A lane of a thread is due in ``delay`` seconds, and this runtime does not see to it. It is told
        when that time has come, by what was said last of it."""
        if delay <= 0:
            self._database.ring(self._word(DUE, partition.tenant))
            return
        if (timer := self._later.get(partition)) is not None:
            timer.cancel()
        self._later[partition] = asyncio.get_running_loop().call_later(delay, self._due_now, partition)

    def stop(self, partition: Partition) -> None:
        """A run of a thread is to be ended; another process may be at work on it."""
        self._database.ring(self._of(STOP, partition))

    def ended(self, partition: Partition) -> None:
        """A run of a thread has ended."""
        self._tell(ENDED, partition)

    def stored(self, partition: Partition) -> None:
        """Events of a thread are stored."""
        self._tell(STORED, partition)

    def followed(self, partition: Partition) -> None:
        """A thread has come to be followed here; another process may be at work on its run."""
        self._database.ring(self._of(FOLLOWED, partition))

    def happened(self, kind: str, partition: Partition) -> None:
        """As if a word had been heard, for this process alone."""
        self._set(self._of(kind, partition))

    # Hearing

    async def wait(self, event: asyncio.Event, within: float) -> None:
        """Wait for what is expected, ``within`` seconds at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                await event.wait()

    def listen(self) -> None:
        """Hear from now on what other processes tell; repeatable."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._stop = self._database.listen(self._come)

    def serve(
        self,
        due: Callable[[], None],
        asked: Callable[[Callable[[Partition], bool]], None],
        followed: Callable[[Callable[[Partition], bool]], None],
    ) -> None:
        """Call ``due`` when something may be due, ``asked`` when a run may be to be ended, and ``followed``
        when threads have come to be followed: the last two are given a test of which threads are meant."""
        self._due, self._asked, self._followed = due, asked, followed
        self.listen()

    def expect(self, kind: str, partition: Partition) -> asyncio.Event:
        """What is set by the next word of a kind, ``ENDED`` or ``STORED``, about a thread. Hold it, then
        look, then wait for it, so that nothing falls between; and not for ever, since words are lost."""
        self.listen()
        word = self._of(kind, partition)
        event = self._expected.get(word)
        if event is None:
            event = self._expected[word] = asyncio.Event()
        return event

    def close(self) -> None:
        """Hear no more, and take back what was to be told later."""
        self._stop()
        self._due = self._asked = self._followed = _nobody
        for timer in self._later.values():
            timer.cancel()
        self._later.clear()

    def _due_now(self, partition: Partition) -> None:
        del self._later[partition]
        self.due(partition)

    def _tell(self, kind: str, partition: Partition) -> None:
        word = self._of(kind, partition)
        self._database.ring(word)
        self._set(word)

    def _of(self, kind: str, partition: Partition) -> str:
        return self._word(kind, partition.tenant, partition.thread)

    def _come(self, word: str) -> None:
        """A word, in a thread of the database's."""
        with self._lock:
            is_first = not self._heard
            self._heard.add(word)
        if is_first and self._loop is not None:
            # A loop that was closed meanwhile has nobody left to tell.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._dispatch)

    def _dispatch(self) -> None:
        with self._lock:
            words, self._heard = self._heard, set()
        for word in words:
            kind = word.partition(":")[0]
            if kind == DUE and self._own_due in (None, word):
                self._due()
            elif kind in (ENDED, STORED):
                self._set(word)
        if any(word.startswith(f"{STOP}:") for word in words):
            self._asked(lambda partition: self._of(STOP, partition) in words)
        if any(word.startswith(f"{FOLLOWED}:") for word in words):
            self._followed(lambda partition: self._of(FOLLOWED, partition) in words)

    def _set(self, word: str) -> None:
        kind, _, thread = word.partition(":")
        for meant in (word, f"{STORED}:{thread}") if kind == ENDED else (word,):
            if (event := self._expected.pop(meant, None)) is not None:
                event.set()


class PollDelay:
    """When a worker looks that heard of something due: soon, but not at once with all others, and later each
    time that it came too late, so that those who find something come first."""

    def __init__(self, look: Callable[[], None]) -> None:
        self._look = look
        self._spread = _SOON_S
        self._next_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._is_summoned = False

    def heard(self) -> None:
        """Something may be due."""
        if self._timer is not None:
            return
        loop = asyncio.get_running_loop()
        pause = max(spread() * self._spread, self._next_at - loop.time())
        self._timer = loop.call_later(pause, self._go)

    def looked(self, *, in_vain: bool) -> None:
        """What a look came to, on a summons or not."""
        if self._is_summoned:
            self._is_summoned = False
            self._spread = min(2 * self._spread, _LATEST_S) if in_vain else _SOON_S

    def cancel(self) -> None:
        """Do not look for what was heard so far."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _go(self) -> None:
        self._timer = None
        self._next_at = asyncio.get_running_loop().time() + _SOON_S
        self._is_summoned = True
        self._look()


def _nobody(*_: object) -> None:
    """Who hears what nobody listens to."""
