"""OS thread that removes a store's expired items at an interval."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from threading import Event, Thread

from perdure.errors import PerdureError

_log = logging.getLogger(__name__)


class TtlSweeper:
    """Calls ``sweep`` every ``seconds`` until it is stopped, or its future ``ended`` is cancelled. A failed
    sweep is logged; the next one is tried at its time."""

    def __init__(self, sweep: Callable[[], int], seconds: float) -> None:
        self._sweep = sweep
        self._seconds = seconds
        self._asked_to_end = Event()
        self.ended: Future[None] = Future()
        self.ended.add_done_callback(lambda _: self._asked_to_end.set())
        self._thread = Thread(target=self._run, name="perdure-ttl-sweeper", daemon=True)
        self._thread.start()

    def stop(self, timeout: float | None) -> bool:
        """Stop; return True if the OS thread ended within ``timeout`` seconds."""
        self._asked_to_end.set()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._sweep_until_stopped()
        except Exception as error:
            _log.exception("expired items are not swept any more, because of an unexpected error")
            if self.ended.set_running_or_notify_cancel():
                self.ended.set_exception(error)
            return
        if self.ended.set_running_or_notify_cancel():
            self.ended.set_result(None)

    def _sweep_until_stopped(self) -> None:
        while not self._asked_to_end.wait(self._seconds):
            try:
                removed = self._sweep()
            except PerdureError as error:
                _log.warning("sweeping expired items failed and is tried again later: %s", error)
            else:
                _log.debug("swept %d expired items", removed)
