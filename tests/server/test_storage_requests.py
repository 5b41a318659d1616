"""Requests to the database that an HTTP request costs, counted."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from perdure.model.ops import Commit, Fetch
from perdure.model.records import DOCUMENT, RUN, THREADS
from perdure.runtime import Runtime
from perdure.server.app import create_app
from perdure.server.auth.identity import OpenGate
from perdure.server.resources import ServerState
from tests.runtime.graphs import Storage, Talk, settings, working
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
        app.state.perdure = host = ServerState.over(runtime, OpenGate())
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


@run
async def test_who_waits_for_a_run_of_this_process_gets_its_values_without_a_request(
    memory: Storage, talk: Talk
) -> None:
    database, line = memory.open()
    async with working(database, talk.graph) as runtime:
        app = create_app()
        app.state.perdure = host = ServerState.over(runtime, OpenGate())
        requests: list[Any] = []

        async def note(effect: Any) -> None:
            requests.append(effect)

        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as client:
            for _ in range(2):
                body = BODY | {"if_not_exists": "create"}
                answer = await client.post("/threads/ada/runs/wait", json=body)
            line.before = note
            answer = await client.post("/threads/ada/runs/wait", json=BODY)
            line.before = None
            ends = [
                number
                for number, each in enumerate(requests)
                if isinstance(each, Commit) and any(op.kind is RUN for op in each.ops)
            ]
            after = [each for each in requests[ends[-1] :] if isinstance(each, Fetch)]
            kinds = {item.kind for each in after for item in each.items}
            assert kinds <= {DOCUMENT}, "what notes the thread's activity may come as late"
            state = (await client.get("/threads/ada/state")).json()
            assert answer.json() == state["values"]
            assert len(state["values"]["messages"]) == 6
        await host.close()
