"""Two features of runs at once, each of which is right alone: a cancellation, a deletion, a repetition or an
answer meets a delay, a question, a joined run or another agent.

Covers perdure.server.routes.runs, perdure.server.runs.run_creation, perdure.engine.queue.inbox,
perdure.engine.queue.scheduled, perdure.engine.queue.retries.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from langgraph_sdk.client import LangGraphClient

from tests.server.acceptance.saying import detail, heard, new, questions, rows, said
from tests.server.acceptance.serving import eventually
from tests.server.gates import GATES
from tests.server.graphs import graphs
from tests.server.hosting import Served, run, serving

MOST = 150
"""More messages than one page of a thread's has."""


@pytest.fixture(autouse=True)
def _no_gate_is_open() -> None:
    GATES.clear()


async def _statuses(client: LangGraphClient, thread_id: str, limit: int = 1000) -> list[str]:
    return [one["status"] for one in await client.runs.list(thread_id, limit=limit)]


async def _graph_of(client: LangGraphClient, thread_id: str) -> Any:
    return ((await client.threads.get(thread_id))["metadata"] or {}).get("graph_id")


async def _is_over(client: LangGraphClient, thread_id: str) -> None:
    async def rests() -> bool:
        return (await client.threads.get(thread_id))["status"] != "busy"

    await eventually(rests)


@run
async def test_those_that_come_later_are_cancelled_with_the_others_that_wait(near: str) -> None:
    async with serving(near, of=graphs()) as server:
        client, http = await server.client(), await server.http()
        later, busy = await new(client), await new(client)
        await client.runs.create(later, "chat", input=said("later"), after_seconds=3600)
        await client.runs.create(busy, "slow", input=said("gate"))
        await client.runs.create(busy, "chat", input=said("next"))
        await client.runs.create(busy, "chat", input=said("later"), after_seconds=3600)
        await client.runs.cancel_many(status="running")
        assert await _statuses(client, later) == ["pending"]
        await client.runs.cancel_many(status="pending")
        assert await _statuses(client, later) == ["interrupted"]
        assert "pending" not in await _statuses(client, busy)
        assert (await http.post(f"/threads/{later}/runs/wait", json=_new("chat", "now"))).status_code == 200


@run
async def test_all_that_wait_on_a_thread_are_cancelled_however_many_they_are(near: str) -> None:
    async with serving(near, of=graphs()) as server:
        client, http = await server.client(), await server.http()
        thread_id = await new(client)
        await client.runs.create(thread_id, "slow", input=said("gate"))
        body = [{**_new("chat", "never"), "thread_id": thread_id}] * (MOST // 2)
        for _ in range(2):
            assert (await http.post("/runs/batch", json=body)).status_code == 200
        await client.runs.cancel_many(status="pending")
        assert await _statuses(client, thread_id) == ["interrupted"] * MOST + ["running"]
        GATES["slow"].set()
        await _is_over(client, thread_id)
        assert heard((await client.threads.get_state(thread_id))["values"]) == ["gate", "noted", "rested"]


@run
async def test_a_run_of_several_messages_is_cancelled_as_a_whole(near: str) -> None:
    joined: dict[str, Any] = {"headers": {"X-Multitask-Strategy": "coalesce"}}
    async with serving(near, of=graphs()) as server:
        client = await server.client()
        thread_id = await new(client)
        await client.runs.create(thread_id, "slow", input=said("gate"))
        made = [await client.runs.create(thread_id, "chat", input=said(text), **joined) for text in "abc"]
        (run_id,) = {one["run_id"] for one in made}
        alone = await client.runs.create(thread_id, "chat", input=said("alone"))
        await client.runs.cancel(thread_id, run_id)
        assert (await client.runs.get(thread_id, run_id))["status"] == "interrupted"
        assert (await client.runs.get(thread_id, alone["run_id"]))["status"] == "pending"
        GATES["slow"].set()
        values = await client.runs.join(thread_id, alone["run_id"])
        assert heard(values) == ["gate", "noted", "rested", "alone", "echo alone"]


@run
async def test_a_run_that_asked_is_deleted_once_its_question_is_answered(near: str) -> None:
    async with serving(near, of=graphs()) as server:
        client, http = await server.client(), await server.http()
        thread_id = await new(client)
        await client.runs.wait(thread_id, "ask", input=said("hello"))
        (asked,) = await client.runs.list(thread_id)
        path = f"/threads/{thread_id}/runs/{asked['run_id']}"
        refused = await http.delete(path)
        assert refused.status_code == 409
        assert "waits for an answer" in detail(refused)
        assert "cancel it first" not in detail(refused)
        await client.runs.wait(thread_id, "ask", command={"resume": "yes"})
        assert (await http.delete(path)).status_code == 204
        assert (await http.get(path)).status_code == 404
        texts = heard((await client.threads.get_state(thread_id))["values"])
        assert texts == ["hello", "you said yes"]


@run
async def test_a_repetition_that_was_cancelled_does_not_keep_the_run_from_being_run_again(near: str) -> None:
    async with serving(near, of=graphs(), concurrency=1) as server:
        client, http = await server.client(), await server.http()
        thread_id = await new(client)
        with suppress(Exception):
            await client.runs.wait(thread_id, "boom", input=said("x"))
        (failed,) = await client.runs.list(thread_id)
        other = await new(client)
        await client.runs.create(other, "slow", input=said("gate"))

        async def repeat() -> dict[str, Any]:
            answer = await http.post(f"/threads/{thread_id}/runs/{failed['run_id']}/retry")
            assert answer.status_code == 200, answer.text
            again: dict[str, Any] = answer.json()
            return again

        for action in ("interrupt", "rollback"):
            first = await repeat()
            assert (first["status"], (await repeat())["run_id"]) == ("pending", first["run_id"])
            path = f"/threads/{thread_id}/runs/{first['run_id']}"
            assert (await http.post(f"{path}/cancel", params={"action": action})).status_code == 202
        last = await repeat()
        assert last["status"] == "pending"
        # What is left of the one before does not free the key of this one.
        assert (await repeat())["run_id"] == last["run_id"]
        GATES["slow"].set()
        await _is_over(client, thread_id)
        assert (await client.runs.get(thread_id, last["run_id"]))["status"] == "error"


@run
async def test_an_answer_that_is_sent_to_another_agent_leaves_the_thread_to_the_one_that_asked(
    near: str,
) -> None:
    async with serving(near, of=graphs()) as server:
        client = await server.client()
        thread_id = await new(client)
        await client.runs.wait(thread_id, "ask", input=said("hello"))
        values = await client.runs.wait(thread_id, "chat", command={"resume": "yes"})
        assert heard(values) == ["hello", "you said yes"]
        assert await _graph_of(client, thread_id) == "ask"
        # A message to the other one hands the thread over, as ever.
        await client.runs.wait(thread_id, "chat", input=said("and"))
        assert await _graph_of(client, thread_id) == "chat"


@run
async def test_a_goto_from_a_past_checkpoint_is_not_kept_by_a_question_elsewhere(near: str) -> None:
    async with serving(near, of=graphs()) as server:
        client, http = await server.client(), await server.http()
        thread_id = await new(client)
        await client.runs.wait(thread_id, "ask", input=said("one"))
        asking = (await client.threads.get_state(thread_id))["checkpoint"]["checkpoint_id"]
        await client.runs.wait(thread_id, "ask", command={"resume": "yes"})
        answered = (await client.threads.get_state(thread_id))["checkpoint"]["checkpoint_id"]
        await client.runs.wait(thread_id, "ask", input=said("two"))
        again = {"assistant_id": "ask", "command": {"goto": "ask"}}
        path = f"/threads/{thread_id}/runs/wait"
        assert (await http.post(path, json=again)).status_code == 409
        values = (await http.post(path, json={**again, "checkpoint_id": answered})).json()
        assert heard(values) == ["one", "you said yes"]
        assert len(questions(values)) == 1
        # Beside the question that the checkpoint itself asks, the goto would be dropped.
        history = len(await client.threads.get_history(thread_id, limit=100))
        left = (await http.post(path, json={**again, "checkpoint_id": asking})).json()
        if "__error__" in left:
            assert left["__error__"]["error"] == "NotAllowed"
            assert len(await client.threads.get_history(thread_id, limit=100)) == history
        else:
            assert heard(left) == ["one"]


@pytest.mark.parametrize("way", ["wait", "create"])
@run
async def test_a_run_without_a_thread_is_the_same_one_after_its_end_if_it_has_a_key(
    near: str, way: str
) -> None:
    """A request is sent again when its response was lost, which is after the run."""
    async with serving(near, of=graphs()) as server:
        client, http = await server.client(), await server.http()
        path, key = "/runs/wait" if way == "wait" else "/runs", {"Idempotency-Key": "once"}
        answers: list[httpx.Response] = []
        for _ in range(2):
            answers.append(await http.post(path, json=_new("chat", "once"), headers=key))
            await asyncio.sleep(0.3)
        assert len({answer.headers["Content-Location"] for answer in answers}) == 1
        threads = rows(await client.threads.search(limit=100))
        assert [heard(one["values"]) for one in threads] == [["once", "echo once"]]
        with_ttl = (await http.get(f"/threads/{threads[0]['thread_id']}", params={"include": "ttl"})).json()
        assert with_ttl["ttl"]["strategy"] == "delete"
        other = await http.post(path, json=_new("chat", "other"), headers=key)
        assert other.status_code == 409


@run
async def test_a_thread_goes_with_its_run_if_the_client_that_waits_has_left(near: str) -> None:
    async with serving(near, of=graphs()) as server:
        client = await server.client()
        body = json.dumps(_new("slow", "gate")).encode()
        parts = urlsplit(server.url)
        _, writer = await asyncio.open_connection(parts.hostname, parts.port)
        head = f"POST /runs/wait HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)

        async def is_there() -> bool:
            return await client.threads.count() == 1

        await eventually(is_there)
        await asyncio.sleep(0.2)
        writer.transport.abort()
        await asyncio.sleep(0.2)
        GATES["slow"].set()

        async def is_gone() -> bool:
            return await client.threads.count() == 0

        await eventually(is_gone)


@run
async def test_those_who_wait_for_a_run_that_is_deleted_with_its_thread_are_told_so(near: str) -> None:
    async with serving(near, of=graphs()) as server:
        client, http = await server.client(), await server.http()
        thread_id = await new(client)
        made = await client.runs.create(thread_id, "slow", input=said("gate"), stream_resumable=True)
        path = f"/threads/{thread_id}/runs/{made['run_id']}"
        waiting = [asyncio.create_task(http.get(f"{path}/{way}")) for way in ("join", "stream")]
        await asyncio.sleep(0.3)
        await client.threads.delete(thread_id)
        joined, streamed = await asyncio.gather(*waiting)
        assert joined.json()["__error__"]["error"] == "NotFound"
        last = streamed.text.strip().split("\n\n")[-1].splitlines()
        assert last[0] == "event: error"
        assert json.loads(last[1].removeprefix("data: "))["error"] == "NotFound"


def _new(assistant_id: str, text: str) -> dict[str, Any]:
    return {"assistant_id": assistant_id, "input": said(text)}


JOINED: dict[str, Any] = {"headers": {"X-Multitask-Strategy": "coalesce"}}


async def _message_ids(server: Served, thread_id: str, count: int) -> list[str]:
    """The ids of a thread's newest messages, the oldest first."""
    newest = await server.host.runtime.for_tenant("").messages(thread_id, limit=count)
    return [one.message.id for one in reversed(newest)]


@run
async def test_messages_that_wait_to_be_one_run_are_that_run_by_each_of_their_ids(near: str) -> None:
    async with serving(near, of=graphs()) as server:
        client, http = await server.client(), await server.http()
        thread_id = await new(client)
        await client.runs.create(thread_id, "slow", input=said("gate"))
        made = [await client.runs.create(thread_id, "chat", input=said(text), **JOINED) for text in "abc"]
        alone = await client.runs.create(thread_id, "chat", input=said("alone"))
        (run_id,) = {one["run_id"] for one in made}
        ids = await _message_ids(server, thread_id, 4)
        assert ids[0] == run_id
        assert ids[3] == alone["run_id"]

        async def told(status: str) -> None:
            listed = await client.runs.list(thread_id)
            assert [one["run_id"] for one in listed[:2]] == [alone["run_id"], run_id]
            assert len(listed) == 3
            for each in ids[:3]:
                found = await client.runs.get(thread_id, each)
                assert (found["run_id"], found["status"]) == (run_id, status)

        await told("pending")
        pages = [await client.runs.list(thread_id, limit=1, offset=at) for at in range(4)]
        assert [[one["run_id"] for one in page] for page in pages[:2]] == [[alone["run_id"]], [run_id]]
        assert pages[3] == []
        joining = [asyncio.create_task(client.runs.join(thread_id, each)) for each in ids[:3]]
        streaming = asyncio.create_task(http.get(f"/threads/{thread_id}/runs/{ids[2]}/stream"))
        await asyncio.sleep(0.1)
        GATES["slow"].set()
        for values in await asyncio.gather(*joining):
            assert heard(values)[:7] == ["gate", "noted", "rested", "a", "b", "c", "echo a + b + c"]
        assert f'"run_id":"{run_id}"' in (await streaming).text
        await client.runs.join(thread_id, alone["run_id"])
        await told("success")
        for each in ids[:3]:
            assert heard(await client.runs.join(thread_id, each))[6] == "echo a + b + c"


@run
async def test_a_run_that_waits_is_cancelled_by_the_id_of_each_of_its_messages(near: str) -> None:
    async with serving(near, of=graphs()) as server:
        client = await server.client()
        thread_id = await new(client)
        await client.runs.create(thread_id, "slow", input=said("gate"))
        made = [await client.runs.create(thread_id, "chat", input=said(text), **JOINED) for text in "abc"]
        ids = await _message_ids(server, thread_id, 3)
        await client.runs.cancel(thread_id, ids[1])
        for _ in range(2):
            assert await _statuses(client, thread_id) in (
                ["interrupted", "running"],
                ["interrupted", "success"],
            )
            for each in ids:
                found = await client.runs.get(thread_id, each)
                assert (found["run_id"], found["status"]) == (made[0]["run_id"], "interrupted")
            GATES["slow"].set()
            await _is_over(client, thread_id)


@run
async def test_a_run_that_goes_on_is_cancelled_by_the_id_of_a_message_that_it_took(near: str) -> None:
    async with serving(near, of=graphs()) as server:
        client = await server.client()
        thread_id = await new(client)
        await client.runs.create(thread_id, "chat", input=said("first"), after_seconds=3600)
        gate = await client.runs.create(thread_id, "slow", input=said("gate"))
        for text in ("gate", "gate"):
            await client.runs.create(thread_id, "slow", input=said(text), **JOINED)
        first, second = await _message_ids(server, thread_id, 2)
        await client.runs.cancel(thread_id, gate["run_id"], wait=True)

        async def runs() -> bool:
            return (await client.runs.get(thread_id, second))["status"] == "running"

        await eventually(runs)
        await client.runs.cancel(thread_id, second, wait=True)
        assert (await client.runs.get(thread_id, first))["status"] == "interrupted"


async def _wait(http: httpx.AsyncClient, thread_id: str, body: dict[str, Any], **headers: str) -> Any:
    answer = await http.post(f"/threads/{thread_id}/runs/wait", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("action", ["interrupt", "rollback"])
@run
async def test_those_who_wait_for_a_run_that_never_began_get_no_values_of_another(
    near: str, action: str
) -> None:
    async with serving(near, of=graphs()) as server:
        client, http = await server.client(), await server.http()
        thread_id = await new(client)
        await client.runs.create(thread_id, "slow", input=said("gate"))
        waiting = asyncio.create_task(_wait(http, thread_id, _new("chat", "never")))

        async def is_queued() -> bool:
            return (await _statuses(client, thread_id))[:-1] == ["pending"]

        await eventually(is_queued)
        queued = (await client.runs.list(thread_id))[0]["run_id"]
        path = f"/threads/{thread_id}/runs/{queued}"
        cancelled = await http.post(f"{path}/cancel", params={"action": action, "wait": True})
        found = [await waiting, cancelled.json()]
        if action == "interrupt":
            found += [(await http.get(f"{path}/join")).json()]
            GATES["slow"].set()
            await _is_over(client, thread_id)
            found += [(await http.get(f"{path}/join")).json()]
        for values in found:
            assert values["__error__"]["error"] in ("Cancelled", "NotFound"), values
        GATES["slow"].set()


@run
async def test_those_who_wait_for_a_run_that_was_rolled_back_get_no_values_of_the_next(near: str) -> None:
    async with serving(near, of=graphs()) as server:
        client, http = await server.client(), await server.http()
        thread_id = await new(client)
        waiting = asyncio.create_task(_wait(http, thread_id, _new("slow", "gate")))

        async def is_running() -> bool:
            return await _statuses(client, thread_id) == ["running"]

        await eventually(is_running)
        next_run = {**_new("chat", "next"), "multitask_strategy": "rollback"}
        values = await _wait(http, thread_id, next_run)
        assert heard(values) == ["next", "echo next"]
        assert (await waiting)["__error__"]["error"] in ("Cancelled", "NotFound")


@run
async def test_a_run_that_was_cancelled_while_it_ran_leaves_its_own_values(near: str) -> None:
    async with serving(near, of=graphs()) as server:
        client, http = await server.client(), await server.http()
        thread_id = await new(client)
        waiting = asyncio.create_task(_wait(http, thread_id, _new("slow", "gate")))

        async def is_noted() -> bool:
            state = await client.threads.get_state(thread_id)
            return bool(state["values"]) and "noted" in heard(state["values"])

        await eventually(is_noted)
        next_run = {**_new("chat", "next"), "multitask_strategy": "interrupt"}
        await _wait(http, thread_id, next_run)
        assert heard(await waiting) == ["gate", "noted"]


@run
async def test_a_run_that_another_request_rolls_back_at_once_was_still_accepted(near: str) -> None:
    strategies = ("enqueue", "rollback", "enqueue", "rollback")
    bodies = [{**_new("chat", name), "multitask_strategy": name} for name in strategies]
    async with serving(near, of=graphs()) as server:
        client, http = await server.client(), await server.http()
        for _ in range(5):
            thread_id = await new(client)
            path = f"/threads/{thread_id}/runs"
            batch = [{**body, "thread_id": thread_id} for body in bodies]
            given = await asyncio.gather(
                *(http.post(path, json=body) for body in bodies), http.post("/runs/batch", json=batch)
            )
            assert [answer.status_code for answer in given] == [200] * 5, [each.text for each in given]
            made = [answer.json() for answer in given[:4]] + given[4].json()
            assert {one["status"] for one in made} == {"pending"}
            await _is_over(client, thread_id)
            kept = {one["run_id"] for one in await client.runs.list(thread_id, limit=100)}
            assert kept <= {one["run_id"] for one in made}


@run
async def test_the_key_of_a_run_that_was_rolled_back_finds_it(near: str) -> None:
    async with serving(near, of=graphs()) as server:
        client, http = await server.client(), await server.http()
        thread_id = await new(client)
        path, key = f"/threads/{thread_id}/runs", {"Idempotency-Key": "once"}
        first = (await http.post(path, json=_new("slow", "gate"), headers=key)).json()
        await client.runs.wait(thread_id, "chat", input=said("next"), multitask_strategy="rollback")
        again = await http.post(path, json=_new("slow", "gate"), headers=key)
        assert again.status_code == 200, again.text
        assert (again.json()["run_id"], again.json()["status"]) == (first["run_id"], "interrupted")
        assert (await http.get(f"{path}/{first['run_id']}")).status_code == 404
