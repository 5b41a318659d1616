"""Runs that begin, watched at the storage port: what they ask of it, and what is there then."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.graph import END, START, StateGraph

from perdure import PerdureSaver, SyncDatabase
from perdure.database.opening import open_database
from perdure.model.ops import Commit, Put
from perdure.model.program import Effect
from perdure.model.records import CHECKPOINT
from perdure.storage.port import Capabilities, CommitLimits, Driver
from tests.backends import EMPTY
from tests.langgraph.graphs import STATES
from tests.langgraph.session import config

T = TypeVar("T")
R = TypeVar("R")
Node = Callable[[Any], Awaitable[Any]]


class NodeFailed(Exception):
    pass


async def answer(state: Any) -> Any:
    await asyncio.sleep(0.01)
    return {"said": ["an answer"]}


def graph(saver: PerdureSaver, node: Node = answer) -> Any:
    builder: Any = StateGraph(STATES["plain"])
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    builder.add_edge("node", END)
    return builder.compile(checkpointer=saver)


def given(word: str = "hello") -> Any:
    return {"said": [word]}


def said(saver: PerdureSaver) -> list[str]:
    return graph(saver).get_state(config()).values.get("said", [])


def sources(saver: PerdureSaver) -> list[Any]:
    """Where the checkpoints came from, oldest first; they have to be a chain."""
    found = list(saver.list(config(checkpoint_ns="")))
    ids = [item.checkpoint["id"] for item in found]
    parents = [item.parent_config and item.parent_config["configurable"]["checkpoint_id"] for item in found]
    assert parents == [*ids[1:], None][: len(ids)]
    return [item.metadata.get("source") for item in reversed(found)]


def stores(effect: Effect[Any]) -> list[tuple[Any, ...]]:
    """The checkpoints that a request stores."""
    ops = effect.ops if isinstance(effect, Commit) else ()
    return [op.key for op in ops if isinstance(op, Put) and op.kind is CHECKPOINT]


def is_opening(effect: Effect[Any]) -> bool:
    return len(stores(effect)) == 2


class Watched:
    """A driver that says what is asked of it. ``before`` is awaited ahead of each awaited request."""

    def __init__(self, inner: Driver) -> None:
        self._inner = inner
        self.effects: list[Effect[Any]] = []
        self.before: Callable[[Effect[Any]], Awaitable[object]] | None = None

    capabilities = Capabilities()

    @property
    def limits(self) -> CommitLimits:
        return self._inner.limits

    def perform(self, effect: Effect[R]) -> R:
        return self._inner.perform(effect)

    async def aperform(self, effect: Effect[R]) -> R:
        self.effects.append(effect)
        if self.before is not None:
            await self.before(effect)
        return await self._inner.aperform(effect)

    def close(self) -> None:
        self._inner.close()

    @property
    def openings(self) -> int:
        return sum(map(is_opening, self.effects))


@contextmanager
def watched(
    backend: str, around: Callable[[Driver], Driver] = lambda driver: driver
) -> Iterator[tuple[SyncDatabase, Watched]]:
    made: list[Watched] = []

    def wrap(driver: Driver) -> Driver:
        made.append(Watched(around(driver)))
        return made[0]

    with EMPTY[backend]() as url:
        database = open_database(url, migrate=True, wrap=wrap)
        try:
            yield database, made[0]
        finally:
            database.close()


def within(seconds: float, body: Awaitable[T]) -> T:
    async def bounded() -> T:
        return await asyncio.wait_for(body, seconds)

    return asyncio.run(bounded())


def assert_over(saver: PerdureSaver) -> None:
    assert saver._steps._steps == {}


@contextmanager
def sound(backend: str) -> Iterator[tuple[SyncDatabase, Watched]]:
    """A watched database in which nothing may be wrong in the end."""
    with watched(backend) as opened:
        yield opened
        assert opened[0].fsck() == []


class Direct:
    """The calls that LangGraph makes, one by one, on a driver whose commits wait for ``gate``."""

    def __init__(self, db: SyncDatabase, driver: Watched) -> None:
        self.saver = db.checkpointer()
        self.gate = asyncio.Event()
        driver.before = self._wait
        self.input = empty_checkpoint()
        self.step = empty_checkpoint()

    async def _wait(self, effect: Effect[Any]) -> None:
        if isinstance(effect, Commit):
            await self.gate.wait()

    async def begin(self) -> RunnableConfig:
        found = await self.saver.aget_tuple(config(checkpoint_ns=""))
        return config(checkpoint_ns="") if found is None else found.config

    def put_input(self, at: RunnableConfig) -> asyncio.Task[RunnableConfig]:
        return asyncio.ensure_future(self.saver.aput(at, self.input, {"source": "input", "step": -1}, {}))

    def on_input(self, at: RunnableConfig) -> RunnableConfig:
        return {"configurable": {**at["configurable"], "checkpoint_id": self.input["id"]}}

    def put_writes(self, at: RunnableConfig) -> asyncio.Task[None]:
        return asyncio.ensure_future(self.saver.aput_writes(self.on_input(at), [("x", 1)], "task"))

    def put_step(self, at: RunnableConfig) -> asyncio.Task[RunnableConfig]:
        put = self.saver.aput(self.on_input(at), self.step, {"source": "loop", "step": 0}, {})
        return asyncio.ensure_future(put)


def slowly(driver: Watched) -> None:
    async def before(effect: Effect[Any]) -> None:
        await asyncio.sleep(0.03 if isinstance(effect, Commit) else 0)

    driver.before = before


async def failing(state: Any) -> Any:
    raise NodeFailed
