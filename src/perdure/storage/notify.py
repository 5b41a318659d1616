"""Telling other processes that something changed, by way of a server: hints that may be lost, no promises.

A bell has one thread, which owns its connections and is started by the first ring or listener. Nothing that
rings waits for it. Words that are rung closely together leave together, a word that waits already is not
repeated, and while the server is away they are dropped. A bell that listens says a word to itself now and
then: behind a pooler that gives its sessions away it would listen for ever and hear nothing, so it says so.
"""

from __future__ import annotations

import logging
import math
import os
import random
import secrets
import select
import socket
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Protocol

_LOG = logging.getLogger("perdure.storage.notify")

_BETWEEN_S = 0.005
"""At least this long passes between two statements that carry words."""
_WORDS_MOST = 4096
_TEXT_MOST = 7000
"""Bytes of one statement's words; PostgreSQL takes less than 8,000."""
_ECHO = "echo:"
_ECHO_WITHIN_S = 5.0
_ECHO_EVERY_S = 60.0
_IDLE_S = 60.0
"""How long a bell to which nobody listens keeps its connection after the last ring."""
_PAUSES_S = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_CLOSE_WITHIN_S = 2.0
_NEVER = float("inf")

_chance = random.Random()  # noqa: S311 - parts those that lost the line together; a source of its own


class NotificationConnection(Protocol):
    """A bell's way to its server, for its thread alone. Whatever goes wrong is raised; the bell closes it
    then, and opens it again later."""

    def open(self, *, hears: bool) -> None:
        """Connect unless connected, and listen from now on if ``hears``."""
        ...

    def say(self, text: str) -> None:
        """Say something to all that listen, this one among them."""
        ...

    def heard(self, within: float, waker: int) -> list[str]:
        """What was said since the last call. If that is nothing it waits for something ``within`` seconds, or
        until the file ``waker`` can be read."""
        ...

    def close(self) -> None:
        """Let go of the connections; repeatable."""
        ...


class ServerNotifier:
    """A ``Bell`` over a ``NotificationConnection``. ``name`` stands in the log."""

    def __init__(self, wire: NotificationConnection, *, name: str) -> None:
        self._wire = wire
        self._name = name
        self._echo = f"{_ECHO}{secrets.token_hex(8)}"
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._words: dict[str, None] = {}
        self._listeners: dict[object, Callable[[str], None]] = {}
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._hand: socket.socket | None = None
        self._waker: socket.socket | None = None
        # Of the thread alone.
        self._failures = 0
        self._is_deaf = False
        self._unheard_at = _NEVER

    def ring(self, words: Collection[str]) -> None:
        """Tell whoever listens, soon and perhaps never. Words are short and have no spaces."""
        # Before the lock: in a forked child it may be held for ever by a thread that is not there.
        if self._is_gone or not words:
            return
        with self._lock:
            is_known = bool(self._words) and self._thread is not None
            if len(self._words) < _WORDS_MOST:
                self._words.update(dict.fromkeys(words))
            if not is_known:
                self._rouse()

    def listen(self, heard: Callable[[str], None]) -> Callable[[], None]:
        """Call ``heard``, from the bell's thread, for every word that is rung, here or elsewhere, until what
        is returned is called; a word on its way then may still come."""
        if self._is_gone:
            return lambda: None
        key = object()
        with self._lock:
            self._listeners[key] = heard
            self._rouse()

        def stop() -> None:
            if not self._is_gone:
                with self._lock:
                    self._listeners.pop(key, None)

        return stop

    def close(self) -> None:
        """Say what waits to be said if the server is there, and end the thread; repeatable. A thread that is
        just looking for a server that does not answer ends when it has given up on it."""
        if self._is_gone:
            return
        with self._lock:
            self._stop.set()
            self._rouse()
            thread = self._thread
        if thread is not None:
            thread.join(_CLOSE_WITHIN_S)

    @property
    def _is_gone(self) -> bool:
        """Whether this is closed, or a forked child's copy of its parent's."""
        return self._stop.is_set() or os.getpid() != self._process

    def _rouse(self) -> None:
        """Start the thread, or wake it."""
        try:
            if self._thread is None and not self._stop.is_set():
                self._hand, self._waker = socket.socketpair()
                self._hand.setblocking(False)
                self._waker.setblocking(False)
                self._thread = threading.Thread(target=self._work, name="perdure-bell", daemon=True)
                self._thread.start()
            elif self._hand is not None:
                # Where it is full, a wake-up is under way already.
                with suppress(BlockingIOError):
                    self._hand.send(b"!")
        except (OSError, RuntimeError) as error:
            # No file or thread is to be had: whoever rings has other work, which must not fail for that.
            _LOG.warning("%s: no notification could be sent (%s)", self._name, type(error).__name__)

    # The thread

    def _work(self) -> None:
        try:
            while not self._stop.is_set():
                self._rest()
                try:
                    self._attend()
                except Exception as error:
                    # Whatever it is, the next connection may do; nobody else takes this thread's place.
                    self._lost(error)
                finally:
                    self._let_go()
        finally:
            with self._lock:
                for end in (self._hand, self._waker):
                    if end is not None:
                        end.close()
                self._hand = self._waker = None

    def _rest(self) -> None:
        """Wait until there is something to say or somebody who listens."""
        while not (self._stop.is_set() or self._words or self._listeners):
            wait(None, self._woken())
            self._calm()

    def _attend(self) -> None:
        """Carry words to the server and back on one connection, until it is of no more use."""
        hears = bool(self._listeners)
        try:
            self._wire.open(hears=hears)
        except Exception:
            with self._lock:
                self._words.clear()
            raise
        free_at = time.monotonic()
        self._unheard_at = _NEVER
        echo_at = _NEVER if not hears else free_at + _ECHO_EVERY_S if self._is_deaf else free_at
        while hears or not self._listeners:
            now = time.monotonic()
            if now >= echo_at:
                echo_at, self._unheard_at = now + _ECHO_EVERY_S, now + _ECHO_WITHIN_S
                with self._lock:
                    self._words[self._echo] = None
            if self._words and (now >= free_at or self._stop.is_set()):
                self._say()
                free_at = time.monotonic() + _BETWEEN_S
            if self._stop.is_set():
                return
            if now >= self._unheard_at:
                self._note_deaf()
                return
            idle_at = _NEVER if hears else free_at + _IDLE_S
            if now >= idle_at:
                return
            until = min(echo_at, self._unheard_at, free_at if self._words else idle_at)
            within = max(0.0, until - time.monotonic())
            for text in self._wire.heard(within, self._woken()):
                self._tell(text)
            self._calm()

    def _say(self) -> None:
        """Say what waits to be said, as much as one statement carries."""
        with self._lock:
            said: dict[str, None] = {}
            size = 0
            for word in self._words:
                size += len(word) + 1
                if size > _TEXT_MOST and said:
                    break
                said[word] = None
            for word in said:
                del self._words[word]
        try:
            self._wire.say(" ".join(said))
        except Exception:
            with self._lock:
                self._words = {**said, **self._words}
            raise
        if self._failures > 1:
            _LOG.info("%s: notifications are back", self._name)
        self._failures = 0

    def _tell(self, text: str) -> None:
        """Pass on what was heard."""
        for word in text.split():
            if word.startswith(_ECHO):
                if word == self._echo:
                    self._note_echo()
                continue
            for heard in list(self._listeners.values()):
                try:
                    heard(word)
                except Exception:
                    _LOG.exception("%s: a listener failed; the others are told", self._name)

    def _note_echo(self) -> None:
        self._unheard_at = _NEVER
        if self._is_deaf:
            _LOG.info("%s: notifications are heard again", self._name)
        self._is_deaf = False

    def _note_deaf(self) -> None:
        if not self._is_deaf:
            _LOG.warning(
                "%s sends notifications and hears none, not even its own: a pooler may stand between. What "
                "is due is found by polling; name a direct connection in the URL, or turn notifications off "
                "there with notify=off",
                self._name,
            )
        self._is_deaf = True

    def _lost(self, error: Exception) -> None:
        """Note that a connection failed, and pause before the next one."""
        self._failures += 1
        if self._failures == 2:
            _LOG.warning(
                "%s: notifications are away (%s); until they are back, what is due is found by polling",
                self._name,
                type(error).__name__,
            )
        self._let_go()
        pause = _PAUSES_S[min(self._failures, len(_PAUSES_S)) - 1]
        self._stop.wait(pause * (0.5 + _chance.random()))

    def _let_go(self) -> None:
        try:
            self._wire.close()
        except Exception as error:
            _LOG.debug("%s: a connection was not closed in order (%s)", self._name, type(error).__name__)

    def _woken(self) -> int:
        """The file that can be read when somebody wants something of the thread."""
        return -1 if self._waker is None else self._waker.fileno()

    def _calm(self) -> None:
        with suppress(BlockingIOError):
            while self._waker is not None and self._waker.recv(4096):
                pass


def wait(within: float | None, *files: int) -> None:
    """Wait until one of the files can be read, ``within`` seconds at most; closed ones are left out."""
    poll = select.poll()
    for file in files:
        if file >= 0:
            poll.register(file, select.POLLIN)
    poll.poll(None if within is None else math.ceil(1000 * min(within, 86400.0)))
