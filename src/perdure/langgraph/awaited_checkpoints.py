"""Checkpoints that the nodes of a run wait for: with the durability "async" a step may begin before its
checkpoint is stored, and the keys of the step's side effects are derived from that checkpoint."""

from __future__ import annotations

from concurrent.futures import Future
from threading import Lock


class StoredCheckpoints:
    """The checkpoints that an attempt at a run has loaded or stored, by namespace and id."""

    def __init__(self) -> None:
        self._stored: set[tuple[str, str]] = set()
        self._waiting: list[tuple[str, str, Future[None]]] = []
        self._failed: dict[str, Exception] = {}
        self._closing_error: Exception | None = None
        self._lock = Lock()

    def note(self, namespace: str, checkpoint_id: str) -> None:
        """Remember that a checkpoint is durable, and wake those who wait for it."""
        with self._lock:
            self._stored.add((namespace, checkpoint_id))
            self._failed.pop(namespace, None)
            woken = self._take(namespace, checkpoint_id)
        for waiting in woken:
            if waiting.set_running_or_notify_cancel():
                waiting.set_result(None)

    def fail(self, namespace: str, error: Exception) -> None:
        """Pass the error of a write on to all who wait in a namespace: LangGraph does not even try to store
        the checkpoints that follow."""
        with self._lock:
            self._failed[namespace] = error
            woken = self._take(namespace)
        _raise_in(woken, error)

    def close(self, error: Exception) -> None:
        """Pass on an error to all who wait: the attempt is over."""
        with self._lock:
            self._closing_error = error
            woken = self._take()
        _raise_in(woken, error)

    def future_of(self, namespace: str, checkpoint_id: str) -> Future[None]:
        """Return a future that is done when a checkpoint is durable, or has the error with which its write,
        or one before it, failed."""
        waiting: Future[None] = Future()
        with self._lock:
            error = self._failed.get(namespace) or self._closing_error
            if (namespace, checkpoint_id) not in self._stored and error is None:
                self._waiting.append((namespace, checkpoint_id, waiting))
                return waiting
            is_stored = (namespace, checkpoint_id) in self._stored
        if is_stored:
            waiting.set_result(None)
        else:
            waiting.set_exception(error)
        return waiting

    def _take(self, namespace: str | None = None, checkpoint_id: str | None = None) -> list[Future[None]]:
        taken, left = list[Future[None]](), list[tuple[str, str, Future[None]]]()
        for entry in self._waiting:
            if namespace in (None, entry[0]) and checkpoint_id in (None, entry[1]):
                taken.append(entry[2])
            else:
                left.append(entry)
        self._waiting = left
        return taken


def _raise_in(woken: list[Future[None]], error: Exception) -> None:
    for waiting in woken:
        if waiting.set_running_or_notify_cancel():
            waiting.set_exception(error)
