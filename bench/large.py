"""A process whose database grows: many messages through one worker, turns of one thread, parallel tasks, and
threads of many tenants. Questions and answers as in `bench.worker`."""

from __future__ import annotations

import asyncio
import gc
import json
import operator
import os
import resource
import sys
import time
import traceback
from collections.abc import AsyncIterator
from pathlib import Path
from statistics import median
from typing import Annotated, Any, TypedDict

from langchain_core.messages import HumanMessage, RemoveMessage
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.types import Send

import perdure
from bench.candidate import Place
from bench.client import config_of
from bench.corpus import text
from bench.graphs import MESSAGE_BYTES, SCENARIOS
from bench.worker import send
from perdure.database.thread_entries import Thread
from perdure.runtime import Runtime

OURS, MEMORY = "perdure", "memory"
TALKERS = 64
"""Threads that the messages of a worker are spread over, one at a time on each."""
PAGE = 50

Answer = dict[str, Any]
Saver = BaseCheckpointSaver[Any]


class Fan(TypedDict):
    parts: Annotated[list[int], operator.add]
    count: int


def fan(saver: Saver) -> Any:
    """A graph that sends one task a part."""
    builder = StateGraph(Fan)
    builder.add_node("part", lambda given: {"parts": [given["number"]]})
    builder.add_conditional_edges(
        START, lambda state: [Send("part", {"number": n}) for n in range(state["count"])], ["part"]
    )
    return builder.add_edge("part", END).compile(checkpointer=saver)


class Grown:
    """Answers what is asked of a database that grows."""

    def __init__(self, db: perdure.Database, runtime: Runtime) -> None:
        self._db = db
        self._runtime = runtime
        self._accepted = 0
        trimmed = SCENARIOS["trimmed"]
        self._payload = trimmed.payload
        self._builder = trimmed.graph(sync=False)
        self._graph = self._builder.compile(checkpointer=db.checkpointer(warn_bytes=None))
        self._turns = 0
        self._threads = 0

    async def messages(self, count: int) -> Answer:
        """Messages through the runtime, each done with before the next one of its thread."""
        numbers = iter(range(self._accepted, self._accepted + count))
        self._accepted += count

        async def talk(thread: int) -> None:
            for number in numbers:
                ticket = await self._runtime.accept(f"talker-{thread}", f"message {number}")
                run = await self._runtime.wait(ticket)
                assert run.state == "done", run

        await asyncio.gather(*(talk(n) for n in range(TALKERS)))
        return {}

    async def turns(self, count: int) -> Answer:
        """Turns of one thread whose latest messages are kept in its state."""
        seconds: list[float] = []
        for turn in range(self._turns, self._turns + count):
            payload = self._payload("long", turn)
            begun = time.perf_counter()
            await self._graph.ainvoke(payload, config_of("long"))
            seconds.append(time.perf_counter() - begun)
        self._turns += count
        return {"turn_s": median(seconds[-50:])}

    async def sends(self, count: int, number: int, saver: str) -> Answer:
        """One run with so many parallel tasks."""
        graph = fan(InMemorySaver() if saver == MEMORY else self._db.checkpointer(warn_bytes=None))
        begun = time.perf_counter()
        state = await graph.ainvoke({"count": count, "parts": []}, config_of(f"fan-{number}"))
        assert sorted(state["parts"]) == list(range(count))
        return {"run_s": time.perf_counter() - begun}

    async def fill(self, threads: int, tenants: int) -> Answer:
        """More threads, in turn of each tenant, with one turn each."""
        numbers = iter(range(self._threads, self._threads + threads))
        names = ["", *(f"tenant-{n}" for n in range(1, tenants))]
        graphs = [
            self._builder.compile(checkpointer=self._db.checkpointer(tenant=name, warn_bytes=None))
            for name in names
        ]

        async def begin() -> None:
            for number in numbers:
                payload = {"messages": [HumanMessage(text(f"thread {number}", MESSAGE_BYTES))]}
                await graphs[number % tenants].ainvoke(payload, config_of(f"thread-{number:06}"))

        await asyncio.gather(*(begin() for _ in range(TALKERS)))
        self._threads += threads
        return {}

    async def page(self, times: int) -> Answer:
        """The first threads of one tenant, as `perdure threads ls` lists them, and one loaded state."""
        pages: list[float] = []
        loads: list[float] = []
        for number in range(times):
            begun = time.perf_counter()
            found = await _first(self._db.threads(), PAGE)
            pages.append(time.perf_counter() - begun)
            begun = time.perf_counter()
            at = config_of(found[number % len(found)].thread_id)
            assert await self._db.checkpointer(warn_bytes=None).aget_tuple(at) is not None
            loads.append(time.perf_counter() - begun)
        return {"page_s": median(pages), "load_s": median(loads)}


async def _first(threads: AsyncIterator[Thread], count: int) -> list[Thread]:
    found: list[Thread] = []
    async for thread in threads:
        found.append(thread)
        if len(found) == count:
            break
    return found


def resources() -> Answer:
    """Memory and descriptors of this process now, after what is garbage is gone, and the corpus's texts."""
    text.cache_clear()
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "memory_kb": pages * resource.getpagesize() // 1024,
        "descriptors": len(os.listdir("/proc/self/fd")),
    }


async def serve(place: Place, answers: int) -> None:
    url = f"sqlite:///{place.file.resolve()}"
    answer = (
        StateGraph(MessagesState)
        .add_node(
            "answer", lambda state: {"messages": [RemoveMessage(REMOVE_ALL_MESSAGES), ("ai", "answer")]}
        )
        .add_edge(START, "answer")
        .compile()
    )
    async with perdure.connect(url, migrate=True) as db, Runtime(db, answer) as runtime:
        grown = Grown(db, runtime)
        send(answers, {"ready": True})
        while line := await asyncio.to_thread(sys.stdin.readline):
            question = json.loads(line)
            try:
                begun = time.perf_counter()
                found: Answer = await getattr(grown, question["ask"])(**question["with"])
                answer_: Answer = {**found, "seconds": time.perf_counter() - begun, **resources()}
            except Exception as error:
                traceback.print_exc()
                answer_ = {"error": f"{type(error).__name__}: {error}"[:500]}
            send(answers, answer_)


def main() -> None:
    answers = os.dup(1)
    os.dup2(2, 1)
    asyncio.run(serve(Place(Path(sys.argv[3])), answers))


if __name__ == "__main__":
    main()
