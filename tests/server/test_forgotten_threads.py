"""What a server's process remembers of threads that are gone: nothing of their content."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from perdure.langgraph.saver import PerdureSaver
from tests.backends import EMPTY
from tests.runtime.graphs import eventually
from tests.server.hosting import Served, run, serving


@pytest.fixture
def url() -> Iterator[str]:
    with EMPTY["sqlite"]() as url:
        yield url


def remembered(server: Served) -> int:
    """The number of threads of which the process holds inboxes or values."""
    graphs = server.host.runtime._worker.runner.graphs
    savers = [bound.checkpointer for bound in graphs._bound.values()]
    assert all(isinstance(saver, PerdureSaver) for saver in savers)
    held: list[Any] = [saver._caches._threads for saver in savers if isinstance(saver, PerdureSaver)]
    return sum(map(len, held)) + len(server.host.runtime._context.queues._known)


@run
async def test_a_thread_that_was_removed_is_not_remembered(url: str) -> None:
    async with serving(url) as server:
        http = await server.http()
        body = {"assistant_id": "aware", "input": {"messages": [{"role": "user", "content": "x" * 50_000}]}}
        for _ in range(5):
            assert (await http.post("/runs/wait", json=body)).status_code == 200
        await eventually(lambda: remembered(server) == 0)
        for name in ("a", "b"):
            await http.post("/threads", json={"thread_id": name})
            assert (await http.post(f"/threads/{name}/runs/wait", json=body)).status_code == 200
        assert remembered(server) > 0
        assert (await http.delete("/threads/a")).status_code == 204
        assert (await http.post("/threads/prune", json={"thread_ids": ["b"]})).json() == {"pruned_count": 1}
        assert remembered(server) == 0


@run
async def test_a_search_by_values_leaves_the_caches_to_threads_that_go_on(url: str) -> None:
    body = {"assistant_id": "aware", "input": {"messages": [{"role": "user", "content": "hello"}]}}
    async with serving(url) as server:
        http = await server.http()
        for name in ("a", "b", "c"):
            await http.post("/threads", json={"thread_id": name})
            assert (await http.post(f"/threads/{name}/runs/wait", json=body)).status_code == 200
    async with serving(url) as server:
        http = await server.http()
        await http.get("/threads/a/state")
        before = remembered(server)
        found = await http.post("/threads/search", json={"values": {"messages": [{"content": "no such"}]}})
        assert found.json() == []
        found = await http.post("/threads/count", json={"values": {"messages": [{"content": "hello"}]}})
        assert found.json() == 3
        assert remembered(server) == before == 1
