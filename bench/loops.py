"""A process in which messages reach a graph several ways: by a bare loop, and through Perdure's runtime.

Questions arrive as JSON lines and answers leave the same way, as in `bench.worker`; they are read beside the
event loop, because a runtime that is open has something to do between them.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from langchain_core.messages import AIMessage
from langgraph.graph import START, StateGraph

from bench.candidate import URL_VARIABLE, Place
from bench.client import config_of
from bench.corpus import text
from bench.graphs import MESSAGE_BYTES, Chat
from bench.ways import RUNTIME, SYNC, WAYS
from bench.worker import send
from perdure.database.opening import open_database
from perdure.model.ops import Commit, Fetch
from perdure.model.program import Effect
from perdure.runtime import Runtime, Settings
from perdure.storage.port import Answers, Capabilities, CommitLimits, Driver, acommit_and_fetch

R = TypeVar("R")
Reply = dict[str, Any]

_TURNS_A_THREAD = 20


@dataclass
class Effects:
    """Requests to a driver."""

    commits: int = 0
    reads: int = 0

    def __sub__(self, other: Effects) -> Effects:
        names = [field.name for field in fields(self)]
        return Effects(**{name: getattr(self, name) - getattr(other, name) for name in names})


class Counting:
    """A driver that counts what it is asked; everything that is not a commit is a read."""

    def __init__(self, inner: Driver) -> None:
        self._inner = inner
        self.effects = Effects()

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities()

    @property
    def limits(self) -> CommitLimits:
        return self._inner.limits

    def perform(self, effect: Effect[R]) -> R:
        self._count(effect)
        return self._inner.perform(effect)

    async def aperform(self, effect: Effect[R]) -> R:
        self._count(effect)
        return await self._inner.aperform(effect)

    async def acommit_and_fetch(self, commit: Commit, fetch: Fetch) -> tuple[Any, Answers | None]:
        outcome, answers = await acommit_and_fetch(self._inner, commit, fetch)
        self.effects.commits += 1
        self.effects.reads += answers is not None
        return outcome, answers

    def close(self) -> None:
        self._inner.close()

    def __getattr__(self, name: str) -> Any:
        """Whatever else this driver can do."""
        return getattr(self._inner, name)

    def _count(self, effect: Effect[Any]) -> None:
        if isinstance(effect, Commit):
            self.effects.commits += 1
        else:
            self.effects.reads += 1


def builder() -> StateGraph[Any]:
    """Two nodes that do as good as nothing."""

    async def respond(state: Chat) -> Reply:
        return {"messages": [AIMessage(f"You said: {state['messages'][-1].content}")]}

    async def note(state: Chat) -> Reply:
        return {"summary": f"{len(state['messages'])} messages"}

    graph: StateGraph[Any] = StateGraph(Chat)
    graph.add_node("respond", respond)
    graph.add_node("note", note)
    graph.add_edge(START, "respond")
    graph.add_edge("respond", "note")
    return graph


class Ways:
    """Answers questions about one database. A runtime is open from `open` to `shut`."""

    def __init__(self, url: str) -> None:
        self._drivers: list[Counting] = []
        self._database = open_database(url, migrate=True, wrap=self._count_calls)
        self._graph = builder().compile(checkpointer=self._database.checkpointer())
        self._runtime: Runtime | None = None
        self._said: Counter[str] = Counter()
        self._crowds = 0

    def _count_calls(self, driver: Driver) -> Driver:
        self._drivers.append(Counting(driver))
        return self._drivers[0]

    async def close(self) -> None:
        await self.shut()
        self._database.close()

    async def answer(self, question: str, arguments: dict[str, Any]) -> Reply:
        handlers: dict[str, Callable[..., Awaitable[Reply]]] = {
            "open": self.open,
            "shut": self.shut,
            "many": self.many,
            "pairs": self.pairs,
            "messages": self.messages,
        }
        return await handlers[question](**arguments)

    async def open(self, concurrency: int, poll: float) -> Reply:
        """Start the runtime, with its defaults but for these two."""
        settings = Settings(concurrency=concurrency, poll=poll)
        runtime = Runtime(self._database, builder().compile(), settings=settings)
        self._runtime = await runtime.__aenter__()
        return {}

    async def shut(self) -> Reply:
        """Let the runtime end, if one is open."""
        runtime, self._runtime = self._runtime, None
        if runtime is not None:
            await runtime.__aexit__(None, None, None)
        return {}

    async def many(self, way: str, threads: int, turns: int) -> Reply:
        """New threads, all at once, each waiting for its own message to be done with before the next; fails
        when one is missing. All that is said is made before the clock starts."""
        self._crowds += 1
        script = {
            f"crowd {self._crowds} {number}": [
                text(f"thread {number} turn {turn}", MESSAGE_BYTES) for turn in range(turns)
            ]
            for number in range(threads)
        }

        async def converse(thread: str) -> None:
            for said in script[thread]:
                await self._one(way, thread, said)

        start = time.perf_counter()
        await asyncio.gather(*map(converse, script))
        took = time.perf_counter() - start
        for thread in script:
            await self._check(thread, 2 * turns)
        return {"seconds": took, "messages": threads * turns}

    async def pairs(self, count: int) -> Reply:
        """Milliseconds of lone messages, one each way in turn, on conversations of the same length."""
        took: dict[str, list[float]] = {way: [] for way in WAYS}
        order = list(WAYS)
        for number in range(count + 1):
            turn = number % len(order)
            for way in order[turn:] + order[:turn]:
                seconds = await self._next(way)
                if number:  # the first of each way warms up
                    took[way].append(seconds * 1000)
        return {"ms": took}

    async def messages(self, way: str, count: int) -> Reply:
        """What lone messages ask of the driver."""
        before = self._effects() - Effects()
        for _ in range(count):
            await self._next(way)
        spent = self._effects() - before
        return {"commits": spent.commits, "reads": spent.reads}

    def _effects(self) -> Effects:
        return self._drivers[0].effects

    async def _next(self, way: str) -> float:
        """One message of a conversation that is begun anew every now and then; seconds."""
        thread = f"{way} {self._said[way] // _TURNS_A_THREAD}"
        said = text(f"lone {self._said[way]}", MESSAGE_BYTES)
        self._said[way] += 1
        start = time.perf_counter()
        await self._one(way, thread, said)
        return time.perf_counter() - start

    async def _one(self, way: str, thread: str, said: str) -> None:
        """Return when the message is durable and its run has ended."""
        if way == RUNTIME:
            if self._runtime is None:
                raise RuntimeError("the runtime is not open")
            run = await self._runtime.wait(await self._runtime.accept(thread, said))
            if run.state != "done":
                raise RuntimeError(f"a run on {thread} came to {run.state}: {run.note}")
            return
        payload = {"messages": [{"role": "user", "content": said}]}
        await self._graph.ainvoke(payload, config_of(thread), durability="sync" if way == SYNC else None)

    async def _check(self, thread: str, expected: int) -> None:
        state = await self._graph.aget_state(config_of(thread))
        count = len(state.values.get("messages", ()))
        if count != expected:
            raise RuntimeError(f"{thread} ended with {count} messages in place of {expected}")


async def serve(place: Place, answers: int) -> None:
    ways = Ways(place.url or f"sqlite:///{place.file.resolve()}")
    try:
        send(answers, {"ready": True})
        while line := await asyncio.to_thread(sys.stdin.readline):
            question = json.loads(line)
            try:
                answer = await ways.answer(question["ask"], question["with"])
            except Exception as error:
                traceback.print_exc()
                answer = {"error": f"{type(error).__name__}: {error}"[:500]}
            send(answers, answer)
    finally:
        await ways.close()


def main() -> None:
    """See `bench.worker.main`."""
    answers = os.dup(1)
    os.dup2(2, 1)
    asyncio.run(serve(Place(Path(sys.argv[3]), os.environ.get(URL_VARIABLE, "")), answers))


if __name__ == "__main__":
    main()
