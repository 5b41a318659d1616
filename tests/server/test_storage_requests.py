"""Requests to the database that an HTTP request costs, counted."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from perdure.model.ops import Commit, Fetch
from perdure.model.records import THREADS
from perdure.runtime import Runtime
from perdure.server.app import create_app
from perdure.server.auth.identity import Open
from perdure.server.resources import ServerState
from tests.runtime.graphs import Storage, Talk, settings
from tests.server.hosting import run

BODY = {"assistant_id": "agent", "input": {"messages": [{"role": "user", "content": "hello"}]}}
NEW = [Fetch, Commit]
"""One look-up, and one commit that creates the thread and accepts its first run."""


@pytest.mark.parametrize(
    ("path", "more", "keyed", "expected"),
    [
        ("/threads/ada/runs", {"if_not_exists": "create"}, False, NEW),
        ("/threads/ada/runs", {"if_not_exists": "create"}, True, NEW),
        # A thread of its own has a new id, which needs no look-up.
        ("/runs", {}, False, [Commit]),
        ("/runs", {}, True, NEW),
    ],
)
@run
async def test_a_new_thread_with_its_first_run_is_one_look_up_and_one_commit(
    memory: Storage, talk: Talk, path: str, more: dict[str, Any], keyed: bool, expected: list[type]
) -> None:
    database, line = memory.open()
    async with Runtime(database, talk.graph, settings=settings(), observers=[], works=False) as runtime:
        app = create_app()
        app.state.perdure = host = ServerState.over(runtime, Open())
        requests: list[type] = []

        async def note(effect: Any) -> None:
            if getattr(effect, "partition", None) is not None and effect.partition.space == THREADS:
                requests.append(type(effect))

        line.before = note
        headers = {"Idempotency-Key": "once"} if keyed else {}
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://server", headers=headers
        ) as client:
            answer = await client.post(path, json=BODY | more)
            assert answer.status_code == 200
            # What follows reads the run for the answer.
            assert requests[: len(expected)] == expected
            assert requests.count(Commit) == 1
            thread_id = answer.json()["thread_id"]
            shown = (await client.get(f"/threads/{thread_id}")).json()
            assert (shown["status"], shown["metadata"]["graph_id"]) == ("busy", "agent")
            if keyed:
                again = await client.post(path, json=BODY | more)
                assert again.json()["run_id"] == answer.json()["run_id"]
        await host.close()
