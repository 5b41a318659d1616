"""Events that a runtime emits about itself, with names, ids and numbers, but nothing that a user wrote.

An error appears as the name of its type, since its message may quote a user. Times are in microseconds. An
observer that raises is logged, and the work continues. All observers of a runtime are called in the OS thread
of its event loop, wherever the event comes from.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from types import TracebackType
from typing import Any, Protocol

from perdure.engine.queue.runs import HeldRun
from perdure.model.records import Partition

_LEVELS = {
    "conversation.repaired": logging.WARNING,
    "conversation.summary_failed": logging.WARNING,
    "conversation.summary_shortened": logging.WARNING,
    "checkpoint.large": logging.WARNING,
    "cron.disabled": logging.WARNING,
    "cron.removed": logging.WARNING,
    "cron.failed": logging.WARNING,
    "cron.missed": logging.WARNING,
    "memory.not_tidied": logging.WARNING,
    "memory.recall_failed": logging.WARNING,
    "memory.not_handed_over": logging.WARNING,
    "memory.summary_waits": logging.WARNING,
    "memory.user_refused": logging.WARNING,
    "leases.ended": logging.INFO,
    "message.refused": logging.WARNING,
    "message.unreadable": logging.ERROR,
    "reply.dead": logging.ERROR,
    "reply.lost": logging.WARNING,
    "reply.ready": logging.WARNING,
    "reply.sending": logging.WARNING,
    "reply.unknown": logging.WARNING,
    "run.attempt_failed": logging.WARNING,
    "run.failed": logging.ERROR,
    "run.handed_over": logging.INFO,
    "run.lost": logging.WARNING,
    "run.not_excused": logging.WARNING,
    "run.not_heeded": logging.WARNING,
    "run.not_renewed": logging.WARNING,
    "run.not_steered": logging.WARNING,
    "run.write_refused": logging.WARNING,
    "run.not_taken_back": logging.WARNING,
    "run.apology_not_divided": logging.WARNING,
    "signal.too_large": logging.WARNING,
    "state.large": logging.WARNING,
    "state.undeclared": logging.WARNING,
    "sweep.failed": logging.WARNING,
    "sweep.finished": logging.INFO,
    "thread.deleted": logging.INFO,
    "thread.follow_not_renewed": logging.WARNING,
    "thread.older": logging.WARNING,
    "limit.full": logging.INFO,
    "limit.estimated": logging.WARNING,
    "limit.unpriced": logging.WARNING,
    "worker.error": logging.ERROR,
    "worker.failing": logging.WARNING,
    "worker.left_behind": logging.WARNING,
    "worker.unavailable": logging.WARNING,
    "worker.unserved": logging.WARNING,
}
_ENDS = ("run.done", "run.waiting", "run.interrupted", "run.rolled_back")
"""Ends of runs that are not failures."""
_TIMES = frozenset({"took", "waited"})
_WIDEST = 120
_log = logging.getLogger("perdure.runtime")

_Leave = Callable[[type[BaseException] | None, BaseException | None, TracebackType | None], bool]


class Observer(Protocol):
    """Receiver of events. ``event`` is called when something happened, ``span`` surrounds work that takes
    time. Neither may raise, block or change ``fields``, which all observers share. A subclass needs ``event``
    alone."""

    def event(self, name: str, fields: dict[str, Any]) -> None:
        """Take note of what happened."""
        ...

    def span(self, name: str, fields: dict[str, Any]) -> AbstractContextManager[object]:
        """Return a context that surrounds work that takes time; by default one that does nothing."""
        return nullcontext()


class Logs(Observer):
    """Observer that writes events to the logger ``perdure.runtime``: the name and the fields on one line, and
    the same in ``extra``, as ``event`` and ``perdure_<field>``, for formatters of structured logs. Times have
    their unit in the line, and are in microseconds in ``extra``."""

    _levels: Mapping[str, int] = _LEVELS

    def event(self, name: str, fields: dict[str, Any]) -> None:
        """Log an event at the level of its name."""
        level = self._levels.get(name, logging.DEBUG)
        if _log.isEnabledFor(level):
            line = " ".join(f"{key}={_field(key, value)}" for key, value in fields.items() if value != "")
            extra = {"event": name, **{f"perdure_{key}": value for key, value in fields.items()}}
            _log.log(level, "%s %s", name, line, extra=extra)


class RunLogs(Logs):
    """Observer that logs like ``Logs``, and the end of each run at info level or above."""

    _levels: Mapping[str, int] = {**dict.fromkeys(_ENDS, logging.INFO), **_LEVELS}


class Observers:
    """Several observers as one, each isolated from the errors of the others, and called in the OS thread of
    the event loop on which they were started. Before the start they are called in the thread of the event."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = tuple(observers)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0

    def start(self) -> None:
        """Use the current event loop."""
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()

    def run_on_loop(self, report: Callable[[], None]) -> None:
        """Call ``report`` in the OS thread of the event loop: at once in that thread, else soon, or not at
        all if the loop was closed. A node that is a plain function runs in another OS thread."""
        if self._loop is None or threading.get_ident() == self._thread:
            report()
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(report)

    def event(self, name: str, **fields: Any) -> None:
        """Tell every observer what happened."""
        self.run_on_loop(partial(self._notify_all, name, fields))

    def _notify_all(self, name: str, fields: dict[str, Any]) -> None:
        for observer in self._observers:
            try:
                observer.event(name, fields)
            except Exception:
                _complain(observer, name)

    def thread_event(self, name: str, partition: Partition, **fields: Any) -> None:
        """Tell every observer what happened in a thread."""
        self.event(name, tenant=partition.tenant, thread=partition.thread, **fields)

    def run_event(self, name: str, held: HeldRun, **fields: Any) -> None:
        """Tell every observer what happened in a run."""
        self.thread_event(name, held.partition, run=held.run.id, graph=held.run.graph, **fields)

    @contextmanager
    def span(self, name: str, **fields: Any) -> Iterator[None]:
        """Enter the span of every observer."""
        with ExitStack() as stack:
            for observer in self._observers:
                try:
                    span = observer.span(name, fields)
                    span.__enter__()
                except Exception:
                    _complain(observer, name)
                else:
                    stack.push(_make_leave(observer, name, span))
            yield


def _make_leave(observer: Observer, name: str, span: AbstractContextManager[object, bool | None]) -> _Leave:
    """Return the end of a span, which neither raises nor hides the error of the work within."""

    def leave(
        kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        try:
            span.__exit__(kind, error, traceback)
        except Exception:
            _complain(observer, name)
        return False

    return leave


def _complain(observer: Observer, name: str) -> None:
    _log.exception("%s failed at %s; the work continues", type(observer).__name__, name)


def format_duration(seconds: float) -> str:
    """Return a duration with its unit, such as ``340ms`` or ``12.5s``."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.3g}ms"
    return f"{seconds:.1f}s"


def _field(key: str, value: object) -> str:
    if key in _TIMES and isinstance(value, int):
        return format_duration(value / 1_000_000)
    return _format(value)


def _format(value: object) -> str:
    """Return a field for a log line. Threads and channels have names that callers chose: long ones are cut,
    and those with a space or line break are quoted, so that no name can pass for another field or line."""
    text = str(value)
    text = text if len(text) <= _WIDEST else f"{text[:_WIDEST]}…"
    is_plain = text.isprintable() and not any(c in ' "=' for c in text)
    if is_plain:
        return text
    return json.dumps(text, ensure_ascii=not text.isprintable())
