"""``context_id`` names a thread wherever ``thread_id`` does, and two names for one request are too many.

Covers perdure.runtime.agents.run_context.
"""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from langgraph_sdk.errors import UnprocessableEntityError

from tests.server.acceptance.saying import detail, heard, new, said
from tests.server.acceptance.serving import Server, near, run
from tests.server.listening import command


@run
async def test_a_run_without_a_thread_in_its_path_goes_to_the_one_that_it_names(server: Server) -> None:
    async with server.client() as client, server.http() as http:
        context, body = f"context/{uuid.uuid4()}", {"assistant_id": "chat", "if_not_exists": "create"}
        answer = await http.post("/runs/wait", json={**body, "input": said("one"), "context_id": context})
        assert heard(answer.json()) == ["one", "echo one"]
        answer = await http.post(
            "/runs/wait", json={**body, "input": said("two")}, params={"context_id": context}
        )
        assert heard(answer.json())[-2:] == ["two", "echo two"]
        # Unmodified clients say it in the query.
        values = await client.runs.wait(
            None, "chat", input=said("three"), params={"context_id": context}, if_not_exists="create"
        )
        assert heard(values)[-2:] == ["three", "echo three"]
        lines = (
            await http.post("/runs/stream", json={**body, "input": said("four"), "thread_id": context})
        ).text
        assert "echo four" in lines
        several = [
            {**body, "input": said("five"), "context_id": context},
            {**body, "input": said("six")},
            {**body, "input": said("seven"), "thread_id": context, "context_id": context},
        ]
        made = (await http.post("/runs/batch", json=several)).json()
        assert [one["thread_id"] == context for one in made] == [True, False, True]
        assert "context_id" not in made[0]["kwargs"]
        assert heard(await client.runs.join(context, made[2]["run_id"]))[::2] == [
            *("one", "two", "three", "four", "five", "seven")
        ]
        # It stays, as a thread does that a path names; and it is not made where it is not asked for.
        assert (await client.threads.get(context))["thread_id"] == context
        answer = await http.post(
            "/runs/wait", json={"assistant_id": "chat", "context_id": str(uuid.uuid4()), "input": said("x")}
        )
        assert answer.status_code == 404


@near
@run
async def test_threads_are_made_and_runs_ended_by_either_name(server: Server) -> None:
    async with server.client() as client, server.http() as http:
        context = str(uuid.uuid4())
        assert (await http.post("/threads", json={"context_id": context})).json()["thread_id"] == context
        assert (await http.post("/threads", json={"thread_id": context})).status_code == 409
        run_id = (await client.runs.create(context, "slow", input=said("30")))["run_id"]
        answer = await http.post("/runs/cancel", json={"context_id": context, "run_ids": [run_id]})
        assert answer.status_code == 204
        await client.runs.join(context, run_id)
        assert (await client.runs.get(context, run_id))["status"] == "interrupted"
        for nothing in ({}, {"context_id": None, "run_ids": [run_id]}):
            answer = await http.post("/runs/cancel", json=nothing)
            assert answer.status_code == 422
            assert "name a thread_id" in detail(answer)


@near
@run
async def test_a_request_that_names_two_threads_is_refused(server: Server) -> None:
    async with server.client() as client, server.http() as http:
        thread, body = await new(client), {"assistant_id": "chat", "input": said("hi")}
        before = await client.threads.get(thread)
        at = f"/threads/{thread}"
        contradictions: list[tuple[str, str, Any, dict[str, str]]] = [
            ("POST", f"{at}/runs", {**body, "context_id": "another"}, {}),
            ("POST", f"{at}/runs/wait", {**body, "thread_id": "another"}, {}),
            ("POST", f"{at}/runs/stream", body, {"context_id": "another"}),
            ("POST", f"{at}/state", {"values": said("x"), "context_id": "another"}, {}),
            ("POST", f"{at}/history", {"context_id": "another"}, {}),
            ("PATCH", at, {"metadata": {"a": 1}, "context_id": "another"}, {}),
            ("POST", f"{at}/commands", {"id": 1, "method": "state.get", "context_id": "another"}, {}),
            ("POST", f"{at}/stream/events", {"channels": ["values"], "context_id": "another"}, {}),
            ("POST", f"{at}/copy", None, {"context_id": "another"}),
            ("GET", at, None, {"context_id": "another"}),
            ("GET", f"{at}/state", None, {"thread_id": "another"}),
            ("DELETE", at, None, {"context_id": "another"}),
            ("POST", "/runs/wait", {**body, "thread_id": thread, "context_id": "another"}, {}),
            ("POST", "/runs", {**body, "thread_id": thread}, {"context_id": "another"}),
            ("POST", "/runs/batch", [body, {**body, "thread_id": thread, "context_id": "another"}], {}),
            ("POST", "/threads", {"thread_id": "one", "context_id": "another"}, {}),
            ("POST", "/runs/cancel", {"thread_id": thread, "context_id": "another", "run_ids": []}, {}),
        ]
        for method, path, content, query in contradictions:
            answer = await http.request(method, path, json=content, params=query)
            assert answer.status_code == 422, (method, path, answer.text)
            assert "names two threads" in detail(answer), (method, path)
        for name in ("thread_id", "context_id"):
            for wrong in (7, "", "a\u0000b", "x" * 256):
                answer = await http.post("/runs/wait", json={**body, name: wrong})
                assert answer.status_code == 422, (name, wrong, answer.text)
        with pytest.raises(UnprocessableEntityError, match="names two threads"):
            await client.runs.create(thread, "chat", input=said("x"), params={"context_id": "another"})
        assert await client.threads.get(thread) == before
        assert await client.runs.list(thread) == []


@near
@run
async def test_the_same_name_twice_is_one_and_a_client_s_own_data_name_nothing(server: Server) -> None:
    async with server.client() as client, server.http() as http:
        thread = await new(client)
        body = {
            "assistant_id": "aware",
            "input": {},
            "context_id": thread,
            "metadata": {"context_id": "mine", "thread_id": "mine"},
            "context": {"context_id": "mine", "mood": "calm"},
        }
        answer = await http.post(f"/threads/{thread}/runs/wait", json=body, params={"thread_id": thread})
        assert answer.json()["heard"][0] == "mood=calm"
        (made,) = await client.runs.list(thread)
        assert (made["thread_id"], (made["metadata"] or {})["context_id"]) == (thread, "mine")
        told = await command(http, thread, "state.get", context_id="another")
        assert told["type"] == "success", "what is in a command's params is for the command"
