"""Streams of a run whose process was frozen for longer than the lease, while another one continued the run.

Covers perdure.runtime.events.publisher, perdure.runtime.worker.leases.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from langgraph.config import get_stream_writer
from langgraph.graph import START, MessagesState, StateGraph

from perdure.runtime import Event, Options, StreamOptions
from perdure.runtime.worker.leases import Leases
from tests.runtime.graphs import Storage, go, settings, working


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_stream_shows_the_attempt_that_counts(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, is_kept: bool
) -> None:
    attempts: list[int] = []

    async def main() -> None:
        thawed = asyncio.Event()

        async def work(state: MessagesState) -> dict[str, Any]:
            number = len(attempts)
            attempts.append(number)
            write = get_stream_writer()
            write({"attempt": number, "step": 0})
            if number == 0:
                await thawed.wait()
            for step in (1, 2, 3):
                write({"attempt": number, "step": step})
                await asyncio.sleep(0.05)
            return {"messages": [("ai", f"attempt {number}")]}

        async def frozen(self: Leases) -> None:
            await asyncio.Event().wait()

        graph = StateGraph(MessagesState).add_node(work).add_edge(START, "work").compile()
        short = settings(lease=1.0, poll=0.1)
        with monkeypatch.context() as freezing:
            freezing.setattr(Leases, "keep_renewing", frozen)
            process = working(storage.database(), graph, settings=short, name="first")
            first = await process.__aenter__()
            options = Options(stream=StreamOptions(modes=("custom", "values"), kept=is_kept, by="first"))
            given = {"messages": [{"role": "user", "content": "x"}]}
            ticket = await first.submit("ada", given, options=options)
            seen = asyncio.create_task(_seen(first, ticket.id))
            while not attempts:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        async with working(storage.database(), graph, settings=short, name="second") as second:
            await second.wait(ticket)
            thawed.set()
            events = await seen
            assert [event.seq for event in events] == sorted({event.seq for event in events})
            custom = [json.loads(event.data) for event in events if event.name == "custom"]
            assert custom == [
                {"attempt": 0, "step": 0},
                *({"attempt": 1, "step": step} for step in range(4)),
            ]
            assert '"attempt 1"' in [event.data for event in events if event.name == "values"][-1]
        await process.__aexit__(None, None, None)

    go(main())
    assert attempts == [0, 1]


async def _seen(runtime: Any, run_id: str) -> list[Event]:
    return [item async for item in runtime.follow("ada", run_id) if isinstance(item, Event)]
