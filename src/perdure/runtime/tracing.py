"""OpenTelemetry spans of a runtime.

Each run is a separate trace: when a run continues after a crash, the request that accepted its messages has
long ended, and one run may answer several messages. Work of the graph, such as model calls, is part of the
trace.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from perdure.errors import MissingExtra

try:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, SpanKind, StatusCode, TracerProvider, get_tracer
except ImportError as error:
    raise MissingExtra('tracing needs an extra: pip install "perdure[tracing]"') from error

_KINDS = {"run": SpanKind.CONSUMER, "send": SpanKind.PRODUCER}
_ERRORS = {"run.lost": "another worker has taken over", "run.failed": "the run has failed"}
_OF_THE_SPAN = frozenset({"tenant", "thread", "run", "graph", "attempts"})


class Tracing:
    """Observer that creates the spans ``perdure.run`` and ``perdure.send`` with ``tracer_provider``, by
    default that of the process. A span is the current span while the graph or the channel's sender runs."""

    def __init__(self, tracer_provider: TracerProvider | None = None) -> None:
        self._tracer = get_tracer("perdure", tracer_provider=tracer_provider)
        self._run: ContextVar[Span | None] = ContextVar("perdure_run", default=None)

    def event(self, name: str, fields: dict[str, Any]) -> None:
        span = self._run.get()
        if span is not None and name == "model.called":
            self._add_call(fields)
            return
        if span is None or not name.startswith("run."):
            return
        # The run's end is emitted while its span is open.
        span.add_event(name, {f"perdure.{k}": v for k, v in fields.items() if k not in _OF_THE_SPAN})
        if "took" in fields:
            span.set_attribute("perdure.state", name.removeprefix("run."))
        if "error" in fields:
            span.set_attribute("error.type", fields["error"])
            span.set_status(StatusCode.ERROR, fields["error"])
        if name in _ERRORS:
            span.set_status(StatusCode.ERROR, _ERRORS[name])

    def _add_call(self, fields: dict[str, Any]) -> None:
        """Add a span for a call that has ended, as a child of its run's span."""
        now = time.time_ns()
        span = self._tracer.start_span(
            "perdure.model",
            kind=SpanKind.CLIENT,
            start_time=now - fields["took"] * 1000,
            attributes={f"perdure.{key}": value for key, value in fields.items()},
        )
        if "error" in fields:
            span.set_attribute("error.type", fields["error"])
            span.set_status(StatusCode.ERROR, fields["error"])
        span.end(now)

    @contextmanager
    def span(self, name: str, fields: dict[str, Any]) -> Iterator[None]:
        with self._tracer.start_as_current_span(
            f"perdure.{name}",
            context=Context(),
            kind=_KINDS.get(name, SpanKind.INTERNAL),
            attributes={f"perdure.{key}": value for key, value in fields.items()},
            # An error's message may quote a user's text.
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            token = self._run.set(span if name == "run" else None)
            try:
                yield
            except Exception as error:
                span.set_attribute("error.type", type(error).__name__)
                span.set_status(StatusCode.ERROR, type(error).__name__)
                raise
            finally:
                self._run.reset(token)
