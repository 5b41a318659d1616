"""What a saver's own process does when asked: turns, bytes, single calls, many threads at once, races."""

from __future__ import annotations

import asyncio
import gc
import resource
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from langchain_core.messages import HumanMessage
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from bench.candidate import Candidate, Saver
from bench.capacity import METER
from bench.client import Client, State
from bench.corpus import text
from bench.disk import count_written, fold
from bench.graphs import MESSAGE_BYTES, Scenario

Reply = dict[str, Any]

THREAD = "conversation"


class Probe:
    """Answers the parent's questions about one saver, one at a time, in the order they are asked."""

    def __init__(self, candidate: Candidate, scenario: Scenario, saver: Saver | None, folder: Path) -> None:
        self._candidate = candidate
        self._scenario = scenario
        self._saver = saver
        self._folder = folder
        self._client = Client(candidate, scenario, saver)
        self._turns = 0
        self._last: State = {}
        self._folded_bytes = 0
        self.reported_bytes = 0

    async def answer(self, question: str, arguments: dict[str, Any]) -> Reply:
        handlers: dict[str, Callable[..., Awaitable[Reply]]] = {
            "turns": self.turns,
            "bytes": self.bytes,
            "call": self.call,
            "many": self.many,
            "race": self.race,
            "prune": self.prune,
            "units": self.units,
            "warm_up": self.warm_up,
            "first": self.first,
        }
        return await handlers[question](**arguments)

    async def turns(self, count: int) -> Reply:
        """Milliseconds of each turn; the payload is made before its clock starts."""
        if not self._turns and self._scenario.opening is not None:
            await self._client.turn(THREAD, self._scenario.opening(THREAD))
        took: list[float] = []
        for _ in range(count):
            payload = self._scenario.payload(THREAD, self._turns)
            start = time.perf_counter()
            self._last = await self._client.turn(THREAD, payload)
            took.append((time.perf_counter() - start) * 1000)
            self._turns += 1
        return {"ms": took, "turns": self._turns}

    async def bytes(self) -> Reply:
        """Stored, real and written bytes; written grows from the start of the process, folding included."""
        complete = True
        if isinstance(self._saver, InMemorySaver):
            stored: int | None = _count_bytes(self._saver)
        elif self._candidate.on_disk:
            folded = fold(self._folder)
            self._folded_bytes += folded.written
            stored, complete = folded.stored, folded.complete
        else:
            stored = None
        written = count_written()
        real = self._last.get(self._scenario.channel)
        return {
            "stored": stored,
            "real": 0 if real is None else len(JsonPlusSerializer().dumps_typed(real)[1]),
            "written": None if written is None else written + self._folded_bytes - self.reported_bytes,
            "complete": complete,
            "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        }

    async def prune(self) -> Reply:
        """Leave the thread its newest checkpoint alone, and return the size of what it then says: nothing
        where the saver cannot, or leaves nothing."""
        try:
            await self._client.prune(THREAD)
        except NotImplementedError:
            return {}
        found = await self._client.load(THREAD)
        if found is None:
            return {}
        if self._candidate.on_disk:
            self._folded_bytes += fold(self._folder, compact=True).written
        real = found.checkpoint["channel_values"].get(self._scenario.channel)
        return {"real": len(JsonPlusSerializer().dumps_typed(real)[1])}

    async def units(self) -> Reply:
        """DynamoDB's units since the start of the process; nothing elsewhere."""
        return METER.units() if METER.installed else {}

    async def call(self, name: str, at_most: int, budget_s: float) -> Reply:
        """Milliseconds of single calls: as many as fit the budget, at least one.

        A saver that sets itself up in its first call does so before the clock starts, on a thread that
        nobody has.
        """
        await self._client.load("nobody")
        took: list[float] = []
        started = time.perf_counter()
        found = await self._client.load(THREAD) if name == "put" else None
        for number in range(at_most):
            if name == "put":
                elapsed, found = await self._put(_present(found), number)
            else:
                elapsed = await self._time_call(name)
            took.append(elapsed)
            if time.perf_counter() - started > budget_s:
                break
        return {"ms": took}

    async def _time_call(self, name: str) -> float:
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "get_tuple": lambda: self._client.load(THREAD),
            "list": lambda: self._client.list_checkpoints(THREAD, 10),
            "history": lambda: self._client.history(THREAD, 100),
        }
        gc.collect()
        start = time.perf_counter()
        result = await calls[name]()
        elapsed = (time.perf_counter() - start) * 1000
        if not result:
            raise RuntimeError(f"{name} found nothing in {THREAD}")
        return elapsed

    async def _put(self, found: CheckpointTuple, number: int) -> tuple[float, CheckpointTuple]:
        checkpoint = self._client.successor(found, number)
        start = time.perf_counter()
        config = await self._client.put(found, checkpoint)
        elapsed = (time.perf_counter() - start) * 1000
        return elapsed, found._replace(config=config, checkpoint=checkpoint)

    async def warm_up(self) -> Reply:
        """Run a turn of a thread of its own, so that all is imported and connected."""
        await self._client.turn("warm-up", self._scenario.payload("warm-up", 0))
        return {}

    async def first(self, what: str) -> Reply:
        """Milliseconds of this process's first "load" or "turn" of the conversation, by the clock and of its
        processor time."""
        payload = self._scenario.payload(THREAD, self._turns)
        gc.collect()
        start, worked = time.perf_counter(), time.process_time()
        if what == "turn":
            self._last = await self._client.turn(THREAD, payload)
        elif await self._client.load(THREAD) is None:
            raise RuntimeError(f"{THREAD} has no checkpoint")
        took, worked = time.perf_counter() - start, time.process_time() - worked
        return {"ms": took * 1000, "processor_ms": worked * 1000}

    async def many(self, threads: int, turns: int) -> Reply:
        """All threads at once, each waiting for its own turn before the next; fails when a message is
        missing. All that is said is made before the clock starts.
        """
        script = {
            f"thread {number}": self._scenario.rehearse(f"thread {number}", turns)
            for number in range(threads)
        }
        with ThreadPoolExecutor(threads) as executor:
            client = Client(self._candidate, self._scenario, self._saver, executor=executor)
            await client.turn("warm-up", self._scenario.payload("warm-up", 0))

            async def converse(thread: str) -> State:
                state: State = {}
                for payload in script[thread]:
                    state = await client.turn(thread, payload)
                return state

            start, worked = time.perf_counter(), time.process_time()
            states = await asyncio.gather(*map(converse, script))
            took, worked = time.perf_counter() - start, time.process_time() - worked
        short = [len(state["messages"]) for state in states if len(state["messages"]) != 2 * turns]
        if short:
            raise RuntimeError(
                f"{len(short)} threads ended with the wrong number of messages, such as {short[0]}"
            )
        return {"seconds": took, "processor_s": worked, "turns": threads * turns}

    async def race(self, pairs: int, pause_s: float) -> Reply:
        """Two turns on one thread at the same moment, `pairs` times; then each refused caller tries once
        more.
        """
        totals: Counter[str] = Counter()
        errors: Counter[str] = Counter()
        with ThreadPoolExecutor(2) as executor:
            client = Client(self._candidate, self._scenario, self._saver, pause=pause_s, executor=executor)
            for number in range(pairs):
                await _race_once(client, f"race {number}", totals, errors)
        names = ("acknowledged", "kept", "refused", "refused_but_kept", "forks", "kept_after_retry")
        return {"sent": 2 * pairs, **{name: totals[name] for name in names}, "errors": dict(errors)}


async def _race_once(client: Client, thread: str, totals: Counter[str], errors: Counter[str]) -> None:
    await client.turn(thread, {"messages": [HumanMessage(text(thread, MESSAGE_BYTES), id=f"{thread} first")]})
    names = [f"{thread} {side}" for side in ("left", "right")]
    payloads = [{"messages": [HumanMessage(text(name, MESSAGE_BYTES), id=name)]} for name in names]
    outcomes = await asyncio.gather(
        *(client.turn(thread, payload) for payload in payloads), return_exceptions=True
    )
    kept = _message_ids(await client.state(thread))
    totals["forks"] += _forks(await client.list_checkpoints(thread, None))
    for name, payload, outcome in zip(names, payloads, outcomes, strict=True):
        if isinstance(outcome, BaseException):
            errors[_kind(outcome)] += 1
            totals["refused"] += 1
            totals["refused_but_kept"] += name in kept
            await client.turn(thread, payload)
        else:
            totals["acknowledged"] += 1
            totals["kept"] += name in kept
    final = _message_ids(await client.state(thread))
    totals["kept_after_retry"] += sum(name in final for name in names)


def _message_ids(state: State) -> set[str]:
    return {str(message.id) for message in state["messages"]}


def _forks(found: Iterable[CheckpointTuple]) -> int:
    """Checkpoints that have more than one child."""
    children = Counter(
        str(each.parent_config["configurable"]["checkpoint_id"])
        for each in found
        if each.parent_config is not None
    )
    return sum(count > 1 for count in children.values())


def _kind(error: BaseException) -> str:
    """The name of the error; of a wrapper around Perdure's, both names."""
    seen: BaseException | None = error
    for _ in range(8):
        if seen is None:
            break
        if any(base.__name__ == "HeadConflict" for base in type(seen).__mro__):
            return "HeadConflict" if seen is error else f"{type(error).__name__} from HeadConflict"
        seen = seen.__cause__ or seen.__context__
    return type(error).__name__


def _count_bytes(saver: InMemorySaver) -> int:
    total = sum(len(blob) for _, blob in saver.blobs.values())
    for namespaces in saver.storage.values():
        for checkpoints in namespaces.values():
            total += sum(len(head[1]) + len(meta[1]) for head, meta, _ in checkpoints.values())
    for writes in saver.writes.values():
        total += sum(len(value[1]) for _, _, value, _ in writes.values())
    return total


def _present(found: CheckpointTuple | None) -> CheckpointTuple:
    if found is None:
        raise RuntimeError(f"{THREAD} has no checkpoint")
    return found
