"""Notifications between processes by way of a server: hints that may be lost, no guarantees.

A notifier has one OS thread, which owns its connections and is started by the first notification or listener.
Senders never wait for it. Words that are sent closely together share a statement, a word that is pending
already is not repeated, and while the server is unavailable words are dropped. A notifier with listeners
sends itself a word, its echo, from time to time. If it does not receive the echo, e.g. behind a pooler that
shares its sessions, it logs a warning. Other notifiers with listeners receive the echo, too, and answer the
first one with their own. So each knows whether there are others. As long as there are none, words do not
leave the process.
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
"""The least seconds between two statements that carry words."""
_WORDS_MOST = 4096
_TEXT_MOST = 7000
"""Maximum number of bytes of one statement's words; PostgreSQL takes less than 8,000."""
_ECHO = "echo:"
_ECHO_WITHIN_S = 5.0
_ECHO_EVERY_S = 60.0
_ANSWERED_WITHIN_S = 2.0
"""Seconds after which other notifiers with listeners have answered an echo."""
_GONE_AFTER_S = 150.0
"""Seconds without an echo of another notifier after which it is taken to have ended."""
_IDLE_S = 60.0
"""Seconds for which a notifier without listeners keeps its connection after the last word."""
_PAUSES_S = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_CLOSE_WITHIN_S = 2.0
_NEVER = float("inf")

_chance = random.Random()  # noqa: S311 - jitter between processes that lost the server together


class NotificationConnection(Protocol):
    """A notifier's connection to its server, used by its thread only. Every failure is raised; the notifier
    then closes the connection, and opens it again later."""

    def open(self, *, listens: bool) -> None:
        """Connect unless connected, and subscribe if ``listens``."""
        ...

    def send(self, text: str) -> None:
        """Send text to all subscribers, this one included."""
        ...

    def receive(self, within: float, waker: int) -> list[str]:
        """Return the texts received since the last call.

        Args:
            within: Seconds to wait for a text if there is none.
            waker: A file descriptor that ends the wait when it can be read.
        """
        ...

    def close(self) -> None:
        """Close the connections; repeatable."""
        ...


class ServerNotifier:
    """A ``Notifier`` over a ``NotificationConnection``. ``name`` is used in the log."""

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
        self._wake_sender: socket.socket | None = None
        self._wake_receiver: socket.socket | None = None
        # Used by the thread only.
        self._failures = 0
        self._is_echo_missing = False
        self._echo_due_at = _NEVER
        self._is_echo_heard = False
        self._others: dict[str, float] = {}
        self._must_answer = False
        self._has_sent_echo = False
        self._may_have_others_until = 0.0

    def notify(self, words: Collection[str]) -> None:
        """Send words to all listeners; they may arrive soon or be lost. Words are short, without spaces."""
        # Checked before locking: in a forked child a thread of the parent may hold the lock for ever.
        if self._is_unusable or not words:
            return
        with self._lock:
            is_woken = bool(self._words) and self._thread is not None
            if len(self._words) < _WORDS_MOST:
                self._words.update(dict.fromkeys(words))
            if not is_woken:
                self._start_or_wake()

    def listen(self, on_word: Callable[[str], None]) -> Callable[[], None]:
        """Call ``on_word``, in the notifier's thread, for every word that this or another process sends.

        Returns:
            A function that ends this; a word that is just being delivered may still arrive after its call.
        """
        if self._is_unusable:
            return lambda: None
        key = object()
        with self._lock:
            self._listeners[key] = on_word
            self._start_or_wake()

        def stop() -> None:
            if not self._is_unusable:
                with self._lock:
                    self._listeners.pop(key, None)

        return stop

    def close(self) -> None:
        """Send pending words if the server is available, and end the thread; repeatable. A thread that is
        connecting to a server that does not answer ends after its attempt."""
        if self._is_unusable:
            return
        with self._lock:
            self._stop.set()
            self._start_or_wake()
            thread = self._thread
        if thread is not None:
            thread.join(_CLOSE_WITHIN_S)

    @property
    def _is_unusable(self) -> bool:
        """True if this is closed, or a forked child's copy of its parent's notifier."""
        return self._stop.is_set() or os.getpid() != self._process

    def _start_or_wake(self) -> None:
        """Start the thread, or wake it."""
        try:
            if self._thread is None and not self._stop.is_set():
                self._wake_sender, self._wake_receiver = socket.socketpair()
                self._wake_sender.setblocking(False)
                self._wake_receiver.setblocking(False)
                self._thread = threading.Thread(target=self._work, name="perdure-bell", daemon=True)
                self._thread.start()
            elif self._wake_sender is not None:
                # If the buffer is full, a wake-up is pending already.
                with suppress(BlockingIOError):
                    self._wake_sender.send(b"!")
        except (OSError, RuntimeError) as error:
            # No file or OS thread is available. The sender's own work must not fail because of that.
            _LOG.warning("%s: no notification could be sent (%s)", self._name, type(error).__name__)

    # The thread

    def _work(self) -> None:
        try:
            while not self._stop.is_set():
                while not (self._stop.is_set() or self._words or self._listeners):
                    wait(None, self._wake_fd())
                    self._drain_wake_ups()
                try:
                    self._exchange()
                except Exception as error:
                    # The next connection may succeed; no other thread takes over this one's work.
                    self._note_failure(error)
                finally:
                    self._disconnect()
        finally:
            with self._lock:
                for end in (self._wake_sender, self._wake_receiver):
                    if end is not None:
                        end.close()
                self._wake_sender = self._wake_receiver = None

    def _exchange(self) -> None:
        """Send and receive words on one connection, until it cannot be used any more."""
        listens = bool(self._listeners)
        try:
            self._wire.open(listens=listens)
        except Exception:
            with self._lock:
                self._words.clear()
            raise
        free_at = time.monotonic()
        self._echo_due_at = _NEVER
        self._is_echo_heard = False
        # A notifier that received this one's echo before does not answer it, so that its next regular echo
        # has to be waited for.
        answered_s = _ANSWERED_WITHIN_S
        if self._has_sent_echo:
            answered_s = _ECHO_EVERY_S + _ECHO_WITHIN_S
        self._may_have_others_until = max(self._may_have_others_until, free_at + answered_s)
        echo_at = free_at
        if not listens:
            echo_at = _NEVER
        elif self._is_echo_missing:
            echo_at += _ECHO_EVERY_S
        while listens or not self._listeners:
            now = time.monotonic()
            if now >= echo_at or self._must_answer:
                self._must_answer = False
                echo_at, self._echo_due_at = now + _ECHO_EVERY_S, now + _ECHO_WITHIN_S
                with self._lock:
                    self._words[self._echo] = None
            if self._words and (now >= free_at or self._stop.is_set()):
                self._send_pending()
                free_at = time.monotonic() + _BETWEEN_S
            if self._stop.is_set():
                return
            if now >= self._echo_due_at:
                self._note_missing_echo()
                return
            idle_at = _NEVER if listens else free_at + _IDLE_S
            if now >= idle_at:
                return
            until = min(echo_at, self._echo_due_at, free_at if self._words else idle_at)
            within = max(0.0, until - time.monotonic())
            for text in self._wire.receive(within, self._wake_fd()):
                self._deliver(text)
            self._drain_wake_ups()

    def _send_pending(self) -> None:
        """Send pending words, as many as one statement carries."""
        with self._lock:
            sent: dict[str, None] = {}
            size = 0
            for word in self._words:
                size += len(word) + 1
                if size > _TEXT_MOST and sent:
                    break
                sent[word] = None
            for word in sent:
                del self._words[word]
        if self._is_alone:
            self._deliver(" ".join(word for word in sent if word != self._echo))
            sent = {word: None for word in sent if word == self._echo}
            if not sent:
                return
        self._has_sent_echo = self._has_sent_echo or self._echo in sent
        try:
            self._wire.send(" ".join(sent))
        except Exception:
            with self._lock:
                self._words = {**sent, **self._words}
            raise
        if self._failures > 1:
            _LOG.info("%s: notifications are back", self._name)
        self._failures = 0

    @property
    def _is_alone(self) -> bool:
        """True if no other notifier on the server listens, as far as this one knows."""
        return self._is_echo_heard and time.monotonic() >= self._may_have_others_until

    def _deliver(self, text: str) -> None:
        """Pass received words to the listeners."""
        for word in text.split():
            if word.startswith(_ECHO):
                if word == self._echo:
                    self._echo_due_at = _NEVER
                    self._is_echo_heard = True
                    if self._is_echo_missing:
                        _LOG.info("%s: notifications are received again", self._name)
                    self._is_echo_missing = False
                else:  # another notifier listens, which may not know this one yet
                    now = time.monotonic()
                    self._others = {name: until for name, until in self._others.items() if until > now}
                    self._must_answer = self._must_answer or word not in self._others
                    self._others[word] = self._may_have_others_until = now + _GONE_AFTER_S
                continue
            for listener in list(self._listeners.values()):
                try:
                    listener(word)
                except Exception:
                    _LOG.exception("%s: a listener failed; the others are notified", self._name)

    def _note_missing_echo(self) -> None:
        if not self._is_echo_missing:
            _LOG.warning(
                "%s sends notifications and receives none, not even its own, perhaps because of a pooler. "
                "Due work is found by polling; name a direct connection in the URL, or turn notifications "
                "off there with notify=off",
                self._name,
            )
        self._is_echo_missing = True

    def _note_failure(self, error: Exception) -> None:
        """Record that a connection failed, close it, and pause before the next one."""
        self._failures += 1
        if self._failures == 2:
            _LOG.warning(
                "%s: notifications are unavailable (%s); until they are back, due work is found by polling",
                self._name,
                type(error).__name__,
            )
        self._disconnect()
        pause = _PAUSES_S[min(self._failures, len(_PAUSES_S)) - 1]
        self._stop.wait(pause * (0.5 + _chance.random()))

    def _disconnect(self) -> None:
        try:
            self._wire.close()
        except Exception as error:
            _LOG.debug("%s: a connection was not closed in order (%s)", self._name, type(error).__name__)

    def _wake_fd(self) -> int:
        """Return the file descriptor that can be read when the thread has to look for work, -1 for none."""
        if self._wake_receiver is None:
            return -1
        return self._wake_receiver.fileno()

    def _drain_wake_ups(self) -> None:
        with suppress(BlockingIOError):
            while self._wake_receiver is not None and self._wake_receiver.recv(4096):
                pass


def wait(within: float | None, *files: int) -> None:
    """Wait until one of the files can be read, at most ``within`` seconds; closed ones (-1) are left out."""
    poll = select.poll()
    for file in files:
        if file >= 0:
            poll.register(file, select.POLLIN)
    poll.poll(None if within is None else math.ceil(1000 * min(within, 86400.0)))
