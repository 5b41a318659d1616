"""What the headers of a request can add to a run: that it is made once, and that several become one."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest
from langgraph_sdk.errors import ConflictError, UnprocessableEntityError

from tests.server.acceptance.saying import heard, names, new, parts, said, state_values
from tests.server.acceptance.serving import Server, near, run
from tests.server.gates import GATES


@run
async def test_x01_the_same_key_and_body_are_the_same_run(server: Server) -> None:
    async with server.client() as client:
        thread_id = await new(client)
        key = {"Idempotency-Key": str(uuid.uuid4())}
        made = await asyncio.gather(
            *(client.runs.create(thread_id, "chat", input=said("once"), headers=key) for _ in range(5))
        )
        assert len({one["run_id"] for one in made}) == 1
        values: Any = await client.runs.join(thread_id, made[0]["run_id"])
        assert heard(values) == ["once", "echo once"]
        late = await client.runs.create(thread_id, "chat", input=said("once"), headers=key)
        assert (late["run_id"], late["status"]) == (made[0]["run_id"], "success")
        assert len(await client.runs.list(thread_id)) == 1
        with pytest.raises(ConflictError, match="Idempotency-Key"):
            await client.runs.create(thread_id, "chat", input=said("other"), headers=key)
        with pytest.raises(ConflictError):
            await client.runs.create(
                thread_id, "chat", input=said("once"), metadata={"other": 1}, headers=key
            )
        assert len(await client.runs.list(thread_id)) == 1
        again = {"Idempotency-Key": str(uuid.uuid4())}
        for _ in range(2):
            values = await client.runs.wait(thread_id, "chat", input=said("twice"), headers=again)
            assert heard(values) == ["once", "echo once", "twice", "echo twice"]
        # A key belongs to a thread.
        elsewhere = await new(client)
        values = await client.runs.wait(elsewhere, "chat", input=said("here"), headers=key)
        assert heard(values) == ["here", "echo here"]


@run
async def test_x01_a_stream_that_is_asked_for_again_is_the_same_run(server: Server) -> None:
    async with server.client() as client:
        thread_id = await new(client)
        key = {"Idempotency-Key": str(uuid.uuid4())}
        given: dict[str, Any] = {
            "input": {"steps": 3},
            "stream_mode": "custom",
            "stream_resumable": True,
            "headers": key,
        }
        first = await parts(client.runs.stream(thread_id, "walk", **given))
        second = await parts(client.runs.stream(thread_id, "walk", **given))
        assert [(p.event, p.data, p.id) for p in second] == [(p.event, p.data, p.id) for p in first]
        assert names(first) == ["metadata", *["custom"] * 3, "end"]
        assert (await state_values(client, thread_id))["trail"] == [0, 1, 2]


@run
async def test_x01_an_answer_is_given_once(server: Server) -> None:
    async with server.client() as client:
        thread_id = await new(client)
        await client.runs.wait(thread_id, "ask", input=said("hello"))
        key = {"Idempotency-Key": str(uuid.uuid4())}
        made = [
            await client.runs.create(thread_id, "ask", command={"resume": "yes"}, headers=key)
            for _ in range(3)
        ]
        assert len({one["run_id"] for one in made}) == 1
        await client.runs.join(thread_id, made[0]["run_id"])
        assert heard((await client.threads.get_state(thread_id))["values"]) == ["hello", "you said yes"]
        with pytest.raises(ConflictError):
            await client.runs.create(thread_id, "ask", command={"resume": "no"}, headers=key)


@run
async def test_x01_a_run_without_a_thread_is_made_once(server: Server) -> None:
    async with server.client() as client:
        key = {"Idempotency-Key": str(uuid.uuid4())}
        made = [
            await client.runs.create(None, "chat", input=said("once"), on_completion="keep", headers=key)
            for _ in range(2)
        ]
        assert made[0]["run_id"] == made[1]["run_id"]
        await client.runs.join(made[0]["thread_id"], made[0]["run_id"])
        values = (await client.threads.get_state(made[0]["thread_id"]))["values"]
        assert heard(values) == ["once", "echo once"]


@pytest.mark.parametrize("how", ["header", "metadata"])
@run
async def test_x02_what_waits_together_becomes_one_run(server: Server, how: str) -> None:
    given: dict[str, Any] = (
        {"headers": {"X-Multitask-Strategy": "coalesce"}}
        if how == "header"
        else {"metadata": {"multitask_strategy": "coalesce"}}
    )
    GATES.clear()
    async with server.client() as client:
        thread_id = await new(client)
        going = await client.runs.create(thread_id, "slow", input=said("gate"))
        made = [await client.runs.create(thread_id, "chat", input=said(text), **given) for text in "abc"]
        assert len({one["run_id"] for one in made}) == 1
        assert made[0]["run_id"] != going["run_id"]
        assert {one["status"] for one in made} == {"pending"}
        GATES["slow"].set()
        values = await client.runs.join(thread_id, made[2]["run_id"])
        assert heard(values)[-4:] == ["a", "b", "c", "echo a + b + c"]
        listed = await client.runs.list(thread_id)
        assert [one["run_id"] for one in listed] == [made[0]["run_id"], going["run_id"]]
        assert (await client.runs.get(thread_id, made[1]["run_id"]))["status"] == "success"


@pytest.mark.parametrize("how", ["header", "metadata"])
@run
async def test_x02_a_run_waits_until_no_more_comes(server: Server, how: str) -> None:
    given: dict[str, Any] = (
        {"headers": {"X-Debounce-Ms": "1500"}} if how == "header" else {"metadata": {"debounce_ms": 1500}}
    )
    async with server.client() as client:
        thread_id = await new(client)
        made = [await client.runs.create(thread_id, "chat", input=said(text), **given) for text in "abc"]
        assert len({one["run_id"] for one in made}) == 1
        assert (await client.runs.get(thread_id, made[0]["run_id"]))["status"] == "pending"
        values = await client.runs.join(thread_id, made[0]["run_id"])
        assert heard(values) == ["a", "b", "c", "echo a + b + c"]
        assert len(await client.runs.list(thread_id)) == 1


@near
@run
async def test_x02_headers_that_say_nothing_sensible_are_refused(server: Server) -> None:
    async with server.client() as client:
        thread_id = await new(client)
        for headers in (
            {"X-Debounce-Ms": "soon"},
            {"X-Debounce-Ms": "-5"},
            {"X-Multitask-Strategy": "hope"},
            {"Idempotency-Key": "x" * 256},
        ):
            with pytest.raises(UnprocessableEntityError):
                await client.runs.create(thread_id, "chat", input=said("x"), headers=headers)
        with pytest.raises(UnprocessableEntityError):
            await client.runs.create(
                thread_id, "chat", command={"goto": "talk"}, headers={"X-Multitask-Strategy": "coalesce"}
            )
        assert await client.runs.list(thread_id) == []


@run
async def test_a_run_that_comes_later_holds_its_key(server: Server) -> None:
    """Whichever comes first under a key, with a delay or without, the other is the same run."""
    async with server.client() as client:
        thread_id = await new(client)
        for delays in ((600, None), (None, 600)):
            key = {"Idempotency-Key": str(uuid.uuid4())}
            made: list[str] = []
            for delay in delays:
                asked = client.runs.create(
                    thread_id, "chat", input=said("x"), headers=key, after_seconds=delay
                )
                made.append((await asked)["run_id"])
            assert made[0] == made[1]
        await client.runs.join(thread_id, made[0])
        waiting = await client.runs.list(thread_id, status="pending")
        with pytest.raises(ConflictError, match="comes later"):
            await client.threads.update_state(thread_id, said("edited"))
        for one in waiting:
            await client.runs.cancel(thread_id, one["run_id"])
        assert await client.runs.list(thread_id, status="pending") == []
        assert (await client.threads.get(thread_id))["status"] == "idle"
        for one in waiting:
            await client.runs.delete(thread_id, one["run_id"])
        await client.threads.update_state(thread_id, said("edited"))
