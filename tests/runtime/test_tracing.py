"""Spans as an exporter gets them, from a runtime at work."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.pregel import Pregel
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode, Tracer

import perdure
import perdure.runtime
from perdure.database.base import handle_of
from perdure.engine.queue.claims import Claim
from perdure.errors import MissingExtra
from perdure.model.ops import Now
from perdure.model.program import ask
from perdure.model.records import Partition
from perdure.model.runs.messages import Reply
from perdure.runtime import Channel, NotSent, Runtime, Settings
from perdure.runtime.tracing import Tracing

SECRET = "the-word-that-nobody-traces"


class Traces:
    """A provider, and the spans that it exported."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    @property
    def tracer(self) -> Tracer:
        return self.provider.get_tracer("a model client")

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]


@pytest.fixture
def traces() -> Traces:
    return Traces()


def graph_of(node: Callable[..., Any]) -> Pregel[Any, Any, Any, Any]:
    return StateGraph(MessagesState).add_node("talk", node).add_edge(START, "talk").compile()


def run_once(
    node: Callable[..., Any], traces: Traces, settings: Settings, channels: dict[str, Channel] | None = None
) -> str:
    """Run a graph of one node over one message; the run's id."""

    async def main() -> str:
        async with (
            perdure.connect("memory://", tenant="acme") as db,
            Runtime(
                db,
                {"helper": graph_of(node)},
                channels=channels,
                settings=settings,
                observers=[Tracing(traces.provider)],
            ) as runtime,
        ):
            ticket = await runtime.accept("ada", f"hello {SECRET}", channel=next(iter(channels or {}), ""))
            await runtime.wait(ticket, 60)
            async with asyncio.timeout(60):
                while {r.state for r in await runtime.replies("ada")} & {"ready", "sending"}:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            return ticket.id

    return asyncio.run(main())


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_what_a_node_calls_is_part_of_the_run(kind: str, traces: Traces) -> None:
    def call() -> dict[str, Any]:
        with traces.tracer.start_as_current_span("model call"):
            return {"messages": [AIMessage("hi")]}

    async def acall(state: MessagesState) -> dict[str, Any]:
        return call()

    run_id = run_once(acall if kind == "async" else lambda state: call(), traces, Settings(poll=0.05))
    (run,), (model,) = traces.named("perdure.run"), traces.named("model call")
    assert run.context is not None
    assert model.parent is not None
    assert model.parent.span_id == run.context.span_id
    assert run.parent is None
    assert run.kind is SpanKind.CONSUMER
    assert run.status.status_code is StatusCode.UNSET
    assert dict(run.attributes or {}) == {
        "perdure.tenant": "acme",
        "perdure.thread": "ada",
        "perdure.run": run_id,
        "perdure.graph": "helper",
        "perdure.attempts": 1,
        "perdure.state": "done",
    }


def test_attempts_are_spans_and_their_failures_are_errors(traces: Traces) -> None:
    async def fail(state: MessagesState) -> None:
        with traces.tracer.start_as_current_span("model call", record_exception=False):
            raise LookupError(state["messages"][-1].content)

    run_once(fail, traces, Settings(attempts=2, backoff=0.01, poll=0.05, on_failure="keep"))
    first, second = traces.named("perdure.run")
    assert [(span.attributes or {})["perdure.attempts"] for span in (first, second)] == [1, 2]
    assert [event.name for event in first.events] == ["run.attempt_failed"]
    noted = dict(first.events[0].attributes or {})
    assert noted.pop("perdure.error") == "LookupError"
    assert str(noted.pop("perdure.place")).startswith("test_tracing.py:")
    assert not noted
    assert (first.status.status_code, first.status.description) == (StatusCode.ERROR, "LookupError")
    assert "perdure.state" not in (first.attributes or {})
    assert [event.name for event in second.events] == ["run.attempt_failed", "run.failed"]
    assert (second.status.status_code, second.status.description) == (StatusCode.ERROR, "the run has failed")
    assert (second.attributes or {})["perdure.state"] == "failed"
    assert (second.attributes or {})["error.type"] == "LookupError"
    assert SECRET not in first.to_json() + second.to_json()


def test_a_delivery_is_a_span(traces: Traces) -> None:
    tried = []

    async def send(thread: str, reply: Reply) -> None:
        with traces.tracer.start_as_current_span("provider call"):
            tried.append(reply.id)
            if len(tried) == 1:
                raise NotSent(reply.payload["content"])

    async def echo(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(state["messages"][-1].content)]}

    settings = Settings(backoff=0.01, poll=0.05)
    run_id = run_once(echo, traces, settings, {"post": Channel(send)})
    first, second = traces.named("perdure.send")
    assert (first.status.status_code, first.status.description) == (StatusCode.ERROR, "NotSent")
    assert second.status.status_code is StatusCode.UNSET
    assert second.kind is SpanKind.PRODUCER
    assert dict(second.attributes or {}) == {
        "perdure.tenant": "acme",
        "perdure.thread": "ada",
        "perdure.channel": "post",
        "perdure.reply": f"{run_id}:0",
        "perdure.attempts": 2,
    }
    calls = traces.named("provider call")
    assert [call.parent and call.parent.span_id for call in calls] == [
        span.context and span.context.span_id for span in (first, second)
    ]
    assert SECRET not in first.to_json() + second.to_json()


def test_a_lost_run_says_so(traces: Traces) -> None:
    async def main() -> None:
        taken = asyncio.Event()

        async def slow(state: MessagesState) -> dict[str, Any]:
            later = await handle_of(db).arun(ask(Now())) + 60_000_000
            thief = Claim(
                Partition("", "ada"), "thief", ("agent",), later, 60_000_000, 50, handle_of(db).draw_version()
            )
            assert await handle_of(db).arun(thief.take(None)) is not None
            taken.set()
            return {"messages": [AIMessage("too late")]}

        observers = [Tracing(traces.provider)]
        async with (
            perdure.connect("memory://") as db,
            Runtime(db, graph_of(slow), observers=observers) as runtime,
        ):
            await runtime.accept("ada", "hello")
            await asyncio.wait_for(taken.wait(), 60)

    asyncio.run(main())
    (run,) = traces.named("perdure.run")
    assert [event.name for event in run.events] == ["run.write_refused", "run.lost"]
    assert run.status.status_code is StatusCode.ERROR


def test_a_run_that_is_handed_over_is_no_error(traces: Traces) -> None:
    async def main() -> None:
        begun = asyncio.Event()

        async def slow(state: MessagesState) -> None:
            begun.set()
            await asyncio.sleep(60)

        async with perdure.connect("memory://") as db:
            settings, observers = Settings(drain=0), [Tracing(traces.provider)]
            async with Runtime(db, graph_of(slow), settings=settings, observers=observers) as runtime:
                await runtime.accept("ada", "hello")
                await asyncio.wait_for(begun.wait(), 60)

    asyncio.run(main())
    (run,) = traces.named("perdure.run")
    assert [event.name for event in run.events] == ["run.handed_over"]
    assert run.status.status_code is StatusCode.UNSET


def test_a_run_stands_in_no_context_of_who_accepted(traces: Traces) -> None:
    """A request that accepts a message is over before its run, and a run that accepts one is another's."""
    request: ContextVar[str] = ContextVar("request", default="none")
    seen: list[tuple[str, str]] = []

    async def main() -> None:
        async def first(state: MessagesState) -> dict[str, Any]:
            tickets.append(await runtime.accept("second", "hello", graph="second"))
            return {"messages": [AIMessage("handed on")]}

        async def second(state: MessagesState, config: RunnableConfig) -> dict[str, Any]:
            seen.append((request.get(), config["metadata"]["thread_id"]))
            return {"messages": [AIMessage("hi")]}

        tickets: list[Any] = []
        graphs = {"first": graph_of(first), "second": graph_of(second)}
        async with (
            perdure.connect("memory://") as db,
            Runtime(db, graphs, observers=[Tracing(traces.provider)]) as runtime,
        ):
            with traces.tracer.start_as_current_span("request"):
                request.set("one")
                ticket = await runtime.accept("first", "hello", graph="first")
            await runtime.wait(ticket, 60)
            await runtime.wait(tickets[0], 60)

    asyncio.run(main())
    assert seen == [("none", "second")]
    runs = traces.named("perdure.run")
    assert [span.parent for span in runs] == [None, None]
    assert len({span.context.trace_id for span in runs if span.context}) == 2


def test_what_belongs_to_no_run_is_not_on_its_span(traces: Traces) -> None:
    tracing = Tracing(traces.provider)
    with traces.tracer.start_as_current_span("request"):
        tracing.event("message.accepted", {"thread": "ada"})
        tracing.event("run.not_renewed", {"run": "r", "error": "Unavailable"})
        with tracing.span("send", {"thread": "ada"}):
            tracing.event("run.lost", {"run": "r"})
        with tracing.span("run", {"thread": "ada"}):
            # A graph accepts a message for another thread.
            tracing.event("message.accepted", {"thread": "bob"})
    spans = traces.exporter.get_finished_spans()
    assert [span.name for span in spans] == ["perdure.send", "perdure.run", "request"]
    assert [(span.events, span.parent, span.status.status_code) for span in spans] == [
        ((), None, StatusCode.UNSET)
    ] * 3


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)
    monkeypatch.delitem(sys.modules, "perdure.runtime.tracing")
    with pytest.raises(MissingExtra, match=r'^tracing needs an extra: pip install "perdure\[tracing\]"$'):
        importlib.import_module("perdure.runtime.tracing")
    importlib.reload(perdure.runtime)  # which needs no extra
