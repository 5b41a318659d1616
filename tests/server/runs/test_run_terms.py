"""Terms of a run's acceptance: idempotency keys, strategies, delays, and several runs in one request."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.server.acceptance.saying import detail, said
from tests.server.hosting import run, serving

GOOD: dict[str, Any] = {"assistant_id": "aware", "input": said("x")}
UNUSABLE: dict[str, tuple[dict[str, Any], int]] = {
    "assistant": ({**GOOD, "assistant_id": "nobody"}, 422),
    "thread": ({**GOOD, "thread_id": "none"}, 404),
    "two threads": ({**GOOD, "thread_id": "t", "context_id": "u"}, 422),
    "webhook": ({**GOOD, "webhook": "ftp://example.com"}, 422),
    "config and context": ({**GOOD, "context": {"a": 1}, "config": {"configurable": {"b": 1}}}, 400),
    "checkpoint": ({**GOOD, "thread_id": "t", "checkpoint_id": "none"}, 404),
    "resume": ({**GOOD, "command": {"resume": 1}}, 400),
    "not a number": ({**GOOD, "input": {"a": float("nan")}}, 422),
    "too large": ({**GOOD, "input": {"a": "x" * (1 << 20)}}, 413),
    "delay": ({**GOOD, "after_seconds": 5, "multitask_strategy": "reject"}, 422),
}


@pytest.mark.parametrize("what", UNUSABLE)
@run
async def test_of_runs_in_one_request_none_is_accepted_if_one_is_unusable(near: str, what: str) -> None:
    bad, status = UNUSABLE[what]
    async with serving(near) as server:
        client, http = await server.client(), await server.http()
        await client.threads.create(thread_id="t", graph_id="aware")
        new = {**GOOD, "thread_id": "new", "if_not_exists": "create"}
        body = json.dumps([{**GOOD, "thread_id": "t"}, new, {**GOOD, "on_completion": "keep"}, bad])
        answer = await http.post("/runs/batch", content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code == status, answer.text
        assert await client.runs.list("t") == []
        assert [each["thread_id"] for each in await client.threads.search()] == ["t"]


@run
async def test_runs_of_one_request_share_its_idempotency_key(near: str) -> None:
    async with serving(near) as server:
        client, http = await server.client(), await server.http()
        await client.threads.create(thread_id="t", graph_id="aware")
        kept = {"on_completion": "keep"}
        batch = [
            {**GOOD, **kept},
            {**GOOD, **kept, "input": said("y")},
            {**GOOD, "thread_id": "t"},
            {**GOOD, "thread_id": "t"},
        ]
        key = {"Idempotency-Key": "k" * 255}
        made = [(await http.post("/runs/batch", json=batch, headers=key)).json() for _ in range(2)]
        ids = [[(each["thread_id"], each["run_id"]) for each in one] for one in made]
        assert ids[0] == ids[1]
        assert len(set(ids[0])) == 4
        assert len(await client.runs.list("t")) == 2
        changed = [*batch[:3], {**GOOD, "thread_id": "t", "input": said("z")}]
        other = await http.post("/runs/batch", json=changed, headers=key)
        assert other.status_code == 409
        assert len(await client.runs.list("t")) == 2


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({"X-Multitask-Strategy": "reject"}, {}),
        ({"X-Multitask-Strategy": "steer"}, {}),
        ({"X-Multitask-Strategy": "coalesce"}, {}),
        ({"X-Debounce-Ms": "100"}, {}),
        ({}, {"metadata": {"multitask_strategy": "interrupt"}}),
        ({}, {"metadata": {"debounce_ms": 100}}),
    ],
)
@run
async def test_a_run_that_comes_later_takes_no_other_strategy(
    near: str, headers: dict[str, str], body: dict[str, Any]
) -> None:
    async with serving(near) as server:
        client, http = await server.client(), await server.http()
        await client.threads.create(thread_id="t", graph_id="aware")
        later = {**GOOD, **body, "after_seconds": 60}
        answer = await http.post("/threads/t/runs", json=later, headers=headers)
        assert answer.status_code == 422, answer.text
        assert "comes later is enqueued" in detail(answer)
        assert await client.runs.list("t") == []
