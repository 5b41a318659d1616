"""What a runtime tells of itself: events with names, ids and numbers, never what anybody wrote.

An error is told by the name of its type: its message may quote a user. Times are in microseconds. Who listens
can do no harm: an observer that raises is logged, and the work goes on.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import TracebackType
from typing import Any, Protocol

_LEVELS = {
    "checkpoint.large": logging.WARNING,
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
    "run.not_heeded": logging.WARNING,
    "run.not_renewed": logging.WARNING,
    "run.write_refused": logging.WARNING,
    "run.not_taken_back": logging.WARNING,
    "thread.deleted": logging.INFO,
    "thread.follow_not_renewed": logging.WARNING,
    "thread.older": logging.WARNING,
    "worker.error": logging.ERROR,
    "worker.failing": logging.WARNING,
    "worker.left_behind": logging.WARNING,
    "worker.unavailable": logging.WARNING,
    "worker.unserved": logging.WARNING,
}
_WIDEST = 120
_log = logging.getLogger("perdure.runtime")

_Leave = Callable[[type[BaseException] | None, BaseException | None, TracebackType | None], bool]


class Observer(Protocol):
    """Who listens. ``event`` is told that something happened, ``span`` surrounds what takes time. Neither may
    raise, wait or change ``fields``, which all observers share."""

    def event(self, name: str, fields: dict[str, Any]) -> None: ...

    @contextmanager
    def span(self, name: str, fields: dict[str, Any]) -> Iterator[None]: ...


class Logs:
    """Writes events to the logger ``perdure.runtime``: the name and the fields on one line, and for a
    formatter of structured logs the same in ``extra``, as ``event`` and ``perdure_<field>``."""

    def event(self, name: str, fields: dict[str, Any]) -> None:
        level = _LEVELS.get(name, logging.DEBUG)
        if _log.isEnabledFor(level):
            said = " ".join(f"{key}={_shown(value)}" for key, value in fields.items() if value != "")
            extra = {"event": name, **{f"perdure_{key}": value for key, value in fields.items()}}
            _log.log(level, "%s %s", name, said, extra=extra)

    @contextmanager
    def span(self, name: str, fields: dict[str, Any]) -> Iterator[None]:
        yield


class Observers:
    """Several that listen, as one."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = tuple(observers)

    def event(self, name: str, **fields: Any) -> None:
        for observer in self._observers:
            try:
                observer.event(name, fields)
            except Exception:
                _complain(observer, name)

    @contextmanager
    def span(self, name: str, **fields: Any) -> Iterator[None]:
        with ExitStack() as stack:
            for observer in self._observers:
                try:
                    span = observer.span(name, fields)
                    span.__enter__()
                except Exception:
                    _complain(observer, name)
                else:
                    stack.push(_leaving(observer, name, span))
            yield


def _leaving(observer: Observer, name: str, span: AbstractContextManager[None, bool | None]) -> _Leave:
    """The end of a span, which neither raises nor hides what the span's work raised."""

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
    _log.exception("%s failed at %s; the work goes on", type(observer).__name__, name)


def _shown(value: object) -> str:
    """A field on a line. Threads and channels have the names that callers gave them: a long one is cut, one
    with a space or a line break in it is quoted, so that no name can pass for another field or line."""
    text = str(value)
    text = text if len(text) <= _WIDEST else f"{text[:_WIDEST]}…"
    is_plain = text.isprintable() and not any(c in ' "=' for c in text)
    return text if is_plain else json.dumps(text, ensure_ascii=not text.isprintable())
