"""Runs, driven by LangGraph's own client: made, waited for, listed, cancelled and deleted.

Covers perdure.server.routes.runs.
"""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest
from langgraph_sdk.errors import ConflictError, NotFoundError

from tests.server.acceptance.saying import detail, heard, is_time, new, rests, rows, said, statuses
from tests.server.acceptance.serving import Server, eventually, near, run
from tests.server.gates import GATES

RUN = {
    "run_id",
    "thread_id",
    "assistant_id",
    "created_at",
    "updated_at",
    "status",
    "metadata",
    "kwargs",
    "multitask_strategy",
}


@run
async def test_t02_wait_answers_values_and_the_second_turn_appends(server: Server) -> None:
    async with server.client() as client, server.http() as http:
        thread_id = await new(client)
        assert heard(await client.runs.wait(thread_id, "chat", input=said("one"))) == ["one", "echo one"]
        answer = await http.post(
            f"/threads/{thread_id}/runs/wait", json={"assistant_id": "chat", "input": said("two")}
        )
        assert heard(answer.json()) == ["one", "echo one", "two", "echo two"]
        (newest, _) = await client.runs.list(thread_id)
        path = f"/threads/{thread_id}/runs/{newest['run_id']}"
        assert answer.headers["Content-Location"] == path
        assert answer.headers["Location"] == f"{path}/join"
        message = answer.json()["messages"][-1]
        assert message["type"] == "ai"
        assert {"content", "id", "name", "additional_kwargs", "response_metadata"} <= set(message)
        thread = await client.threads.get(thread_id)
        assert thread["status"] == "idle"
        assert thread["values"] == answer.json()


@run
async def test_t02_config_and_context_reach_the_graph(server: Server) -> None:
    async with server.client() as client:
        thread_id = await new(client)
        values = await client.runs.wait(thread_id, "aware", input={}, context={"mood": "calm"})
        assert values == {"heard": ["mood=calm", "tone=None"]}
        toned: Any = await client.runs.wait(
            thread_id, "aware", input={}, config={"configurable": {"tone": "low"}}
        )
        assert toned["heard"][1] == "tone=low"
        with pytest.raises(Exception, match="GraphRecursionError"):
            await client.runs.wait(thread_id, "walk", input={"steps": 9}, config={"recursion_limit": 3})


@run
async def test_t02_a_wait_that_is_cut_off_is_joined_again(server: Server) -> None:
    async with server.client() as client:
        thread_id = await new(client)
        made = await client.runs.create(thread_id, "slow", input=said("0.5"))
        values = await asyncio.gather(*(client.runs.join(thread_id, made["run_id"]) for _ in range(3)))
        assert [heard(value)[-1] for value in values] == ["rested"] * 3


@run
async def test_t09_a_run_is_created_joined_listed_and_deleted(server: Server) -> None:
    async with server.client() as client, server.http() as http:
        thread_id = await new(client)
        body = {
            "assistant_id": "chat",
            "input": said("hello"),
            "metadata": {"why": "test"},
            "config": {"tags": ["a"], "recursion_limit": 20},
            "stream_mode": ["values", "updates"],
            "interrupt_after": ["nobody"],
            "durability": "sync",
        }
        answer = await http.post(f"/threads/{thread_id}/runs", json=body)
        made = answer.json()
        assert set(made) - {"cancel_reason"} == RUN
        assert made["status"] == "pending"
        assert made["thread_id"] == thread_id
        assert str(uuid.UUID(made["run_id"])) == made["run_id"]
        assert is_time(made["created_at"])
        assert is_time(made["updated_at"])
        assert made["metadata"]["why"] == "test"
        assert made["multitask_strategy"] == "enqueue"
        for name in ("input", "config", "stream_mode", "interrupt_after", "durability"):
            assert made["kwargs"][name] == body[name], name
        assert answer.headers["Content-Location"] == f"/threads/{thread_id}/runs/{made['run_id']}"
        assert heard(await client.runs.join(thread_id, made["run_id"])) == ["hello", "echo hello"]
        done = await client.runs.get(thread_id, made["run_id"])
        assert done == {**made, "status": "success", "updated_at": done["updated_at"]}
        assert done["updated_at"] > done["created_at"]
        await client.runs.wait(thread_id, "chat", input=said("more"))
        first, second = reversed(await client.runs.list(thread_id))
        assert first == done
        assert await client.runs.list(thread_id, limit=1) == [second]
        assert await client.runs.list(thread_id, limit=1, offset=1) == [first]
        assert await client.runs.list(thread_id, status="success") == [second, first]
        assert await client.runs.list(thread_id, status="pending") == []
        assert rows(await client.runs.list(thread_id, select=["run_id", "status"], limit=1)) == [
            {"run_id": second["run_id"], "status": "success"}
        ]
        await client.runs.delete(thread_id, first["run_id"])
        assert await client.runs.list(thread_id) == [second]
        with pytest.raises(NotFoundError):
            await client.runs.get(thread_id, first["run_id"])
        with pytest.raises(NotFoundError):
            await client.runs.delete(thread_id, first["run_id"])


@run
async def test_t09_a_running_run_is_cancelled_and_keeps_what_it_stored(server: Server) -> None:
    async with server.client() as client, server.http() as http:
        thread_id = await new(client)
        made = await client.runs.create(thread_id, "slow", input=said("30"))
        await rests(client, thread_id)
        assert [r["run_id"] for r in await client.runs.list(thread_id, status="running")] == [made["run_id"]]
        path = f"/threads/{thread_id}/runs/{made['run_id']}"
        answer = await http.post(f"{path}/cancel", params={"wait": 1})
        assert answer.status_code == 200
        assert answer.headers["Location"] == f"{path}/join"
        assert answer.headers["Content-Location"] == path
        assert heard(answer.json()) == ["30", "noted"]
        assert (await client.runs.get(thread_id, made["run_id"]))["status"] == "interrupted"
        # Nobody is waited for: what it was to do next stays, and comes when it is asked for.
        assert (await client.threads.get(thread_id))["status"] == "idle"
        assert (await client.threads.get_state(thread_id))["next"] == ["rest"]
        again = await http.post(f"{path}/cancel")
        assert again.status_code == 404
        detail(again)
        with pytest.raises(NotFoundError):
            await client.runs.cancel(thread_id, str(uuid.uuid4()))


@run
async def test_t09_a_run_is_interrupted_as_soon_as_its_end_is_asked_for(server: Server) -> None:
    async with server.client() as client:
        thread_id = await new(client)
        made = await client.runs.create(thread_id, "deaf", input=said("1"))
        await rests(client, thread_id)
        await client.runs.cancel(thread_id, made["run_id"])
        # It heeds nothing for a while, and is none of those that go on.
        assert (await client.runs.get(thread_id, made["run_id"]))["status"] == "interrupted"
        assert await statuses(client, thread_id) == ["interrupted"]
        assert await client.runs.list(thread_id, status="running") == []
        await client.runs.join(thread_id, made["run_id"])
        assert await statuses(client, thread_id) == ["interrupted"]
        # One that is taken back goes on until it is gone.
        other = await new(client)
        made = await client.runs.create(other, "deaf", input=said("1"))
        await rests(client, other)
        await client.runs.cancel(other, made["run_id"], action="rollback")

        async def is_gone() -> bool:
            found = await statuses(client, other)
            assert set(found) <= {"running"}
            return not found

        await eventually(is_gone)


@run
async def test_t09_a_pending_run_is_cancelled_and_never_begins(server: Server) -> None:
    GATES.clear()
    async with server.client() as client, server.http() as http:
        thread_id = await new(client)
        going = await client.runs.create(thread_id, "slow", input=said("gate"))
        waiting = await client.runs.create(thread_id, "chat", input=said("never"))
        answer = await http.post(f"/threads/{thread_id}/runs/{waiting['run_id']}/cancel")
        assert (answer.status_code, answer.content) == (202, b"")
        assert (await client.runs.get(thread_id, waiting["run_id"]))["status"] == "interrupted"
        GATES["slow"].set()
        assert heard(await client.runs.join(thread_id, going["run_id"])) == ["gate", "noted", "rested"]
        values = await client.runs.join(thread_id, waiting["run_id"])
        assert "never" not in heard(values)
        assert await statuses(client, thread_id) == ["success", "interrupted"]
        # The last run that did anything finished.
        assert (await client.threads.get(thread_id))["status"] == "idle"


@run
async def test_t09_cancel_can_take_the_run_back(server: Server) -> None:
    async with server.client() as client:
        thread_id = await new(client)
        await client.runs.wait(thread_id, "chat", input=said("before"))
        made = await client.runs.create(thread_id, "slow", input=said("30"))
        await rests(client, thread_id)
        await client.runs.cancel(thread_id, made["run_id"], wait=True, action="rollback")
        with pytest.raises(NotFoundError):
            await client.runs.get(thread_id, made["run_id"])
        state = await client.threads.get_state(thread_id)
        assert heard(state["values"]) == ["before", "echo before"]
        assert (await client.threads.get(thread_id))["status"] == "idle"


@run
async def test_t09_a_run_that_is_to_come_later_holds_up_nothing(server: Server) -> None:
    async with server.client() as client:
        thread_id = await new(client)
        later = await client.runs.create(thread_id, "chat", input=said("later"), after_seconds=5)
        assert later["status"] == "pending"
        values = await client.runs.wait(thread_id, "chat", input=said("now"))
        assert heard(values) == ["now", "echo now"]
        values = await client.runs.join(thread_id, later["run_id"])
        assert heard(values) == ["now", "echo now", "later", "echo later"]
        assert await statuses(client, thread_id) == ["success", "success"]


@run
async def test_t13_every_way_to_begin_a_run_tells_its_id_at_once(server: Server) -> None:
    async with server.client() as client:
        thread_id = await new(client)
        told: list[Any] = []
        made = await client.runs.create(thread_id, "chat", input=said("x"), on_run_created=told.append)
        assert told == [{"run_id": made["run_id"], "thread_id": thread_id}]
        stream = client.runs.stream(thread_id, "chat", input=said("y"), on_run_created=told.append)
        async for part in stream:
            if part.event == "metadata":
                assert told[1] == {"run_id": part.data["run_id"], "thread_id": thread_id}
        await client.runs.wait(thread_id, "chat", input=said("z"), on_run_created=told.append)
        listed = reversed(await client.runs.list(thread_id))
        assert told == [{"run_id": r["run_id"], "thread_id": thread_id} for r in listed]
        alone: list[Any] = []
        made = await client.runs.create(None, "chat", input=said("x"), on_run_created=alone.append)
        assert alone[0]["run_id"] == made["run_id"]
        async for part in client.runs.stream(None, "chat", input=said("x"), on_run_created=alone.append):
            if part.event == "metadata":
                assert alone[1]["run_id"] == part.data["run_id"]
        await client.runs.wait(None, "chat", input=said("x"), on_run_created=alone.append)
        assert len({told["run_id"] for told in alone}) == 3


@run
async def test_t17_a_run_without_a_thread_leaves_none(server: Server) -> None:
    async with server.client() as client:
        told: list[Any] = []
        values = await client.runs.wait(None, "chat", input=said("alone"), on_run_created=told.append)
        assert heard(values) == ["alone", "echo alone"]
        made = await client.runs.create(None, "chat", input=said("alone"))
        batch: list[Any] = [{"assistant_id": "chat", "input": said(text)} for text in "ab"]
        together = await client.runs.create_batch(batch)
        assert len({one["run_id"] for one in together}) == 2
        gone = [told[0]["thread_id"], made["thread_id"], *(one["thread_id"] for one in together)]

        async def are_gone() -> bool:
            return not await client.threads.search(ids=gone)

        await eventually(are_gone)
        for thread_id in gone:
            with pytest.raises(NotFoundError):
                await client.threads.get(thread_id)
        with pytest.raises(Exception, match="it broke"):
            await client.runs.wait(None, "boom", input=said("x"), on_run_created=told.append)
        with pytest.raises(NotFoundError):
            await client.threads.get(told[-1]["thread_id"])


@run
async def test_t17_on_completion_keep_keeps_the_thread(server: Server) -> None:
    async with server.client() as client:
        told: list[Any] = []
        await client.runs.wait(
            None, "chat", input=said("keep"), on_completion="keep", on_run_created=told.append
        )
        async for _ in client.runs.stream(
            None, "chat", input=said("keep"), on_completion="keep", on_run_created=told.append
        ):
            pass
        for one in told:
            state = await client.threads.get_state(one["thread_id"])
            assert heard(state["values"]) == ["keep", "echo keep"]
        with pytest.raises(Exception, match=r"400|thread"):
            await client.runs.wait(None, "ask", command={"resume": "x"})


@run
async def test_q06_the_addresses_of_a_run_without_a_thread_are_there(server: Server) -> None:
    async with server.http() as http:
        body = {"assistant_id": "chat", "input": said("x"), "stream_resumable": True}
        for path in ("/runs/stream", "/runs/wait"):
            asked = {**body, "on_completion": "keep"}
            answer = await http.post(path, json=asked)
            assert answer.status_code == 200
            again = await http.get(answer.headers["Location"], headers={"Last-Event-ID": "-1"})
            assert again.status_code == 200
            if path == "/runs/stream":
                assert again.content == answer.content
            else:
                assert again.json() == answer.json()
            assert (await http.get(answer.headers["Content-Location"])).json()["status"] == "success"


@run
async def test_q10_nothing_to_cancel_is_no_failure(server: Server) -> None:
    async with server.client() as client:
        thread_id = await new(client)
        await client.runs.wait(thread_id, "chat", input=said("x"))
        (done,) = await client.runs.list(thread_id)
        await client.runs.cancel_many(thread_id=thread_id, run_ids=[done["run_id"]])
        await client.runs.cancel_many(status="pending")
        assert await statuses(client, thread_id) == ["success"]


@run
async def test_q10_runs_that_are_not_there_are_named_and_none_is_cancelled(server: Server) -> None:
    async with server.client() as client, server.http() as http:
        thread_id, other = await new(client), await new(client)
        open_run = (await client.runs.create(thread_id, "slow", input=said("30")))["run_id"]
        elsewhere = (await client.runs.create(other, "chat", input=said("x")))["run_id"]
        for missing in (str(uuid.uuid4()), elsewhere, "none"):
            for run_ids in ([missing], [open_run, missing]):
                answer = await http.post("/runs/cancel", json={"thread_id": thread_id, "run_ids": run_ids})
                assert answer.status_code == 404, answer.text
                assert missing in detail(answer)
                assert open_run not in detail(answer)
        await rests(client, thread_id)
        assert await statuses(client, thread_id) == ["running"]
        sent = {"thread_id": thread_id, "run_ids": [open_run.upper()]}
        assert (await http.post("/runs/cancel", json=sent)).status_code == 204
        await client.runs.join(thread_id, open_run)
        assert await statuses(client, thread_id) == ["interrupted"]


@near
@run
async def test_q11_the_id_of_a_run_is_a_uuid_in_any_form(server: Server) -> None:
    async with server.client() as client, server.http() as http:
        thread_id = await new(client)
        run_id = (await client.runs.create(thread_id, "slow", input=said("30")))["run_id"]
        for form in (run_id.upper(), run_id.replace("-", "")):
            at = f"/threads/{thread_id}/runs/{form}"
            assert (await http.get(at)).json()["run_id"] == run_id
            assert (await http.delete(at)).status_code == 409
        assert (await http.post(f"{at}/cancel", params={"wait": True})).is_success
        joined = await http.get(f"{at}/join")
        assert joined.headers["Content-Location"] == f"/threads/{thread_id}/runs/{run_id}"
        assert (await http.get(f"{at}/stream")).status_code == 200
        assert (await http.post(f"{at}/retry")).status_code == 409
        assert (await http.delete(at)).status_code == 204
        assert (await http.get(at)).status_code == 404


@run
async def test_q10_many_runs_are_cancelled_at_once(server: Server) -> None:
    async with server.client() as client:
        threads = [await new(client) for _ in range(2)]
        for thread_id in threads:
            await client.runs.create(thread_id, "slow", input=said("30"))
            await rests(client, thread_id)
            await client.runs.create(thread_id, "chat", input=said("never"))
            await client.runs.create(thread_id, "chat", input=said("never"))
        first, second = threads
        ids = [r["run_id"] for r in await client.runs.list(first, status="pending")]
        await client.runs.cancel_many(thread_id=first, run_ids=ids)
        assert await statuses(client, first) == ["running", "interrupted", "interrupted"]
        assert await statuses(client, second) == ["running", "pending", "pending"]
        await client.runs.cancel_many(status="all")

        async def are_over() -> bool:
            found = await client.threads.search(ids=threads)
            return all(thread["status"] != "busy" for thread in found)

        await eventually(are_over)
        assert await statuses(client, second) == ["interrupted"] * 3


@run
async def test_q14_a_deleted_run_leaves_its_checkpoints_unless_told_otherwise(server: Server) -> None:
    async with server.client() as client:
        thread_id = await new(client)
        for text in ("one", "two"):
            await client.runs.wait(thread_id, "chat", input=said(text))
        newest, first = await client.runs.list(thread_id)
        count = len(await client.threads.get_history(thread_id, limit=50))
        await client.runs.delete(thread_id, first["run_id"])
        assert len(await client.threads.get_history(thread_id, limit=50)) == count
        assert heard((await client.threads.get_state(thread_id))["values"])[-1] == "echo two"
        await client.runs.delete(thread_id, newest["run_id"], params={"checkpoints": "delete"})
        assert heard((await client.threads.get_state(thread_id))["values"]) == ["one", "echo one"]
        going = await client.runs.create(thread_id, "slow", input=said("30"))
        with pytest.raises(ConflictError):
            await client.runs.delete(thread_id, going["run_id"])
        await client.runs.cancel(thread_id, going["run_id"], wait=True)
        await client.runs.delete(thread_id, going["run_id"])


@near
@run
async def test_t09_a_thread_is_deleted_under_its_run(server: Server) -> None:
    async with server.client() as client:
        thread_id = await new(client)
        await client.runs.create(thread_id, "slow", input=said("1"))
        await rests(client, thread_id)
        await client.threads.delete(thread_id)
        with pytest.raises(NotFoundError):
            await client.threads.get(thread_id)
        await asyncio.sleep(1.5)
        with pytest.raises(NotFoundError):
            await client.threads.get_state(thread_id)
        assert await client.threads.search(ids=[thread_id]) == []
