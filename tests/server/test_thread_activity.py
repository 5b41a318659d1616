"""A thread counts as used from its last message on, whether its run shows that or the thread's document."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from perdure.database.base import handle_of
from perdure.engine.retention.thread_expiry import read_expiry_facts
from perdure.model.ops import Commit, Fetch, Get, Put
from perdure.model.records import DOCUMENT, OF_THREAD, Partition
from perdure.runtime import Runtime
from perdure.server.app import create_app
from perdure.server.auth.identity import OpenGate
from perdure.server.resources import ServerState
from tests.runtime.graphs import HOUR_US, Line, Storage, Talk, eventually, settings, stored
from tests.server.hosting import run

MINUTE_US = HOUR_US // 60


@pytest.fixture(params=["memory", "sqlite"])
def close(request: pytest.FixtureRequest) -> Iterator[Storage]:
    with stored(request.param) as storage:
        yield storage


@asynccontextmanager
async def served(storage: Storage, talk: Talk) -> AsyncIterator[tuple[httpx.AsyncClient, ServerState, Line]]:
    """A server with two threads; the second one was used last."""
    database, line = storage.open()
    # Nothing but an acceptance lets a run begin.
    quiet = settings(poll=600.0, lease=6000.0)
    async with Runtime(database, talk.graph, settings=quiet, observers=[]) as runtime:
        app = create_app()
        app.state.perdure = host = ServerState.over(runtime, OpenGate())
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as client:
            for thread_id in ("ada", "bob"):
                assert (await client.post("/threads", json={"thread_id": thread_id})).status_code == 200
                await said(client, thread_id, "first")
                await settled(host)
            yield client, host, line
        await host.close()


async def settled(host: ServerState) -> None:
    await eventually(lambda: not host._background)


async def said(client: httpx.AsyncClient, thread_id: str, text: str) -> None:
    answer = await client.post(f"/threads/{thread_id}/runs/wait", json=body(text))
    assert answer.status_code == 200


def body(text: str) -> dict[str, Any]:
    return {"assistant_id": "agent", "input": {"messages": [{"role": "user", "content": text}]}}


def later(runtime: Runtime, line: Line, by_us: int) -> None:
    line.ahead_us += by_us
    runtime._context.clock._asked_at = None


@pytest.mark.parametrize("end", ["done", "failed", "interrupted", "rolled back", "removed", "deleted"])
@run
async def test_a_message_is_the_last_activity_of_its_thread_however_its_run_ends(
    close: Storage, talk: Talk, end: str
) -> None:
    async with served(close, talk) as (client, host, line):
        runtime = host.runtime
        before = await runtime.now()
        later(runtime, line, 25 * MINUTE_US)
        accepted_at = await runtime.now()
        if end in ("done", "failed", "removed", "deleted"):
            await said(client, "ada", "boom" if end == "failed" else "again")
        else:
            made = (await client.post("/threads/ada/runs", json=body("hold on"))).json()
            await eventually(lambda: talk.under_way)
            action = "rollback" if end == "rolled back" else "interrupt"
            path = f"/threads/ada/runs/{made['run_id']}/cancel?action={action}&wait=true"
            assert (await client.post(path)).status_code == 200
        if end in ("removed", "deleted"):
            (newest,) = (await client.get("/threads/ada/runs?limit=1")).json()
            checkpoints = "keep" if end == "removed" else "delete"
            path = f"/threads/ada/runs/{newest['run_id']}?checkpoints={checkpoints}"
            assert (await client.delete(path)).status_code == 204
        thread = await handle_of(runtime.database).arun(read_expiry_facts(Partition("", "ada")))
        assert thread.active_at is not None
        assert before < accepted_at <= thread.active_at
        row = await runtime.threads.get("ada")
        assert row.status == ("error" if end == "failed" else "idle")
        assert accepted_at <= row.updated_at
        assert [row.thread_id async for row in runtime.threads.index.search()] == ["ada", "bob"]


@run
async def test_a_message_whose_run_shows_the_activity_is_followed_by_no_change_of_the_thread(
    close: Storage, talk: Talk
) -> None:
    """But by one an hour, and by one after every message of a thread with a time to live."""
    async with served(close, talk) as (client, host, line):
        runtime = host.runtime
        requests: list[Any] = []

        async def note(effect: Any) -> None:
            requests.append(effect)

        async def counted(thread_id: str) -> tuple[int, int]:
            """Return how often a message has the thread's document read by itself, and written."""
            requests.clear()
            line.before = note
            await said(client, thread_id, "again")
            await settled(host)
            line.before = None
            reads = [each for each in requests if isinstance(each, Fetch)]
            ops = [op for each in requests if isinstance(each, Commit) for op in each.ops]
            return (
                sum(each.items == (Get(DOCUMENT, OF_THREAD),) for each in reads),
                sum(isinstance(op, Put) and (op.kind, op.key) == (DOCUMENT, OF_THREAD) for op in ops),
            )

        assert [await counted("ada") for _ in range(3)] == [(0, 0)] * 3
        later(runtime, line, HOUR_US)
        assert [await counted("ada") for _ in range(3)] == [(1, 1), (0, 0), (0, 0)]
        await client.post("/threads", json={"thread_id": "cyd", "ttl": {"ttl": 90}})
        await said(client, "cyd", "first")
        assert [await counted("cyd") for _ in range(2)] == [(1, 1)] * 2
