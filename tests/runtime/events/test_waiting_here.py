"""Waiting for a run of this process: whoever waits is woken, and reads nothing meanwhile."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from langgraph.graph import START, MessagesState, StateGraph

import perdure
from perdure.model.ops import Commit
from perdure.runtime import Options, Runtime, Settings, StreamOptions
from perdure.runtime.events.publisher import Ended
from perdure.storage.sqlite.driver import SqliteDriver
from tests.runtime.graphs import eventually

WAITING = 20
STREAMED = Options(stream=StreamOptions(modes=("values",)))


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    found: Counter[str] = Counter()
    aperform = SqliteDriver.aperform

    async def counted(self: SqliteDriver, effect: Any) -> Any:
        if not isinstance(effect, Commit):
            found["reads"] += 1
        return await aperform(self, effect)

    monkeypatch.setattr(SqliteDriver, "aperform", counted)
    return found


async def _wait(runtime: Runtime, thread: str) -> Any:
    run = await runtime.wait(await runtime.submit(thread, {"messages": ["hello"]}))
    return run.state


async def _stream(runtime: Runtime, thread: str) -> Any:
    ticket = await runtime.submit(thread, {"messages": ["hello"]}, options=STREAMED)
    end = [event async for event in runtime.follow(thread, ticket.id)][-1]
    assert isinstance(end, Ended)
    assert end.run is not None
    return end.run.state


@pytest.mark.parametrize("ask", [_wait, _stream], ids=["wait", "stream"])
def test_those_who_wait_for_a_slot_of_this_process_read_nothing(
    ask: Callable[[Runtime, str], Awaitable[Any]], reads: Counter[str], tmp_path: Path
) -> None:
    async def main() -> None:
        is_free = asyncio.Event()

        async def hold(state: MessagesState) -> dict[str, Any]:
            await is_free.wait()
            return {"messages": [("ai", "Hello.")]}

        graph: StateGraph[Any] = StateGraph(MessagesState)
        graph.add_node("hold", hold)
        graph.add_edge(START, "hold")
        settings = Settings(concurrency=1, poll=30.0)
        async with (
            perdure.connect(f"sqlite:///{tmp_path / 'threads.db'}", migrate=True) as db,
            Runtime(db, graph.compile(), settings=settings) as runtime,
        ):
            asked = [asyncio.ensure_future(ask(runtime, f"t{number}")) for number in range(WAITING)]
            await eventually(lambda: runtime.waiting_runs == WAITING - 1)
            # What is read at first has been read by then.
            await asyncio.sleep(1.5)
            reads.clear()
            await asyncio.sleep(1.5)
            assert reads["reads"] < WAITING
            is_free.set()
            async with asyncio.timeout(30):
                ended = await asyncio.gather(*asked)
            assert set(ended) == {"done"}

    asyncio.run(main())
