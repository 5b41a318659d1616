"""What the runtime's tests share: an agent that does as it is told, one storage for several processes, and
ways to cut such a process off, or to set its database's clock.
"""

from __future__ import annotations

import asyncio
import operator
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar, cast

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.pregel import Pregel
from langgraph.types import interrupt

from perdure.database.base import handle_of
from perdure.database.blocking import SyncDatabase
from perdure.database.handle import DatabaseHandle
from perdure.database.opening import open_database
from perdure.engine import documents
from perdure.engine.documents import Document
from perdure.errors import Unavailable
from perdure.model.ops import Commit, Committed, Fetch, Now, Range, Refused
from perdure.model.program import Effect
from perdure.model.records import KINDS, LISTED, Partition, Record
from perdure.model.runs.messages import Reply
from perdure.model.values.chunks import Digester
from perdure.runtime import Channel, Observer, Runtime, Settings
from perdure.storage.encryption import EncryptedDriver
from perdure.storage.memory import MemoryDriver
from perdure.storage.port import (
    Answers,
    Capabilities,
    CommitLimits,
    Driver,
    acommit_and_fetch,
)
from tests.backends import EMPTY

R = TypeVar("R")
T = TypeVar("T")

WITHIN_S = 60.0
"""How long anything is waited for. Nothing takes that long but a machine that has something else to do."""
HOUR_US = 3600 * 1_000_000
NEAR = ("memory", "sqlite")


def settings(**changed: Any) -> Settings:
    """Quick to look, quick to try again, slow to give a run away."""
    quick: dict[str, Any] = {"lease": 30.0, "poll": 0.1, "backoff": 0.02, "max_backoff": 0.1, "drain": 30.0}
    return Settings(**{**quick, **changed})


def go(main: Coroutine[Any, Any, T]) -> T:
    """Run a test's coroutine, and not for ever."""

    async def bounded() -> T:
        async with asyncio.timeout(WITHIN_S * 1.5):
            return await main

    return asyncio.run(bounded())


async def eventually(what: Callable[[], object]) -> None:
    """Wait until something is true."""
    async with asyncio.timeout(WITHIN_S):
        while not what():  # noqa: ASYNC110 - what is waited for tells nobody
            await asyncio.sleep(0.01)


async def eventually_stored(what: Callable[[], Awaitable[object]]) -> None:
    """As ``eventually``, of something that has to be asked for."""
    async with asyncio.timeout(WITHIN_S):
        while not await what():  # noqa: ASYNC110
            await asyncio.sleep(0.03)


# ---------------------------------------------------------------- the agent


class Said(MessagesState):
    """A conversation, and what its first step noted of it."""

    heard: Annotated[list[str], operator.add]


class Opaque:
    """Nothing that a checkpoint may hold."""


@dataclass(eq=False)
class Talk:
    """An agent of two steps: it notes what it hears, then answers to it. The first word of what was said last
    tells it what else to do: ``hold`` waits for the gate, ``boom`` raises, ``ask`` and ``twice`` interrupt,
    ``odd`` answers what cannot be stored. It counts what it does."""

    name: str = "echo"
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    calls: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    running: Counter[str] = field(default_factory=Counter[str])
    most: int = 0
    most_on_one: int = 0
    error: Exception = field(default_factory=lambda: RuntimeError("boom"))

    @property
    def under_way(self) -> int:
        return self.running.total()

    @property
    def graph(self) -> Pregel[Any, Any, Any, Any]:
        builder = StateGraph(Said)
        builder.add_node("hear", self._hear)
        builder.add_node("talk", self._talk)
        builder.add_edge(START, "hear")
        builder.add_edge("hear", "talk")
        return builder.compile()

    def _hear(self, state: Said) -> dict[str, Any]:
        return {"heard": [" + ".join(_new(state["messages"]))]}

    async def _talk(self, state: Said, config: RunnableConfig) -> dict[str, Any]:
        said, thread = _new(state["messages"]), config["configurable"]["thread_id"]
        self.calls.append((thread, " + ".join(said)))
        self.running[thread] += 1
        self.most = max(self.most, self.under_way)
        self.most_on_one = max(self.most_on_one, self.running[thread])
        try:
            return {"messages": [AIMessage(await self._answer(said))]}
        finally:
            self.running[thread] -= 1

    async def _answer(self, said: Sequence[str]) -> Any:
        word = said[-1].split()[0] if said else ""
        if word == "hold":
            await self.gate.wait()
        if word == "boom":
            raise self.error
        if word == "odd":
            return cast(str, [{"type": "text", "text": "", "odd": Opaque()}])
        if word == "ask":
            return f"{self.name}: you said {interrupt('really?')}"
        if word == "twice":
            return f"{self.name}: {interrupt('first?')}, {interrupt('second?')}"
        return f"{self.name}: {' + '.join(said)}"


def _new(messages: Sequence[BaseMessage]) -> list[str]:
    """What was said since the agent spoke last."""
    said: list[str] = []
    for message in messages:
        said = [] if message.type == "ai" else [*said, message.text]
    return said


def both() -> Pregel[Any, Any, Any, Any]:
    """An agent that asks two things at once."""

    class Asked(MessagesState):
        answers: Annotated[list[str], operator.add]

    def left(state: Asked) -> dict[str, Any]:
        return {"answers": [f"left {interrupt('left?')}"]}

    def right(state: Asked) -> dict[str, Any]:
        return {"answers": [f"right {interrupt('right?')}"]}

    def join(state: Asked) -> dict[str, Any]:
        return {"messages": [AIMessage(" and ".join(sorted(state["answers"])))]}

    builder = StateGraph(Asked)
    for node in (left, right, join):
        builder.add_node(node.__name__, node)
    for side in ("left", "right"):
        builder.add_edge(START, side)
    builder.add_edge(["left", "right"], "join")
    return builder.compile()


# ---------------------------------------------------------------- storage, and the processes on it


class Line:
    """A process's line to the storage. ``is_dead`` cuts it off for good, as the process's end would.
    ``ahead_us`` sets the database's clock forward. ``failing`` says for each request, by its number, whether
    the database is away then; ``on_commit`` is called before each commit and after it."""

    def __init__(self, inner: Driver) -> None:
        self._inner = inner
        self.is_dead = False
        self.ahead_us = 0
        self.count = 0
        self.commits = 0
        self.failing: Callable[[int], bool] = lambda number: False
        self.on_commit: Callable[[int, str], None] = lambda number, when: None
        self.before: Callable[[Effect[Any]], Awaitable[None]] | None = None

    @property
    def limits(self) -> CommitLimits:
        return self._inner.limits

    @property
    def capabilities(self) -> Capabilities:
        inner = self._inner.capabilities
        return Capabilities(has_listing=inner.has_listing, reads_with_commits=inner.reads_with_commits)

    def die_at(self, number: int, when: str) -> None:
        """Die at the commit of this number, from now, before it or after it."""
        start = self.commits

        def fall(at: int, moment: str) -> None:
            if (at, moment) == (start + number, when):
                self.is_dead = True
                self._up()

        self.on_commit = fall

    def perform(self, effect: Effect[R]) -> R:
        at = self._begun(effect)
        return self._ended(effect, at, self._inner.perform(effect))

    async def aperform(self, effect: Effect[R]) -> R:
        if self.before is not None:
            await self.before(effect)
        at = self._begun(effect)
        return self._ended(effect, at, await self._inner.aperform(effect))

    async def acommit_and_fetch(
        self, commit: Commit, fetch: Fetch
    ) -> tuple[Committed | Refused, Answers | None]:
        if self.before is not None:
            await self.before(commit)
        at = self._begun(commit)
        outcome, answers = await acommit_and_fetch(self._inner, commit, fetch)
        return self._ended(commit, at, outcome), answers

    def close(self) -> None:
        self._inner.close()

    def _up(self) -> None:
        if self.is_dead:
            raise Unavailable("this process is gone")

    def _begun(self, effect: Effect[Any]) -> int:
        self._up()
        self.count += 1
        if self.failing(self.count):
            raise Unavailable("the database is away for a moment")
        if not isinstance(effect, Commit):
            return 0
        self.commits += 1
        at = self.commits
        self.on_commit(at, "before")
        return at

    def _ended(self, effect: Effect[R], at: int, answer: R) -> R:
        self._up()
        if at:
            self.on_commit(at, "after")
        if isinstance(effect, Now):
            return cast(R, cast(int, answer) + self.ahead_us)
        return answer


class Storage:
    """One storage, opened anew by each process that a test makes."""

    def __init__(self, backend: str, url: str) -> None:
        self.backend = backend
        self.url = url
        self._memory = MemoryDriver()
        self._opened: list[SyncDatabase] = []
        self.driver: Driver
        _, line = self.open()
        self.driver = line

    @property
    def is_near(self) -> bool:
        return self.backend in NEAR

    def open(self, *, tenant: str = "") -> tuple[SyncDatabase, Line]:
        """A process's own way to the storage."""
        lines: list[Line] = []

        def wrap(driver: Driver) -> Driver:
            lines.append(Line(driver))
            return lines[0]

        if self.backend == "memory":
            handle = DatabaseHandle(
                wrap(EncryptedDriver(self._memory, None)), tenant=tenant, digest=Digester()
            )
            database = SyncDatabase(handle)
        else:
            database = open_database(self.url, migrate=not self._opened, tenant=tenant, wrap=wrap)
        self._opened.append(database)
        return database, lines[0]

    def database(self, *, tenant: str = "") -> SyncDatabase:
        return self.open(tenant=tenant)[0]

    def rows(self, thread: str, *kinds: Any, tenant: str = "") -> list[Record]:
        """What is stored of a thread: everything, or of some kinds."""
        effect = Fetch(Partition(tenant, thread), tuple(Range(kind) for kind in kinds or KINDS))
        return [record for answer in self.driver.perform(effect) for record in answer]

    def close(self) -> None:
        for database in self._opened:
            database.close()


@contextmanager
def stored(backend: str) -> Iterator[Storage]:
    """An empty storage."""
    with EMPTY[backend]() as url:
        storage = Storage(backend, url)
        try:
            yield storage
        finally:
            storage.close()


class Heard(Observer):
    """An observer that keeps what it is told."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def event(self, name: str, fields: dict[str, Any]) -> None:
        self.events.append((name, dict(fields)))

    def count(self, name: str) -> int:
        return sum(event == name for event, _ in self.events)


def vanish(runtime: Runtime, line: Line) -> None:
    """End a runtime as a crash would: nothing that it holds is given back, nothing more of it is stored."""
    line.is_dead = True
    worker = runtime._worker
    worker.dispatch.is_stopping = True
    working = (under_way.task for under_way in worker.runner._working.values())
    for task in (*worker._loops, *worker.dispatch._serving.values(), *working):
        task.cancel()


def advance(runtime: Runtime, by_us: int = HOUR_US) -> None:
    """Set the database's clock forward for a runtime that is under way: what is due by then is due now.

    A window of time that is longer than any test, and ends here, holds every message that a test says in it,
    however slow the machine is.
    """
    clock = runtime._context.clock
    ask = clock._ask

    async def later() -> int:
        return await ask() + by_us

    clock._ask = later
    clock.forget()


def deafen(runtime: Runtime) -> None:
    """Let a runtime renew nothing any more, as if its process had been suspended: its leases run out, and it
    does not know."""

    async def nothing(working: object) -> None:
        return

    runtime._worker.runner.leases._renew = nothing  # type: ignore[method-assign]


# ---------------------------------------------------------------- looking


async def values(database: SyncDatabase, graph: Pregel[Any, Any, Any, Any], thread: str) -> dict[str, Any]:
    """The state of a thread."""
    app = graph.copy(update={"checkpointer": database.checkpointer()})
    state = await app.aget_state({"configurable": {"thread_id": thread}})
    return dict(state.values)


async def spoken(database: SyncDatabase, graph: Pregel[Any, Any, Any, Any], thread: str) -> list[str]:
    """What was said on a thread, by whom it may be."""
    return [message.text for message in (await values(database, graph, thread)).get("messages", ())]


async def index_entry(runtime: Runtime, thread: str) -> Document | None:
    """The copy of a thread's document in the index of a server."""
    program = documents.get(Partition(runtime.tenant, *LISTED), LISTED[0], thread)
    return await handle_of(runtime.database).arun(program)


@dataclass(eq=False)
class Post:
    """A provider: it keeps what it was sent, with the key, and answers as ``reply`` says."""

    sent: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    tried: list[str] = field(default_factory=list[str])
    refuse: Callable[[Reply], Exception | None] = lambda reply: None
    after: Callable[[Reply], None] = lambda reply: None

    @property
    def texts(self) -> list[str]:
        return [text for _, text in self.sent]

    async def send(self, thread: str, reply: Reply) -> str:
        self.tried.append(reply.id)
        error = self.refuse(reply)
        if error is not None:
            raise error
        self.sent.append((reply.id, reply.payload["content"]))
        self.after(reply)
        return f"provider-{len(self.sent)}"

    async def find(self, thread: str, reply: Reply) -> str | None:
        keys = [key for key, _ in self.sent]
        return f"provider-{keys.index(reply.id) + 1}" if reply.id in keys else None

    def channel(self, **options: Any) -> Channel:
        return Channel(self.send, **{"timeout": 15.0, **options})


@asynccontextmanager
async def working(database: SyncDatabase, graph: Any, **options: Any) -> AsyncIterator[Runtime]:
    """A runtime with the tests' settings."""
    async with Runtime(database, graph, **{"settings": settings(), "observers": [], **options}) as runtime:
        yield runtime
