"""A small world of one thread with two questions, and a model of what it shows.

The model knows the rules of docs/guarantees.md and docs/runtime.md, and nothing of the product but the tables
of ``perdure.model.runs.lifecycle``, which are compared with it.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import httpx
from fastapi import FastAPI
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt

from perdure.database.blocking import SyncDatabase
from perdure.errors import Conflict, NotFound, PerdureError
from perdure.model.runs import lifecycle
from perdure.model.runs.lifecycle import Facts, QuestionState
from perdure.runtime import Options, Runtime, Settings
from perdure.server.app import create_app
from perdure.server.auth.identity import OpenGate
from perdure.server.resources import ServerState
from tests.runtime.graphs import Line, Storage

OnFailure = Literal["keep", "rollback"]
THREAD = "ada"
PLACE: Any = {"configurable": {"thread_id": THREAD}}
QUESTIONS = ("send?", "pay?")


class State(TypedDict):
    log: Annotated[list[str], operator.add]


def _node(state: State) -> dict[str, Any]:
    word = state["log"][-1] if state["log"] else ""
    if word == "boom":
        raise RuntimeError("boom")
    if word != "ask":
        return {"log": ["echo"]}
    answers: list[Any] = []
    for question in QUESTIONS:
        answers.append(interrupt(question))
        if answers[-1] == "boom":
            raise RuntimeError("boom")
    return {"log": [" ".join(map(str, answers))]}


def _inner() -> Any:
    return StateGraph(State).add_node("node", _node).add_edge(START, "node").compile()


def _nested() -> Any:
    async def passes(state: State) -> dict[str, Any]:
        given = state["log"][-1:]
        after = await inner.ainvoke({"log": given})
        return {"log": after["log"][len(given) :]}

    inner = _inner()
    return StateGraph(State).add_node("node", passes).add_edge(START, "node").compile()


GRAPHS = {"flat": _inner(), "nested": _nested()}


class Entry(NamedTuple):
    """A message that waits: ``say``, ``empty``, ``goto`` or ``answer``, and its word."""

    kind: str
    word: Any = None


@dataclass(frozen=True)
class Model:
    """What the thread holds.

    Attributes:
        log: the words of its state.
        asks: the answers that the open step has, ``None`` if nothing is asked.
        queue: the messages that wait.
        rests: the step that was left without being asked: ``ask`` begins it anew, ``boom`` fails again.
        failed: the message whose run was the latest, and failed.
        is_stored: that run has stored a step.
        is_last: the thread's latest checkpoint is that step, or has the run's goto.
        retried: the latest failed run was repeated already.
    """

    on_failure: OnFailure
    exists: bool = False
    log: tuple[str, ...] = ()
    asks: tuple[str, ...] | None = None
    queue: tuple[Entry, ...] = ()
    rests: str = ""
    failed: Entry | None = None
    is_stored: bool = False
    is_last: bool = False
    retried: bool = False

    @property
    def facts(self) -> Facts:
        return Facts(
            is_busy=bool(self.queue), is_asking=self.asks is not None, has_failed=self.failed is not None
        )

    @property
    def question(self) -> str | None:
        """The question that may be answered."""
        if self.queue or self.asks is None:
            return None
        return QUESTIONS[len(self.asks)]

    def accept(self, entry: Entry) -> Model | None:
        """Return the model once a message is accepted, ``None`` if it is refused."""
        if entry.kind == "answer" and self.question is None:
            return None
        if entry.kind == "goto" and self.question is not None:
            return None
        return replace(self, exists=True, queue=(*self.queue, entry))

    def withdraw(self) -> Model:
        return replace(self, queue=self.queue[:-1])

    def work(self) -> Model:
        model = self
        while model.queue:
            entry, model = model.queue[0], replace(model, queue=model.queue[1:])
            model = model._run(entry)
        return model

    def _run(self, entry: Entry) -> Model:
        begun = replace(self, failed=None, is_stored=False, is_last=False, retried=False)
        match entry:
            case Entry("say", word):
                after = replace(begun, log=(*self.log, word), asks=None, rests="")
                return after._step(word, entry, self)
            case Entry("answer", word):
                return begun._answered(word, entry, self)
            case Entry("goto"):
                if self.asks is not None:
                    return self._fail(entry, self)
                return begun._step(self.log[-1] if self.log else "", entry, self)
            case _:
                pass  # an empty message goes on with what is there
        if self.asks is not None:
            return begun
        if self.rests:
            return begun._step(self.rests, entry, self)
        return begun if self.log else self._fail(entry, self)

    def _step(self, word: str, entry: Entry, before: Model) -> Model:
        if word == "ask":
            return replace(self, asks=(), rests="")
        if word == "boom":
            if self.on_failure == "rollback":
                return self._fail(entry, before)
            stored = entry.kind == "say"
            is_last = entry.kind in ("say", "goto")
            return replace(self, failed=entry, is_stored=stored, is_last=is_last, rests="boom", asks=None)
        return replace(self, log=(*self.log, "echo"), asks=None, rests="")

    def _answered(self, word: Any, entry: Entry, before: Model) -> Model:
        if word == "boom":
            return self._fail(entry, before)
        answers = (*(self.asks or ()), str(word))
        if len(answers) < len(QUESTIONS):
            return replace(self, asks=answers)
        return replace(self, log=(*self.log, " ".join(answers)), asks=None)

    def _fail(self, entry: Entry, before: Model) -> Model:
        left = replace(before, failed=entry, is_stored=False, is_last=False, retried=False)
        return replace(left, queue=self.queue)

    def retry(self) -> Model | None:
        """Return the model once the latest run is to be run again, ``None`` if that is refused."""
        if self.failed is None:
            return None
        if self.retried:
            return self
        if self.is_last:
            return None if self.queue else replace(self, queue=(Entry("empty"),), retried=True)
        if self.is_stored or (self.failed.kind == "answer" and self.question is None):
            return None
        return replace(self, queue=(*self.queue, self.failed), retried=True)

    def fork(self) -> Model:
        """Return the model once its latest checkpoint was copied: its step begins anew."""
        rests = "ask" if self.asks is not None else self.rests
        return replace(self, asks=None, rests=rests, is_last=False)


OpenWorker = Callable[[], tuple[Runtime, Line]]
"""Opens another process, and its line to the storage."""


class World:
    """The product: a runtime and a server over one database. ``shown`` has all of its views."""

    def __init__(
        self, runtime: Runtime, http: httpx.AsyncClient, database: SyncDatabase, open_worker: OpenWorker
    ) -> None:
        self.runtime, self.http, self.database = runtime, http, database
        self._open_worker = open_worker
        self.kills: Iterator[tuple[int, str] | None] = itertools.repeat(None)
        """Commits before or after which the worker dies, for each time that there is work."""
        self._ids = itertools.count()
        self._last: list[str] = []

    async def say(self, word: str) -> None:
        await self._note(self.runtime.submit(THREAD, {"log": [word]}))

    async def empty(self) -> None:
        await self._note(self.runtime.submit(THREAD, None))

    async def goto(self) -> None:
        await self._note(self.runtime.submit(THREAD, None, command={"goto": "node"}))

    async def answer(self, word: Any, by: str) -> None:
        question = await self.runtime.question(THREAD)
        named = None
        if by == "id":
            named = question.interrupts[0] if question is not None else "0" * 32
        elif by == "wrong":
            named = "f" * 32
        await self._note(self.runtime.answer(THREAD, word, interrupt_id=named, options=Options()))

    async def _note(self, accepting: Any) -> None:
        self._last.append((await accepting).id)

    async def withdraw(self) -> None:
        assert await self.runtime.withdraw(THREAD, self._last.pop())

    async def work(self) -> None:
        kill = next(self.kills)
        if kill is not None:
            await self._work_until_killed(*kill)
        # Another attempt is due a moment after the one before.
        await self.runtime.run_until_idle(THREAD, within=20)

    async def _work_until_killed(self, number: int, when: str) -> None:
        """Let a process work that dies at a commit, and end its lease, as its supervisor would."""
        worker, line = self._open_worker()
        line.die_at(number, when)
        async with worker:
            with suppress(Exception):
                await worker.run_until_idle(THREAD, within=20)
            line.is_dead = True
        await self.runtime.end_leases_of([worker.name])

    async def retry(self) -> None:
        runs = [run for run in await self.runtime.runs(THREAD) if run.note.get("begun", True)]
        if not runs:
            raise NotFound("no run")
        ticket = await self.runtime.retry(THREAD, runs[0].id)
        if not ticket.is_duplicate:
            self._last.append(ticket.id)

    async def fork(self) -> None:
        heads = self.database.checkpointer()
        found = heads.get_tuple(PLACE)
        if found is None:
            raise NotFound("no checkpoint")
        self.database.fork(THREAD, found.config["configurable"]["checkpoint_id"])

    async def delete(self) -> None:
        await self.runtime.delete(THREAD)
        self._last.clear()

    async def shown(self) -> dict[str, Any]:
        """The views of the thread: each with its question and its status."""
        thread = await self.http.get(f"/threads/{THREAD}")
        if thread.status_code == 404:
            return {"exists": False}
        state = (await self.http.get(f"/threads/{THREAD}/state")).json()
        body = thread.json()
        listed = {
            status: [
                each["thread_id"]
                for each in (await self.http.post("/threads/search", json={"status": status})).json()
            ]
            for status in ("idle", "busy", "interrupted", "error")
        }
        found = await self.runtime.question(THREAD)
        return {
            "exists": True,
            "log": (state["values"] or {}).get("log", []),
            "state": [each["value"] for each in state["interrupts"]],
            "tasks": [each["value"] for task in state["tasks"] for each in task["interrupts"]],
            "thread": [each["value"] for task in body["interrupts"].values() for each in task],
            "runtime": 0 if found is None else len(found.interrupts),
            "status": body["status"],
            "listed": [status for status, names in listed.items() if THREAD in names],
        }


@asynccontextmanager
async def world(
    storage: Storage, shape: str, on_failure: OnFailure, attempts: int = 1
) -> AsyncIterator[World]:
    """Open the product over a database; with several ``attempts`` its workers may be killed."""
    settings = Settings(
        attempts=attempts, on_failure=on_failure, backoff=0.001, max_backoff=0.002, shared_threads=True
    )

    def open_worker() -> tuple[Runtime, Line]:
        database, line = storage.open()
        return Runtime(database, {"agent": GRAPHS[shape]}, works=False, settings=settings), line

    database = storage.database()
    runtime = Runtime(database, {"agent": GRAPHS[shape]}, works=False, settings=settings)
    _app().state.perdure = ServerState.over(runtime, OpenGate())
    transport = httpx.ASGITransport(app=_app(), client=("127.0.0.1", 1))
    async with runtime, httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        yield World(runtime, http, database, open_worker)


@cache
def _app() -> FastAPI:
    """Return the server's application, which takes longer to make than a path to walk."""
    return create_app()


class Event(NamedTuple):
    """Something that happens: a message, or another act, with its word."""

    act: str
    word: Any = None
    by: str = ""

    def __str__(self) -> str:
        return " ".join(
            str(part) for part in self if part not in ("", None) or (part is self.word and self.by)
        )


EVENTS: tuple[Event, ...] = (
    Event("say", "ask"),
    Event("say", "plain"),
    Event("say", "boom"),
    Event("empty"),
    Event("goto"),
    Event("answer", "yes", "value"),
    Event("answer", None, "id"),
    Event("answer", "boom", "id"),
    Event("answer", "no", "wrong"),
    Event("work"),
    Event("withdraw"),
    Event("retry"),
    Event("fork"),
    Event("delete"),
)


def apply(model: Model, event: Event) -> Model | None:
    """Return the model after an event, ``None`` if the event is refused."""
    match event:
        case Event("say", word):
            return model.accept(Entry("say", word))
        case Event("empty" | "goto" as act):
            return model.accept(Entry(act))
        case Event("answer", _, "wrong"):
            return None
        case Event("answer", word):
            return model.accept(Entry("answer", word))
        case Event("withdraw"):
            return model.withdraw() if model.queue else model
        case Event("work"):
            return model.work()
        case Event("retry"):
            return model.retry()
        case Event("fork"):
            # An answer is for a question that a fork asks again.
            is_kept = not model.log or any(entry.kind == "answer" for entry in model.queue)
            return None if is_kept else model.fork()
        case Event("delete"):
            return Model(model.on_failure)
        case _:
            raise AssertionError(event)


async def perform(place: World, event: Event) -> bool:
    """Let an event happen; return False if it is refused."""
    try:
        match event:
            case Event("say", word):
                await place.say(word)
            case Event("answer", word, by):
                await place.answer(word, by)
            case _:
                await getattr(place, event.act)()
    except (Conflict, NotFound):
        return False
    return True


def expected(model: Model) -> dict[str, Any]:
    """Return what every view has to show, by the model and by the tables."""
    if not model.exists:
        return {"exists": False}
    is_open = lifecycle.decide_question_state(model.facts) is QuestionState.OPEN
    asked = [model.question] if is_open and model.question is not None else []
    status = lifecycle.decide_thread_status(model.facts)
    return {
        "exists": True,
        "log": list(model.log),
        "state": asked,
        "tasks": asked,
        "thread": asked,
        "runtime": len(asked),
        "status": status,
        "listed": [status],
    }


async def walk(place: World, events: tuple[Event, ...], on_failure: OnFailure) -> str | None:
    """Let events happen in order; return what differs from the model after one of them, if anything does."""
    model = Model(on_failure)
    for number, event in enumerate(events):
        if event.act == "withdraw" and not model.queue:
            continue
        after = apply(model, event)
        told = " | ".join(map(str, events[: number + 1]))
        try:
            is_accepted = await perform(place, event)
        except PerdureError as error:
            return f"{told}: {error!r}"
        if is_accepted is not (after is not None):
            return f"{told}: {'accepted' if is_accepted else 'refused'}, unlike the model {model}"
        model = model if after is None else after
        if number < len(events) - 1 and event.act not in ("work", "withdraw"):
            continue
        shown = await place.shown()
        if shown != expected(model):
            return f"{told}: {shown} is shown, {expected(model)} expected of {model}"
    return None
