"""What becomes of a run while another is under way on its thread."""

from __future__ import annotations

import pytest
from langgraph_sdk.errors import ConflictError, NotFoundError, UnprocessableEntityError

from tests.server.acceptance.saying import heard, new, parts, rests, rows, said, statuses
from tests.server.acceptance.serving import Server, eventually, run
from tests.server.gates import GATES


@run
async def test_t08_enqueue_keeps_the_order_and_gives_each_message_a_turn(server: Server) -> None:
    GATES.clear()
    async with server.client() as client:
        thread_id = await new(client)
        await client.runs.create(thread_id, "slow", input=said("gate"))
        made = [await client.runs.create(thread_id, "chat", input=said(text)) for text in "abcd"]
        assert len(await client.runs.list(thread_id, status="pending")) >= 4
        assert (await client.threads.get(thread_id))["status"] == "busy"
        GATES["slow"].set()
        values = await client.runs.join(thread_id, made[-1]["run_id"])
        turns = [text for letter in "abcd" for text in (letter, f"echo {letter}")]
        assert heard(values) == ["gate", "noted", "rested", *turns]
        assert await statuses(client, thread_id) == ["success"] * 5
        values = await client.runs.join(thread_id, made[1]["run_id"])
        assert heard(values)[-1] in ("echo b", "echo d")


@run
async def test_t08_reject_stores_nothing(server: Server) -> None:
    async with server.client() as client:
        thread_id = await new(client)
        going = await client.runs.create(thread_id, "slow", input=said("30"))
        with pytest.raises(ConflictError):
            await client.runs.create(thread_id, "chat", input=said("no"), multitask_strategy="reject")
        with pytest.raises(ConflictError):
            await parts(client.runs.stream(thread_id, "chat", input=said("no"), multitask_strategy="reject"))
        assert len(await client.runs.list(thread_id)) == 1
        await client.runs.cancel(thread_id, going["run_id"], wait=True)
        values = await client.runs.wait(thread_id, "chat", input=said("now"), multitask_strategy="reject")
        assert heard(values)[-2:] == ["now", "echo now"]


@run
async def test_t08_interrupt_ends_the_run_and_keeps_what_it_stored(server: Server) -> None:
    async with server.client() as client:
        thread_id = await new(client)
        old = await client.runs.create(thread_id, "slow", input=said("30"))
        waiting = await client.runs.create(thread_id, "chat", input=said("never"))
        await rests(client, thread_id)
        values = await client.runs.wait(
            thread_id, "chat", input=said("instead"), multitask_strategy="interrupt"
        )
        assert heard(values) == ["30", "noted", "instead", "echo instead"]
        assert (await client.runs.get(thread_id, old["run_id"]))["status"] == "interrupted"
        assert (await client.runs.get(thread_id, waiting["run_id"]))["status"] == "interrupted"
        assert (await client.threads.get(thread_id))["status"] == "idle"
        newest = (await client.runs.list(thread_id))[0]
        assert (newest["status"], newest["multitask_strategy"]) == ("success", "interrupt")


@run
async def test_t08_steer_is_taken_up_by_the_open_run(server: Server) -> None:
    async with server.client() as client:
        thread_id = await new(client)
        first = await client.runs.create(thread_id, "patient", input=said("wait"))

        async def is_open() -> bool:
            return (await client.runs.get(thread_id, first["run_id"]))["status"] == "running"

        await eventually(is_open)
        steered = await parts(
            client.runs.stream(
                thread_id, "patient", input=said("enough"), headers={"X-Multitask-Strategy": "steer"}
            )
        )
        assert heard([part.data for part in steered if part.event == "values"][-1])[-1] == "at last"
        assert heard(await client.runs.join(thread_id, first["run_id"])) == ["wait", "enough", "at last"]
        second, _ = rows(await client.runs.list(thread_id))
        assert (second["status"], second["taken_up_by"]) == ("success", first["run_id"])
        assert await client.runs.get(thread_id, second["run_id"]) == second
        assert heard(await client.runs.join(thread_id, second["run_id"]))[-1] == "at last"
        for refused in (client.runs.cancel, client.runs.delete):
            with pytest.raises(ConflictError, match=first["run_id"]):
                await refused(thread_id, second["run_id"])


@run
async def test_t08_steer_waits_behind_others_and_can_be_cancelled(server: Server) -> None:
    async with server.client() as client:
        thread_id = await new(client)
        first = await client.runs.create(thread_id, "patient", input=said("wait"))
        second = await client.runs.create(thread_id, "patient", input=said("enough"))
        behind = await client.runs.create(
            thread_id, "patient", input=said("never"), metadata={"multitask_strategy": "steer"}
        )
        assert behind["status"] == "pending"
        await client.runs.cancel(thread_id, behind["run_id"])
        assert (await client.runs.get(thread_id, behind["run_id"]))["status"] == "interrupted"
        await client.runs.cancel(thread_id, first["run_id"], wait=True)
        texts = heard(await client.runs.join(thread_id, second["run_id"]))
        assert texts == ["wait", "enough", "at last"]
        with pytest.raises(UnprocessableEntityError):
            await client.runs.create(
                thread_id, "patient", command={"goto": "wait"}, metadata={"multitask_strategy": "steer"}
            )


@run
async def test_t08_rollback_takes_the_run_back_with_all_that_it_stored(server: Server) -> None:
    async with server.client() as client:
        thread_id = await new(client)
        await client.runs.wait(thread_id, "chat", input=said("before"))
        known = {s["checkpoint_id"] for s in rows(await client.threads.get_history(thread_id))}
        old = await client.runs.create(thread_id, "slow", input=said("30"))
        await rests(client, thread_id)
        assert len(await client.threads.get_history(thread_id)) > len(known)
        values = await client.runs.wait(
            thread_id, "chat", input=said("instead"), multitask_strategy="rollback"
        )
        assert heard(values) == ["before", "echo before", "instead", "echo instead"]
        with pytest.raises(NotFoundError):
            await client.runs.get(thread_id, old["run_id"])
        assert await statuses(client, thread_id) == ["success", "success"]
        texts = [heard(s["values"]) for s in await client.threads.get_history(thread_id, limit=50)]
        assert not [text for text in texts if "noted" in text or "30" in text]
        assert (await client.threads.get(thread_id))["status"] == "idle"


@run
async def test_t08_threads_do_not_wait_for_each_other(server: Server) -> None:
    async with server.client() as client:
        busy, free = await new(client), await new(client)
        going = await client.runs.create(busy, "slow", input=said("30"))
        assert heard(await client.runs.wait(free, "chat", input=said("x"))) == ["x", "echo x"]
        assert (await client.threads.get(busy))["status"] == "busy"
        await client.runs.cancel(busy, going["run_id"], wait=True)
