"""What a runtime tells: nothing that anybody wrote, in lines that cannot be forged, and at no run's cost."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph

import perdure
from perdure.errors import QueueFull
from perdure.model.runs import messages
from perdure.model.runs.messages import Reply
from perdure.runtime import Channel, NotSent, Runtime, Settings, Undeliverable
from perdure.runtime.observers import Logs, Observers
from perdure.runtime.worker.cron_service import Outcome

ROOT = Path(__file__).resolve().parent.parent.parent
SECRET = "the-word-that-nobody-logs"
SETTINGS = Settings(attempts=2, backoff=0.01, poll=0.05, max_pending=2)


async def talk(state: MessagesState) -> dict[str, Any]:
    said = state["messages"][-1].content
    if "boom" in said:
        raise RuntimeError(f"cannot answer {said}")
    return {"messages": [AIMessage(f"you said {said}")]}


GRAPH = StateGraph(MessagesState).add_node(talk).add_edge(START, "talk").compile()


class Post:
    """A channel's provider: it refuses each reply once, and those that mention ``never`` for good."""

    def __init__(self) -> None:
        self.seen: set[str] = set()

    async def send(self, thread: str, reply: Reply) -> str:
        text = reply.payload["content"]
        if "never" in text:
            raise Undeliverable(text)
        if reply.id not in self.seen:
            self.seen.add(reply.id)
            raise NotSent(text)
        return "provider-1"


async def scenario(*observers: Any) -> None:
    """A bit of everything that can happen in one process."""
    channels = {"post": Channel(Post().send)}
    async with (
        perdure.connect("memory://") as db,
        Runtime(db, GRAPH, channels=channels, settings=SETTINGS, observers=observers) as runtime,
    ):
        for text in ("hello", "never", "boom"):
            ticket = await runtime.accept("ada", f"{text} {SECRET}", channel="post", dedupe_key=text)
            assert (await runtime.accept("ada", f"{text} {SECRET}", dedupe_key=text)).is_duplicate
            await runtime.wait(ticket, 60)
        for _ in range(2):
            await runtime.accept("full", SECRET, debounce=60, max_wait=60)
        with pytest.raises(QueueFull):
            await runtime.accept("full", SECRET)
        async with asyncio.timeout(60):
            while {r.state for r in await runtime.replies("ada")} & {"ready", "sending"}:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        await runtime.delete("ada")


class Heard:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.spans: list[str] = []

    def event(self, name: str, fields: dict[str, Any]) -> None:
        self.events.append((name, fields))

    @contextmanager
    def span(self, name: str, fields: dict[str, Any]) -> Iterator[None]:
        self.spans.append(name)
        yield


class Broken:
    """An observer with a fault in everything it does."""

    def __init__(self, at: str) -> None:
        self.at = at

    def event(self, name: str, fields: dict[str, Any]) -> None:
        if self.at == "event":
            raise OSError("disk full")

    @contextmanager
    def span(self, name: str, fields: dict[str, Any]) -> Iterator[None]:
        if self.at == "enter":
            raise OSError("disk full")
        yield
        if self.at == "exit":
            raise OSError("disk full")


class Json(logging.Formatter):
    """As formatters of structured logs work: whatever a record has beyond the usual."""

    usual = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}

    def format(self, record: logging.LogRecord) -> str:
        extra = {key: value for key, value in vars(record).items() if key not in self.usual}
        return json.dumps({"level": record.levelname, "message": record.getMessage(), **extra})


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[list[dict[str, Any]]]:
    """What the logger wrote, as JSON, filled when it is first looked at."""

    class Lines(list[dict[str, Any]]):
        def __iter__(self) -> Iterator[dict[str, Any]]:
            ours = [r for r in caplog.records if r.name == "perdure.runtime"]
            return iter([json.loads(Json().format(record)) for record in ours])

    with caplog.at_level(logging.DEBUG):
        yield Lines()


def test_nothing_that_anybody_wrote_is_told(
    caplog: pytest.LogCaptureFixture, lines: list[dict[str, Any]]
) -> None:
    heard = Heard()
    asyncio.run(scenario(Logs(), heard))
    told = {name for name, _ in heard.events}
    assert told >= {
        "message.accepted",
        "message.duplicate",
        "message.refused",
        "run.claimed",
        "run.attempt_failed",
        "run.done",
        "run.failed",
        "reply.ready",
        "reply.sent",
        "reply.dead",
        "thread.deleted",
    }
    assert set(heard.spans) == {"run", "send"}
    assert SECRET not in repr(heard.events)
    assert caplog.records
    assert not [r for r in caplog.records if SECRET in repr(vars(r)) or SECRET in r.getMessage()]
    assert [line["event"] for line in lines] == [name for name, _ in heard.events]


def test_a_structured_log_has_every_field(lines: list[dict[str, Any]]) -> None:
    Observers([Logs()]).event("run.done", thread="ada", tenant="", run="r1", took=1500)
    assert list(lines) == [
        {
            "level": "DEBUG",
            "message": "run.done thread=ada run=r1 took=1.5ms",
            "event": "run.done",
            "perdure_thread": "ada",
            "perdure_tenant": "",
            "perdure_run": "r1",
            "perdure_took": 1500,
        }
    ]


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("ada", "ada"),
        ("ada run=r2", '"ada run=r2"'),
        ("ada\nERROR run.failed", '"ada\\nERROR run.failed"'),
        ('a"b', '"a\\"b"'),
        ("æther", "æther"),
        ("æ b", '"æ b"'),
        ("a\u2028b", '"a\\u2028b"'),
        ("a\x1b[31m", '"a\\u001b[31m"'),
        ("\ud800", '"\\ud800"'),
        ("a" * 5000, "a" * 120 + "…"),
    ],
)
def test_no_name_can_forge_a_line_or_a_field(name: str, shown: str, lines: list[dict[str, Any]]) -> None:
    Observers([Logs()]).event("message.accepted", thread=name)
    (line,) = lines
    assert line["message"] == f"message.accepted thread={shown}"
    assert line["perdure_thread"] == name


@pytest.mark.parametrize(
    ("event", "level"),
    [
        ("message.accepted", "DEBUG"),
        ("run.attempt_failed", "WARNING"),
        ("run.claimed", "DEBUG"),
        ("run.failed", "ERROR"),
        ("run.lost", "WARNING"),
        ("run.not_renewed", "WARNING"),
        ("reply.dead", "ERROR"),
        ("reply.sent", "DEBUG"),
        ("worker.unavailable", "WARNING"),
        ("worker.error", "ERROR"),
    ],
)
def test_what_somebody_should_look_at_is_loud(event: str, level: str, lines: list[dict[str, Any]]) -> None:
    Logs().event(event, {})
    assert [line["level"] for line in lines] == [level]


def test_a_log_that_nobody_reads_costs_nothing(
    caplog: pytest.LogCaptureFixture, lines: list[dict[str, Any]]
) -> None:
    caplog.set_level(logging.WARNING, logger="perdure.runtime")

    class Unreadable:
        def __str__(self) -> str:
            raise AssertionError

    Logs().event("run.done", {"thread": Unreadable()})
    assert not list(lines)


@pytest.mark.parametrize("at", ["event", "enter", "exit"])
def test_an_observer_that_raises_costs_no_run(at: str, lines: list[dict[str, Any]]) -> None:
    heard = Heard()
    asyncio.run(scenario(Broken(at), heard))
    assert {"run.done", "run.failed", "reply.sent"} <= {name for name, _ in heard.events}
    assert {line["message"] for line in lines} >= {
        f"Broken failed at {name}; the work continues"
        for name in (["run.done"] if at == "event" else ["run", "send"])
    }


@pytest.mark.parametrize("at", ["enter", "exit", "nowhere"])
def test_a_span_passes_on_what_its_work_raises(at: str) -> None:
    class Hiding(Broken):
        @contextmanager
        def span(self, name: str, fields: dict[str, Any]) -> Iterator[None]:
            try:
                yield
            except ValueError:
                return

    with pytest.raises(ValueError, match="the work's"), Observers([Hiding(at), Broken(at)]).span("run"):
        raise ValueError("the work's")


def test_the_page_has_every_event() -> None:
    code = "".join(
        file.read_text()
        for file in (ROOT / "src/perdure/runtime").rglob("*.py")
        if file.name not in ("__init__.py", "observers.py", "metrics.py")
    )
    told = set(
        re.findall(
            r'"((?:checkpoint|conversation|database|leases|limit|model|memory|message|run|reply|state|sweep|thread|worker)\.[a-z_]+)"',
            code,
        )
    )
    states = (messages.DONE, messages.FAILED, messages.INTERRUPTED, messages.ROLLED_BACK, messages.WAITING)
    told |= {f"run.{state}" for state in states}
    told |= {f"cron.{outcome}" for outcome in get_args(Outcome)}
    told |= {
        f"reply.{state}"
        for state in (messages.READY, messages.SENDING, messages.SENT, messages.UNKNOWN, messages.DEAD)
    }
    page = (ROOT / "docs" / "observing.md").read_text()
    assert set(re.findall(r"^\| `([a-z_]+\.[a-z_]+)` \|", page, re.MULTILINE)) == told


def test_the_page_has_every_level(lines: list[dict[str, Any]]) -> None:
    page = (ROOT / "docs" / "observing.md").read_text()
    said = re.findall(r"^\| `([a-z_]+\.[a-z_]+)` \| ([a-z]+) \|", page, re.MULTILINE)
    for event, _ in said:
        Logs().event(event, {})
    assert [(line["event"], line["level"].lower()) for line in lines] == said
