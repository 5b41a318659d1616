"""Child processes made to be killed: workers, senders, and single processes that do both.

A zygote imports everything once and only forks, so that a process which opens the database for the first time
costs a hundredth of a cold start. Processes record their observations in files, a line in one ``write``, so
that a line is there exactly if its event has happened. Only for systems that can fork.
"""

from __future__ import annotations

import asyncio
import datetime
import json
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, TypeVar

from langgraph.config import get_config
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt

from perdure.database.base import handle_of
from perdure.database.blocking import SyncDatabase
from perdure.database.opening import open_database
from perdure.engine.queue import runs
from perdure.engine.queue.inbox import Strategy
from perdure.errors import PerdureError
from perdure.langgraph.loop_state import read_carrier
from perdure.model.ops import Check, Commit, Committed, Fetch, FindDue, Get, Put, Refused
from perdure.model.program import Effect, ask
from perdure.model.records import CHECKPOINT, EPOCH, LANE, WRITE, Partition
from perdure.model.runs.messages import OPEN, WAITING, Message, Reply
from perdure.model.runs.payloads import MESSAGE, RESUME
from perdure.model.runs.queue import IN
from perdure.runtime.agents.agent import Agent
from perdure.runtime.runtime import Runtime
from perdure.runtime.settings import Settings
from perdure.runtime.tickets import Ticket
from perdure.runtime.worker.delivery import Channel
from perdure.storage.port import (
    Answers,
    Capabilities,
    CommitLimits,
    Driver,
    acommit_and_fetch,
)
from perdure.storage.url import backend_of
from perdure.testing.faults import Fault, FaultyDriver, kill
from tests.chaos.history import Log, Pause, logging_agent
from tests.packing_soon import pack_soon

R = TypeVar("R")

FOREVER = 1 << 52
"""Time later than every due time."""

_UNWANTED = 0.15
_STRATEGIES: tuple[Strategy, ...] = ("steer", "steer", "steer", "steer", "enqueue")
_THINKS_S = (0.0, 0.02, 0.2, 0.5)


@dataclass(frozen=True)
class ProcessJob:
    """Work of one process until it is killed.

    Attributes:
        folder: place of the shared files. A file ``enough`` in it ends a sender that has sent ``messages``.
        skew_s: seconds by which its clock is ahead.
        lease: lease of its runs in seconds.
        threads: threads of a sender.
        every_s: mean seconds between two messages.
        poll: seconds between two polls.
        at: number of the storage effect at which a single process ends itself, ``before`` or ``after`` it.
        steers: messages steer the open run, some are withdrawn, and the graph's steps ask for them or the
            worker takes them up between steps.
        breaks: function that removes a guard, as ``module:function``, to check the checks.
    """

    role: Literal["worker", "sender", "lone"]
    name: str
    url: str
    folder: str
    seed: int = 0
    skew_s: float = 0.0
    lease: float = 1.2
    threads: Sequence[str] = ()
    messages: int = 0
    every_s: float = 0.3
    scenario: str = "plain"
    poll: float = 0.2
    at: int = 0
    when: Literal["before", "after"] = "before"
    steers: bool = False
    breaks: str = ""
    environment: Mapping[str, str] = field(default_factory=dict[str, str])


class JsonLines:
    """JSON lines in a file that several processes append to."""

    def __init__(self, folder: str, name: str) -> None:
        self._file = os.open(Path(folder, name), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def line(self, *what: Any) -> None:
        os.write(self._file, json.dumps(what).encode() + b"\n")

    @staticmethod
    def lines(folder: str, name: str) -> list[list[Any]]:
        path = Path(folder, name)
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


class _Noted:
    """Observer that records events."""

    def __init__(self, journal: JsonLines, job: ProcessJob) -> None:
        self._journal, self._job = journal, job

    def event(self, name: str, fields: dict[str, Any]) -> None:
        self._journal.line(name, self._job.name, fields.get("thread", ""), fields.get("run", ""))

    @contextmanager
    def span(self, name: str, fields: dict[str, Any]) -> Iterator[None]:
        yield


class _Watched:
    """Driver that records the tasks whose writes were stored, and the epoch of each.

    With ``suspects`` it reads the thread's lease holder before each write of a run, and records a write that
    another process was allowed to store.
    """

    def __init__(self, inner: Driver, journal: JsonLines, owner: str, *, suspects: bool) -> None:
        self._inner, self._journal, self._owner, self._suspects = inner, journal, owner, suspects

    @property
    def limits(self) -> CommitLimits:
        return self._inner.limits

    @property
    def capabilities(self) -> Capabilities:
        return self._inner.capabilities

    def perform(self, effect: Effect[R]) -> R:
        return self._inner.perform(effect)

    async def aperform(self, effect: Effect[R]) -> R:
        commit = _of_a_run(effect)
        if commit is None:
            return await self._inner.aperform(effect)
        owner: str | None = self._owner
        if self._suspects:
            (lane,) = await self._inner.aperform(Fetch(commit.partition, (Get(LANE, (IN,)),)))
            owner = lane[0].fields["owner"] if lane else None
        answer = await self._inner.aperform(effect)
        if isinstance(answer, Committed):
            if owner != self._owner:
                self._journal.line("stale", commit.partition.thread, owner, self._owner)
            epochs = [op.expect for op in commit.ops if isinstance(op, Check) and op.kind is EPOCH]
            epoch = epochs[0] if epochs and isinstance(epochs[0], int) else None
            tasks = {
                op.key[2] for op in commit.ops if isinstance(op, Put) and op.kind is WRITE and op.key[3] >= 0
            }
            for task in tasks:
                self._journal.line("stored", task, epoch)
        return answer

    async def acommit_and_fetch(
        self, commit: Commit, fetch: Fetch
    ) -> tuple[Committed | Refused, Answers | None]:
        if _of_a_run(commit) is not None:
            return await self.aperform(commit), None
        return await acommit_and_fetch(self._inner, commit, fetch)

    def close(self) -> None:
        self._inner.close()


def _of_a_run(effect: Effect[Any]) -> Commit | None:
    """Return the commit if it stores a checkpoint or a task's writes, otherwise ``None``."""
    if isinstance(effect, Commit) and any(
        isinstance(op, Put) and op.kind in (CHECKPOINT, WRITE) for op in effect.ops
    ):
        return effect
    return None


@contextmanager
def _opened(job: ProcessJob, journal: JsonLines) -> Iterator[tuple[SyncDatabase, FaultyDriver]]:
    made: list[FaultyDriver] = []

    def wrap(driver: Driver) -> Driver:
        made.append(FaultyDriver(driver, *([Fault(job.at, kill, job.when)] if job.at else [])))
        return _Watched(made[0], journal, job.name, suspects=job.role == "worker")

    database = open_database(job.url, wrap=wrap)
    try:
        yield database, made[0]
    finally:
        database.close()


def _note(job: ProcessJob, name: str, text: str = "") -> None:
    Path(job.folder, name).write_text(text)


def _is_noted(job: ProcessJob, name: str) -> bool:
    return Path(job.folder, name).exists()


def _ran(journal: JsonLines) -> None:
    """Record the start of a step, by its task, and the epoch."""
    configurable = get_config().get("configurable", {})
    thread = read_carrier(configurable)
    if thread.epoch is None:
        raise AssertionError("a step of a run does not know under which epoch it runs")
    journal.line("ran", configurable["__pregel_task_id"], thread.epoch)


def _provider(journal: JsonLines) -> Callable[[str, Reply], Any]:
    """Return a provider that records the key of each delivery, with delays before and after."""

    async def send(thread: str, reply: Reply) -> str:
        await asyncio.sleep(random.choice((0.0, 0.01)))
        journal.line("delivered", reply.id)
        await asyncio.sleep(random.choice((0.0, 0.01)))
        return f"provider {reply.id}"

    return send


def _runtime(job: ProcessJob, database: SyncDatabase, agent: Agent, journal: JsonLines) -> Runtime:
    return Runtime(
        database,
        agent,
        channels={"chat": Channel(_provider(journal), attempts=1000, timeout=job.lease * 0.5)},
        settings=Settings(
            lease=job.lease, poll=job.poll, attempts=1000, backoff=0.1, max_backoff=0.5, drain=0.0
        ),
        works=job.role != "sender",
        observers=(_Noted(journal, job),),
        name=job.name,
    )


# A worker


async def _work(job: ProcessJob) -> None:
    journal = JsonLines(job.folder, "journal")

    async def pause(step: int) -> None:
        _ran(journal)
        await asyncio.sleep(random.choice(_THINKS_S))

    asking = random.choice(((), (1,), (0, 1, 2))) if job.steers else ()
    before = () if asking and random.random() < 0.5 else None
    agent = logging_agent(pause, asking, steer_before=before)
    with _opened(job, journal) as (database, _):
        async with _runtime(job, database, agent, journal):
            await asyncio.Event().wait()


# A sender


async def _nothing(step: int) -> None:
    """Do nothing: no step is taken where messages are only accepted."""


async def _send(job: ProcessJob) -> None:
    journal = JsonLines(job.folder, "journal")
    own = JsonLines(job.folder, f"acknowledged by {job.name}")
    known: dict[str, list[list[Any]]] = {thread: [] for thread in job.threads}
    for line in JsonLines.lines(job.folder, f"acknowledged by {job.name}"):
        known[line[0]].append(line)
    with _opened(job, journal) as (database, _):
        async with _runtime(job, database, logging_agent(_nothing), journal) as app:
            while sum(map(len, known.values())) < job.messages or not _is_noted(job, "enough"):
                thread = random.choice(job.threads)
                for _ in range(random.choice((1, 1, 1, 3))):
                    text = f"{thread} message {len(known[thread])}"
                    ticket = await _insist(app, thread, text, journal, steers=job.steers)
                    known[thread].append([thread, text, ticket.number, ticket.id])
                    own.line(*known[thread][-1])
                    if job.steers and random.random() < _UNWANTED:
                        await _withdraw(app, ticket, journal)
                if random.random() < 0.15:
                    _, text, number, message_id = random.choice(known[thread])
                    ticket = await _insist(app, thread, text, journal, steers=job.steers)
                    journal.line("again", text)
                    if (ticket.number, ticket.id, ticket.is_duplicate) != (number, message_id, True):
                        journal.line("wrong", f"{text!r} was number {number}, and then {ticket}")
                await asyncio.sleep(random.uniform(0.0, 2 * job.every_s))


async def _withdraw(app: Runtime, ticket: Ticket, journal: JsonLines) -> None:
    try:
        is_withdrawn = await app.withdraw(ticket.thread_id, ticket.id)
    except PerdureError:
        # It may have happened: the stored message is what the audit asks.
        return
    journal.line("withdrawn" if is_withdrawn else "not withdrawn", ticket.thread_id, ticket.number)


async def _insist(
    app: Runtime, thread: str, text: str, journal: JsonLines, *, steers: bool = False
) -> Ticket:
    """Send a message until it is acknowledged."""
    while True:
        journal.line("sent", text)
        try:
            quiet = random.choice((0.0, 0.0, 0.3))
            strategy: Strategy = random.choice(_STRATEGIES) if steers else "enqueue"
            return await app.accept(
                thread, text, dedupe_key=text, channel="chat", debounce=quiet, strategy=strategy
            )
        except PerdureError as error:
            journal.line("not acknowledged", text, type(error).__name__)
            await asyncio.sleep(0.1)


# A lone process


def _asking_agent(pause: Pause) -> Agent:
    """Return an agent whose graph asks one question and continues with the answer."""

    async def begin(state: Log) -> dict[str, list[str]]:
        await pause(0)
        return {"log": ["s:0"]}

    async def question(state: Log) -> dict[str, list[str]]:
        await pause(1)
        asked = any(entry.startswith("a:") for entry in state["log"])
        return {"log": ["s:1"] if asked else [f"a:{interrupt('which?')}"]}

    def to_input(messages: Sequence[Message]) -> Any:
        if RESUME in messages[0].payload:
            return Command(resume=messages[0].payload[RESUME])
        return {"log": [f"m:{message.payload[MESSAGE]['content']}" for message in messages]}

    def to_replies(values: Mapping[str, Any], messages: Sequence[Message]) -> list[Any]:
        return [{"content": str(len(values["log"]))}]

    builder = StateGraph(Log)
    builder.add_node("begin", begin)
    builder.add_node("question", question)
    builder.add_edge(START, "begin")
    builder.add_edge("begin", "question")
    builder.add_edge("question", END)
    return Agent(builder.compile(), to_input=to_input, to_replies=to_replies)


SCENARIOS = ("plain", "debounce", "threads", "failing", "interrupt")
"""Scenarios of a single process: two messages on a thread; two that are debounced; two threads; a step that
fails at first; a question, its answer, and a message after it."""


def messages_of(scenario: str) -> list[tuple[str, str]]:
    """Return the messages of a scenario, each with its thread."""
    return [("a", "one"), ("b" if scenario == "threads" else "a", "two")]


async def _live(job: ProcessJob) -> None:
    """Send the messages, work on them, and come to rest; continues where the process before was ended."""
    journal = JsonLines(job.folder, "journal")
    acknowledged = {tuple(line[1:3]) for line in JsonLines.lines(job.folder, "journal") if line[0] == "acked"}

    async def pause(step: int) -> None:
        _ran(journal)
        if job.scenario == "failing" and step == 1 and not _is_noted(job, "failed"):
            _note(job, "failed")
            raise RuntimeError("a step that fails at first")

    agent = (_asking_agent if job.scenario == "interrupt" else logging_agent)(pause)
    clean = open_database(job.url)  # reads here are no steps of the scenario
    try:
        with _opened(job, journal) as (database, driver):
            async with _runtime(job, database, agent, journal) as app:
                for thread, text in messages_of(job.scenario):
                    if (thread, text) not in acknowledged:
                        quiet = 0.1 if job.scenario == "debounce" else 0.0
                        await app.accept(thread, text, dedupe_key=text, channel="chat", debounce=quiet)
                        journal.line("acked", thread, text)
                    if job.scenario == "interrupt" and text == "one":
                        await _over(clean, thread, 1)
                        await app.answer(thread, "this", dedupe_key="answer", channel="chat")
                        await _over(clean, thread, 2)
                # No event exists for this: the state is in the database.
                while await handle_of(clean).arun(ask(FindDue("", until=FOREVER))):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
                _note(job, "effects", str(driver.count))
    finally:
        clean.close()


async def _over(database: SyncDatabase, thread: str, count: int) -> None:
    """Wait until a thread has ``count`` runs that are not open."""
    while True:
        found = await handle_of(database).arun(runs.read_latest(Partition("", thread), 10))
        if len(found) >= count and found[-count].state != OPEN:
            if count == 1 and found[-1].state != WAITING:
                raise AssertionError(f"the first run is {found[-1].state}, and waits for no answer")
            return
        await asyncio.sleep(0.02)


# Roles

_ROLES = {"worker": _work, "sender": _send, "lone": _live}


def skew(seconds: float) -> None:
    """Set this process's clock ahead by ``seconds``, in every module that is loaded."""
    real_time, real_time_ns, real = time.time, time.time_ns, datetime.datetime
    ahead = datetime.timedelta(seconds=seconds)

    class Instances(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, real)

    class Skewed(datetime.datetime, metaclass=Instances):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Any:
            return real.now(tz) + ahead

        @classmethod
        def utcnow(cls) -> Any:
            return real.now(datetime.UTC).replace(tzinfo=None) + ahead

    replaced: list[tuple[Any, Any]] = [
        (real_time, lambda: real_time() + seconds),
        (real_time_ns, lambda: real_time_ns() + round(seconds * 1e9)),
        (real, Skewed),
    ]
    for module in list(sys.modules.values()):
        for name, value in list(getattr(module, "__dict__", {}).items()):
            for before, after in replaced:
                if value is before:
                    setattr(module, name, after)


def remove_guard(place: str) -> None:
    """Remove a guard for the rest of this process."""
    import pytest

    module, _, name = place.partition(":")
    getattr(import_module(module), name)(pytest.MonkeyPatch())


def _be(job: ProcessJob) -> None:
    if job.skew_s:
        skew(job.skew_s)
    os.environ.update(job.environment)
    random.seed(job.seed)
    if job.breaks:
        remove_guard(job.breaks)
    asyncio.run(_ROLES[job.role](job))


def _fork(job: ProcessJob) -> int:
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        nowhere = os.open(os.devnull, os.O_RDWR)
        os.dup2(nowhere, 0)
        os.dup2(nowhere, 1)
        _be(job)
        status = 0
    except BaseException:
        Path(job.folder, f"error of {job.name}").write_text(traceback.format_exc())
    finally:
        os._exit(status)


def serve() -> None:
    """Fork a process for each line of JSON on standard input; kill the rest at its end."""
    children: set[int] = set()
    try:
        for line in sys.stdin:
            request = json.loads(line)
            if "start" in request:
                job = ProcessJob(**request["start"])
                backend_of(job.url)  # its client is imported here, once
                answer = _fork(job)
                children.add(answer)
            else:
                _, answer = os.waitpid(request["reap"], 0)
                children.discard(request["reap"])
            print(json.dumps(answer), flush=True)
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


if __name__ == "__main__":
    pack_soon()
    serve()
