"""Metrics as Prometheus would scrape them, from a runtime at work."""

from __future__ import annotations

import asyncio
import importlib
import re
import sys
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt
from prometheus_client import CollectorRegistry, generate_latest

import perdure
import perdure.runtime
from perdure.database.base import handle_of
from perdure.database.opening import open_database
from perdure.engine.queue.claims import Claim
from perdure.errors import MissingExtra, QueueFull
from perdure.model.ops import Now
from perdure.model.program import ask
from perdure.model.records import Partition
from perdure.model.runs.messages import Reply
from perdure.runtime import Channel, Logs, NotSent, Runtime, Settings, Undeliverable
from perdure.runtime.metrics import Metrics
from perdure.runtime.worker.backlog import Foreign
from perdure.storage.port import Driver
from tests.rewinding import capture, restore

ROOT = Path(__file__).resolve().parent.parent.parent
LABELS = {"graph", "channel", "state", "outcome", "le"}


async def talk(state: MessagesState) -> dict[str, Any]:
    said = state["messages"][-1].content
    if said == "boom":
        raise RuntimeError
    if said == "ask":
        return {"messages": [AIMessage(interrupt("really?"))]}
    return {"messages": [AIMessage(f"you said {said}")]}


GRAPH = StateGraph(MessagesState).add_node(talk).add_edge(START, "talk").compile()


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def test_a_runtime_at_work(registry: CollectorRegistry, tmp_path: Path) -> None:
    tried: set[str] = set()

    async def send(thread: str, reply: Reply) -> str | None:
        if "never" in reply.payload["content"]:
            raise Undeliverable
        if reply.id not in tried:
            tried.add(reply.id)
            raise NotSent
        return None

    async def main() -> None:
        settings = Settings(attempts=2, backoff=0.01, poll=0.05, max_pending=1)
        async with (
            perdure.connect(f"sqlite:///{tmp_path}/t.db", migrate=True) as db,
            Runtime(
                db, GRAPH, channels={"post": Channel(send)}, settings=settings, observers=[Metrics(registry)]
            ) as runtime,
        ):
            for text in ("hello", "never", "boom", "ask"):
                ticket = await runtime.accept("ada", text, channel="post", dedupe_key=text)
                await runtime.accept("ada", text, channel="post", dedupe_key=text)
                await runtime.wait(ticket, 60)
            await runtime.accept("full", "first", debounce=60, max_wait=60)
            with pytest.raises(QueueFull):
                await runtime.accept("full", "second")
            async with asyncio.timeout(60):
                while {r.state for r in await runtime.replies("ada")} & {"ready", "sending"}:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)

    asyncio.run(main())

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"perdure_{name}", labels)

    agent = {"graph": "agent"}
    assert value("messages_total", **agent, channel="post", outcome="accepted") == 4
    assert value("messages_total", **agent, channel="post", outcome="duplicate") == 4
    assert value("messages_total", **agent, channel="", outcome="accepted") == 1
    assert value("messages_total", **agent, channel="", outcome="refused") == 1
    assert value("queue_age_seconds_count", **agent) == 4
    assert 0 <= (value("queue_age_seconds_sum", **agent) or 0) < 200
    states = {"done": 2, "failed": 1, "waiting": 1}
    assert {s: value("run_duration_seconds_count", **agent, state=s) for s in states} == states
    assert 0.005 < (value("run_duration_seconds_sum", **agent, state="failed") or 0) < 200
    assert value("run_attempts_total", **agent) == 5
    assert value("run_attempts_failed_total", **agent) == 2
    assert value("runs_open", **agent) == 0
    # The apology for the run that failed is a reply as well.
    delivered = {"ready": 2, "sent": 2, "dead": 1, "unknown": 0}
    assert {s: value("deliveries_total", channel="post", state=s) for s in delivered} == delivered
    assert value("delivery_duration_seconds_count", channel="post") == 5
    for name in ("runs_lost", "stale_writes_refused", "lease_renewals_failed", "runs_handed_over"):
        assert value(f"{name}_total", **agent) == 0
    for name in ("outboxes_lost", "database_unavailable", "worker_errors"):
        assert value(f"{name}_total") == 0

    scraped = generate_latest(registry).decode()
    assert set(re.findall(r'([a-z_]+)="', scraped)) <= LABELS
    assert "ada" not in scraped
    assert "full" not in re.sub(r"# .*", "", scraped)


@pytest.mark.parametrize("noticed_by", ["a write", "the renewal"])
def test_a_run_that_another_worker_takes(registry: CollectorRegistry, noticed_by: str) -> None:
    async def main() -> None:
        lost = asyncio.Event()

        async def slow(state: MessagesState) -> dict[str, Any]:
            during.append(registry.get_sample_value("perdure_runs_open", {"graph": "agent"}))
            now = await handle_of(db).arun(ask(Now()))
            later = now + 60_000_000
            thief = Claim(
                Partition("", "ada"), "thief", ("agent",), later, 60_000_000, 50, handle_of(db).draw_version()
            )
            assert await handle_of(db).arun(thief.take(None)) is not None
            try:
                await asyncio.sleep(60 if noticed_by == "the renewal" else 0)
            finally:
                lost.set()
            return {"messages": [AIMessage("too late")]}

        graph = StateGraph(MessagesState).add_node(slow).add_edge(START, "slow").compile()
        settings = Settings(lease=2 if noticed_by == "the renewal" else 30)
        async with (
            perdure.connect("memory://") as db,
            Runtime(db, graph, settings=settings, observers=[Metrics(registry)]) as runtime,
        ):
            await runtime.accept("ada", "hello")
            await asyncio.wait_for(lost.wait(), 60)

    during: list[float | None] = []
    asyncio.run(main())
    graph = {"graph": "agent"}
    assert during == [1]
    assert registry.get_sample_value("perdure_runs_open", graph) == 0
    assert registry.get_sample_value("perdure_runs_lost_total", graph) == 1
    refused = registry.get_sample_value("perdure_stale_writes_refused_total", graph)
    assert refused == (1 if noticed_by == "a write" else 0)


def test_what_a_stopping_worker_hands_over(registry: CollectorRegistry) -> None:
    async def main() -> None:
        begun = asyncio.Event()

        async def slow(state: MessagesState) -> None:
            begun.set()
            await asyncio.sleep(60)

        graph = StateGraph(MessagesState).add_node(slow).add_edge(START, "slow").compile()
        async with (
            perdure.connect("memory://") as db,
            Runtime(db, graph, settings=Settings(drain=0), observers=[Metrics(registry)]) as runtime,
        ):
            await runtime.accept("ada", "hello")
            await asyncio.wait_for(begun.wait(), 60)

    asyncio.run(main())
    assert registry.get_sample_value("perdure_runs_handed_over_total", {"graph": "agent"}) == 1
    assert registry.get_sample_value("perdure_runs_lost_total", {"graph": "agent"}) == 0


@pytest.mark.parametrize(
    ("event", "metric", "labels"),
    [
        ("run.not_renewed", "lease_renewals_failed_total", {"graph": "g"}),
        ("reply.lost", "outboxes_lost_total", {}),
        ("worker.unserved_threads", "unserved_threads", {"what": "graph", "name": "g"}),
        ("worker.unavailable", "database_unavailable_total", {}),
        ("worker.error", "worker_errors_total", {}),
    ],
)
def test_what_seldom_happens(
    event: str, metric: str, labels: dict[str, str], registry: CollectorRegistry
) -> None:
    Metrics(registry).event(
        event, {"tenant": "t", "thread": "a", "graph": "g", "error": "OSError", "threads": 1}
    )
    assert registry.get_sample_value(f"perdure_{metric}", labels) == 1


@pytest.mark.parametrize("what", get_args(get_type_hints(Foreign)["what"]))
def test_whatever_is_not_served_is_counted(registry: CollectorRegistry, what: str) -> None:
    Metrics(registry).event("worker.unserved_threads", {what: "crons", "threads": 3})
    assert registry.get_sample_value("perdure_unserved_threads", {"what": what, "name": "crons"}) == 3


def test_what_it_does_not_know_it_lets_pass(registry: CollectorRegistry) -> None:
    metrics = Metrics(registry)
    before = generate_latest(registry)
    metrics.event("thread.deleted", {"thread": "a"})
    metrics.event("of another release", {})
    with metrics.span("of another release", {}):
        pass
    assert generate_latest(registry) == before


def test_a_second_attempt_is_no_queueing(registry: CollectorRegistry) -> None:
    metrics = Metrics(registry)
    for attempts in (1, 2):
        metrics.event("run.claimed", {"graph": "g", "attempts": attempts, "waited": 5_000_000})
    assert registry.get_sample_value("perdure_queue_age_seconds_sum", {"graph": "g"}) == 5


def test_the_first_failure_rises_from_zero(registry: CollectorRegistry) -> None:
    """A rate sees nothing of a series that begins at one."""
    metrics = Metrics(registry)
    metrics.event("message.accepted", {"graph": "g", "channel": "post"})
    failed = {"graph": "g", "state": "failed"}
    assert registry.get_sample_value("perdure_run_duration_seconds_count", failed) == 0
    assert registry.get_sample_value("perdure_runs_lost_total", {"graph": "g"}) == 0
    dead = {"channel": "post", "state": "dead"}
    assert registry.get_sample_value("perdure_deliveries_total", dead) == 0


def test_two_clocks_never_make_a_negative_time(registry: CollectorRegistry) -> None:
    metrics = Metrics(registry)
    metrics.event("run.claimed", {"graph": "g", "attempts": 1, "waited": -20})
    metrics.event("run.done", {"graph": "g", "took": -20})
    assert registry.get_sample_value("perdure_queue_age_seconds_sum", {"graph": "g"}) == 0
    assert registry.get_sample_value("perdure_run_duration_seconds_sum", {"graph": "g", "state": "done"}) == 0


def test_no_end_of_channels_is_an_end_of_series(registry: CollectorRegistry) -> None:
    metrics = Metrics(registry)
    for n in range(150):
        fields = {"graph": "g", "channel": f"user-{n}"}
        metrics.event("message.accepted", fields)
        metrics.event("reply.sent", fields)
        with metrics.span("send", fields):
            pass
    channels = {
        sample.labels["channel"]
        for family in registry.collect()
        for sample in family.samples
        if "channel" in sample.labels
    }
    assert len(channels) == 101
    other = {"graph": "g", "channel": "other", "outcome": "accepted"}
    assert registry.get_sample_value("perdure_messages_total", other) == 50


def test_one_registry_takes_one(registry: CollectorRegistry) -> None:
    Metrics(registry)
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        Metrics(registry)


def test_the_page_has_every_metric(registry: CollectorRegistry) -> None:
    Metrics(registry)
    page = (ROOT / "docs" / "observing.md").read_text()
    said = re.findall(r"^\| `(perdure_\w+)` \| (\w+) \|", page, re.MULTILINE)
    ours = {
        (f"{family.name}_total" if family.type == "counter" else family.name, family.type)
        for family in registry.collect()
    }
    assert set(said) == ours
    # What the alerts ask for exists.
    names = {name for name, _ in ours}
    for name in re.findall(r"(perdure_\w+)[{\[]", page):
        assert re.sub(r"_(bucket|count|sum)$", "", name) in names


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.delitem(sys.modules, "perdure.runtime.metrics")
    with pytest.raises(MissingExtra, match=r'^metrics need an extra: pip install "perdure\[metrics\]"$'):
        importlib.import_module("perdure.runtime.metrics")
    importlib.reload(perdure.runtime)  # which needs no extra


def test_threads_that_came_back_older(registry: CollectorRegistry, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        db = open_database("memory://", migrate=True, wrap=kept)
        async with Runtime(db, GRAPH, observers=[Logs(), Metrics(registry)]) as runtime:
            await runtime.wait(await runtime.accept("ada", "hello"))
            past = capture(drivers[0])
            await runtime.wait(await runtime.accept("ada", "hello again"))
            assert registry.get_sample_value("perdure_threads_older_total") == 0
            restore(drivers[0], past)
            await runtime.graph("agent").aget_state({"configurable": {"thread_id": "ada"}})
        db.close()

    drivers: list[Driver] = []

    def kept(driver: Driver) -> Driver:
        drivers.append(driver)
        return driver

    asyncio.run(main())
    assert registry.get_sample_value("perdure_threads_older_total") == 1
    (record,) = [r for r in caplog.records if getattr(r, "event", None) == "thread.older"]
    assert (record.levelname, record.perdure_thread) == ("WARNING", "ada")  # type: ignore[attr-defined]
