"""A run that a limit refuses, over HTTP: status 429 with the time to come again, and nothing stored."""

from __future__ import annotations

import asyncio

from langgraph.graph import START, MessagesState, StateGraph

from perdure.limits import SharedLimit
from perdure.runtime import Agent
from tests.server.hosting import run, serving


@run
async def test_a_run_that_would_wait_is_refused_with_the_time_to_come_again(near: str) -> None:
    gate = asyncio.Event()

    async def answer(state: MessagesState) -> dict[str, object]:
        await gate.wait()
        return {"messages": [("ai", "hello")]}

    graph = StateGraph(MessagesState).add_node(answer).add_edge(START, "answer").compile()
    limits = {"each": SharedLimit(of="run", by=("assistant",), concurrency=1, refuse=True)}
    async with serving(near, of={"agent": Agent(graph, limits=limits)}) as server:
        http = await server.http()
        client = await server.client(None)
        threads = [(await client.threads.create())["thread_id"] for _ in range(2)]
        body = {"assistant_id": "agent", "input": {"messages": [{"role": "user", "content": "hi"}]}}
        taken = await http.post(f"/threads/{threads[0]}/runs", json=body)
        assert taken.status_code == 200
        for path in ("runs", "runs/stream", "runs/wait"):
            refused = await http.post(f"/threads/{threads[1]}/{path}", json=body)
            assert refused.status_code == 429
            assert int(refused.headers["Retry-After"]) >= 1
            assert "limit 'agent.each' of assistant" in refused.json()["detail"]
        assert (await http.get(f"/threads/{threads[1]}/runs")).json() == []
        gate.set()
        joined = f"/threads/{threads[0]}/runs/{taken.json()['run_id']}/join"
        assert (await http.get(joined)).status_code == 200
