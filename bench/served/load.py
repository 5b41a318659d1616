"""What a server is asked under load: answers to wait for, tokens to follow, streams that nothing happens on.

Every answer is looked at: one that lacks something is a failure, never a figure.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, TypeVar

from bench.served.agent import CROWD_TOKENS, PAUSE_S, TOKENS
from bench.served.wire import Connection, Refused

T = TypeVar("T")

_TOKEN = b"event: messages"
_FAILURE = b"event: error"
_FULL = (429, 503)
"""By which a server says that it has enough to do."""
_TOKENS_ONLY = {"stream_mode": ["messages-tuple"]}
_OPENING = 20
"""Requests at once where the time that they take is nobody's figure."""
STREAM_S = TOKENS * PAUSE_S


@dataclass
class Seen:
    """Milliseconds of every request; `share` is how much of one processor the client had."""

    ms: list[float] = field(default_factory=list)
    seconds: float = 0.0
    share: float = 0.0


@dataclass
class CrowdSeen(Seen):
    """What became of a crowd's streams. `seconds` is when the last was done, `next_ms` how long a request
    took that came when all had ended."""

    refused: int = 0
    failed: int = 0
    next_ms: float = 0.0


def within(patience_s: float, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """The result; ``Refused`` when it takes longer."""

    async def run_in_time() -> T:
        try:
            async with asyncio.timeout(patience_s):
                return await work()
        except TimeoutError:
            raise Refused(f"not done after {patience_s:.0f} s") from None

    return asyncio.run(run_in_time())


async def threads(port: int, count: int) -> list[str]:
    """New threads on which nothing ran yet."""
    made: list[str] = []

    async def make(number: int) -> None:
        async with Connection(port) as connection:
            for _ in range(number, count, _OPENING):
                thread = await connection.ask("/threads", {})
                made.append(thread["thread_id"])

    await asyncio.gather(*map(make, range(min(count, _OPENING))))
    return made


async def waits(port: int, there: list[str], each: int, budget_s: float) -> Seen:
    """A client a thread, each of which sends a message when the one before it was answered, and none once the
    budget is spent. Before the clock starts every thread has had one."""
    seen = Seen()

    async def converse(thread: str, connection: Connection, numbers: range) -> None:
        begun = time.perf_counter()
        for number in numbers:
            start = time.perf_counter()
            if start - begun > budget_s:
                return
            state = await connection.ask(f"/threads/{thread}/runs/wait", _body("chat", number))
            seen.ms.append((time.perf_counter() - start) * 1000)
            if len(state.get("messages", ())) != 2 * (number + 1):
                raise Refused(f"message {number + 1} of a thread was answered with {str(state)[:200]}")

    async with AsyncExitStack() as stack:
        clients = [(thread, await stack.enter_async_context(Connection(port))) for thread in there]
        await asyncio.gather(*(converse(*client, range(1)) for client in clients))
        seen.ms.clear()
        await _time_work(seen, [converse(*client, range(1, each + 1)) for client in clients])
    return seen


async def streams(port: int, there: list[str], each: int) -> Seen:
    """A client a thread, each with one stream after the other, to its end. They do not begin together: as
    many are at any point of their stream. The times are those of the first token."""
    seen = Seen()

    async def listen(thread: str, connection: Connection, delay: float) -> None:
        await asyncio.sleep(delay)
        for number in range(each):
            body = {**_body("tokens", number), **_TOKENS_ONLY}
            seen.ms.append(await _first_token(connection, f"/threads/{thread}/runs/stream", body, TOKENS))

    async with AsyncExitStack() as stack:
        clients = [(thread, await stack.enter_async_context(Connection(port))) for thread in there]
        apart = STREAM_S / len(clients)
        await _time_work(seen, [listen(*client, apart * number) for number, client in enumerate(clients)])
    return seen


async def lone_runs(port: int, clients: int, count: int) -> Seen:
    """Runs without a thread, each of which is waited for, about ``count`` in all."""
    seen = Seen()

    async def ask(connection: Connection) -> None:
        for number in range(-(-count // clients)):
            start = time.perf_counter()
            state = await connection.ask("/runs/wait", _body("chat", number))
            seen.ms.append((time.perf_counter() - start) * 1000)
            if len(state.get("messages", ())) != 2:
                raise Refused(f"a run was answered with {str(state)[:200]}")

    async with AsyncExitStack() as stack:
        connections = [await stack.enter_async_context(Connection(port)) for _ in range(clients)]
        await _time_work(seen, [ask(connection) for connection in connections])
    return seen


async def crowd(port: int, clients: int, patience_s: float) -> CrowdSeen:
    """Clients that begin at once, each with one stream of a run without a thread, followed to its end. A
    server may refuse some; those that break off, or are not done in time, have failed."""
    seen = CrowdSeen()
    body = {**_body("crowd", 0), **_TOKENS_ONLY}

    async def listen(connection: Connection) -> None:
        try:
            async with asyncio.timeout_at(until):
                first = await _first_token(connection, "/runs/stream", body, CROWD_TOKENS)
        except (Refused, TimeoutError) as error:
            if isinstance(error, Refused) and error.status in _FULL:
                seen.refused += 1
            else:
                seen.failed += 1
        else:
            seen.ms.append(first)

    async with AsyncExitStack() as stack:
        connections = [await stack.enter_async_context(Connection(port)) for _ in range(clients)]
        until = asyncio.get_running_loop().time() + patience_s
        await _time_work(seen, [listen(connection) for connection in connections])
        start = time.perf_counter()
        await threads(port, 1)
        seen.next_ms = (time.perf_counter() - start) * 1000
    return seen


async def idle(port: int, there: list[str], weigh: Callable[[], int], settle_s: float) -> tuple[int, int]:
    """What the server weighs before a stream of events is opened on every thread, and while all are open."""
    await asyncio.sleep(settle_s)
    before = weigh()
    gate = asyncio.Semaphore(_OPENING)

    async def hold(connection: Connection, thread: str) -> None:
        async with gate:
            await connection.begin(f"/threads/{thread}/stream/events", {"channels": ["values"]})

    async with AsyncExitStack() as stack:
        held = [(await stack.enter_async_context(Connection(port)), thread) for thread in there]
        await asyncio.gather(*(hold(*each) for each in held))
        await asyncio.sleep(settle_s)
        return before, weigh()


async def _first_token(connection: Connection, path: str, body: dict[str, Any], tokens: int) -> float:
    """Milliseconds; the stream is followed to its end, which has to have all of its tokens."""
    start = time.perf_counter()
    first: float | None = None
    told = b""
    async for piece in connection.follow(path, body):
        told += piece
        if first is None and _TOKEN in told:
            first = (time.perf_counter() - start) * 1000
    if first is None or told.count(_TOKEN) < tokens or _FAILURE in told:
        raise Refused(
            f"a stream told {told.count(_TOKEN)} of {tokens} tokens, and at its end {told[-200:]!r}"
        )
    return first


async def _time_work(seen: Seen, work: list[Coroutine[Any, Any, None]]) -> None:
    start, spent = time.perf_counter(), time.process_time()
    await asyncio.gather(*work)
    seen.seconds = time.perf_counter() - start
    seen.share = (time.process_time() - spent) / seen.seconds


def _body(graph: str, number: int) -> dict[str, Any]:
    said = {"role": "user", "content": f"message {number}"}
    return {"assistant_id": graph, "input": {"messages": [said]}}
