"""Calls of models become events, metrics and spans by hop and user, without their content."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langgraph.graph import START, MessagesState, StateGraph
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry

import perdure
from examples.supervisor.models import Scripted
from perdure.limits import SharedLimit
from perdure.runtime import Agent, Observer, Price, Prices, Runtime, Settings, isolated_subgraph
from perdure.runtime.metrics import Metrics
from perdure.runtime.tracing import Tracing

SECRET = "swordfish"


class Events(Observer):
    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    def event(self, name: str, fields: dict[str, Any]) -> None:
        if name == "model.called":
            self.calls.append(fields)


def asking(model: BaseChatModel) -> Any:
    async def ask(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    return StateGraph(MessagesState).add_node(ask).add_edge(START, "ask").compile()


def fails(messages: list[BaseMessage]) -> str:
    raise ConnectionError(f"the provider is away ({SECRET})")


@pytest.mark.parametrize("isolated", [False, True])
def test_a_call_is_an_event_of_its_hop_with_metrics_and_a_span(isolated: bool) -> None:
    inner: Any = asking(Scripted(name="small", answer=lambda _: f"two {SECRET}"))
    if isolated:
        inner = isolated_subgraph(inner, lambda s: {"messages": s["messages"]}, lambda out: out)
    builder: Any = StateGraph(MessagesState)
    graph = builder.add_node("plan", inner).add_edge(START, "plan").compile()
    seen, registry, spans = Events(), CollectorRegistry(), InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    observers = (seen, Metrics(registry), Tracing(provider))
    agent = Agent(graph, prices={"small": Price(input=1_000_000, output=2_000_000)})

    async def main() -> None:
        async with (
            asyncio.timeout(60),
            perdure.connect("memory://") as db,
            Runtime(db, {"g": agent}, observers=observers) as app,
        ):
            config = {"configurable": {"user_id": "ada"}}
            run = await app.wait(await app.accept("t", f"one {SECRET} three", config=config))
            assert run.state == "done", run.note

    asyncio.run(main())
    (call,) = seen.calls
    taken = {name: call[name] for name in ("graph", "hop", "model", "user", "input_tokens", "output_tokens")}
    assert taken == {
        "graph": "g",
        "hop": "plan",
        "model": "small",
        "user": "ada",
        "input_tokens": 3,
        "output_tokens": 2,
    }
    assert call["cost"] == 7
    assert call["took"] > 0
    labels = {"graph": "g", "hop": "plan", "model": "small"}
    value = registry.get_sample_value
    assert value("perdure_model_call_duration_seconds_count", labels) == 1
    assert value("perdure_model_tokens_total", {**labels, "direction": "input"}) == 3
    assert value("perdure_model_tokens_total", {**labels, "direction": "output"}) == 2
    assert value("perdure_model_cost_total", labels) == 7
    found = {span.name: span for span in spans.get_finished_spans()}
    model, run = found["perdure.model"], found["perdure.run"]
    assert model.parent is not None
    assert model.parent.span_id == run.context.span_id
    assert model.attributes is not None
    assert (model.attributes["perdure.hop"], model.attributes["perdure.user"]) == ("plan", "ada")
    assert SECRET not in repr(seen.calls) + repr([span.to_json() for span in spans.get_finished_spans()])


def test_a_call_that_blocks_is_an_event_as_well() -> None:
    """Its thread has no event loop, in which counts are."""
    model = GenericFakeChatModel(name="small", messages=iter([AIMessage("yes")] * 4))

    def ask(state: MessagesState) -> dict[str, Any]:
        return {"messages": [model.invoke("?"), next(iter(model.stream("?")))]}

    graph = StateGraph(MessagesState).add_node(ask).add_edge(START, "ask").compile()
    seen = Events()

    async def main() -> None:
        async with perdure.connect("memory://") as db, Runtime(db, {"g": graph}, observers=(seen,)) as app:
            assert (await app.wait(await app.accept("t", "hi"), timeout=60)).state == "done"

    asyncio.run(main())
    assert [call["model"] for call in seen.calls] == ["small", "small"]


def test_a_call_that_fails_is_counted_at_each_attempt() -> None:
    seen, registry = Events(), CollectorRegistry()
    agent = Agent(asking(Scripted(name="small", answer=fails)))
    settings = Settings(attempts=2, backoff=0.01, max_backoff=0.02)

    async def main() -> None:
        async with perdure.connect("memory://") as db:
            runtime = Runtime(db, {"g": agent}, settings=settings, observers=(seen, Metrics(registry)))
            async with asyncio.timeout(60), runtime as app:
                assert (await app.wait(await app.accept("t", "hi"))).state == "failed"

    asyncio.run(main())
    assert [(call["attempts"], call["error"], "cost" in call) for call in seen.calls] == [
        (1, "ConnectionError", False),
        (2, "ConnectionError", False),
    ]
    labels = {"graph": "g", "hop": "ask", "model": "small"}
    assert registry.get_sample_value("perdure_model_call_errors_total", labels) == 2
    assert SECRET not in repr(seen.calls)


@pytest.mark.parametrize("of_agent", [False, True])
def test_one_table_has_the_prices_of_events_metrics_and_budgets(of_agent: bool) -> None:
    """The prices of the settings, and those of an agent, which go first: by patterns, and apart for
    what comes from a cache."""
    used: Any = {"input_tokens": 10, "output_tokens": 4, "total_tokens": 14}
    answer = AIMessage("yes", usage_metadata={**used, "input_token_details": {"cache_read": 8}})
    model = GenericFakeChatModel(name="large-1", messages=iter([answer] * 2))
    price = Price(input=1_000_000, output=2_000_000, cache_read=500_000)
    other = Price(input=1, output=1)
    limit = SharedLimit(budget=14.0, by=("user",))
    agent = Agent(
        asking(model), prices={"large*": price} if of_agent else {}, limits={"day": limit} if of_agent else {}
    )
    settings = Settings(
        prices=Prices({"large*": other if of_agent else price, "other": other}),
        limits={} if of_agent else {"day": limit},
        attempts=1,
    )
    seen, registry = Events(), CollectorRegistry()

    async def main() -> None:
        async with perdure.connect("memory://") as db:
            runtime = Runtime(db, {"g": agent}, settings=settings, observers=(seen, Metrics(registry)))
            async with asyncio.timeout(60), runtime as app:
                runs = [await app.wait(await app.accept(f"t{n}", "hi")) for n in range(2)]
            # The budget is used up to the last unit by one call.
            assert [run.state for run in runs] == ["done", "failed"]

    asyncio.run(main())
    assert [call["cost"] for call in seen.calls if "error" not in call] == [2 + 8 * 0.5 + 4 * 2]
    labels = {"graph": "g", "hop": "ask", "model": "large-1"}
    assert registry.get_sample_value("perdure_model_cost_total", labels) == 14


def test_an_agent_s_own_prices_suffice_for_its_budget() -> None:
    limits = {"day": SharedLimit(budget=1.0)}
    priced = Agent(asking(Scripted(name="small", answer=fails)), prices={"small": Price(1, 1)}, limits=limits)

    async def main(**settings: Any) -> None:
        async with perdure.connect("memory://") as db:
            Runtime(db, {"g": priced}, settings=Settings(**settings))
            with pytest.raises(ValueError, match=r"the budget 'h\.day', and no model has a price"):
                Runtime(db, {"g": priced, "h": replace(priced, prices={})}, settings=Settings(**settings))

    asyncio.run(main())


@pytest.mark.parametrize(
    "fields", [(-1, 0), (0, -1), (0, float("nan")), (0, 0, -1), (0, 0, None, float("inf"))]
)
def test_a_price_is_a_number_from_0_on(fields: Any) -> None:
    with pytest.raises(ValueError, match="a price is a number from 0 on"):
        Price(*fields)
