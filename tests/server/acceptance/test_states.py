"""States of threads as they are and were, and edited, driven by LangGraph's own client.

Covers perdure.server.routes.states, perdure.server.state_snapshots.
"""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from langgraph_sdk.errors import (
    BadRequestError,
    ConflictError,
    NotFoundError,
)

from tests.server.acceptance.saying import detail, heard, is_time, new, parts, row, rows, said
from tests.server.acceptance.serving import Server, run

STATE = {
    "values",
    "next",
    "tasks",
    "metadata",
    "created_at",
    "checkpoint",
    "parent_checkpoint",
    "interrupts",
    "checkpoint_id",
    "parent_checkpoint_id",
}
TASK = {"id", "name", "path", "error", "interrupts", "checkpoint", "state", "result"}


@run
async def test_t07_a_state_has_all_that_clients_read(server: Server) -> None:
    async with server.client() as client:
        thread_id = await new(client)
        empty = row(await client.threads.get_state(thread_id))
        assert empty == {
            "values": {},
            "next": [],
            "tasks": [],
            "metadata": None,
            "created_at": None,
            "checkpoint": None,
            "parent_checkpoint": None,
            "interrupts": [],
            "checkpoint_id": None,
            "parent_checkpoint_id": None,
        }
        assert await client.threads.get_history(thread_id) == []
        await client.runs.wait(thread_id, "chat", input=said("hello"))
        (made,) = await client.runs.list(thread_id)
        history = rows(await client.threads.get_history(thread_id))
        assert [s["metadata"]["step"] for s in history] == [1, 0, -1]
        assert [s["metadata"]["source"] for s in history] == ["loop", "loop", "input"]
        assert [s["next"] for s in history] == [[], ["talk"], ["__start__"]]
        for state, parent in zip(history, [*history[1:], None], strict=True):
            assert set(state) == STATE
            assert is_time(state["created_at"])
            assert state["checkpoint"]["thread_id"] == thread_id
            assert state["checkpoint"]["checkpoint_ns"] == ""
            assert state["checkpoint"]["checkpoint_id"] == state["checkpoint_id"]
            assert state["metadata"]["parents"] == {}
            assert state["metadata"]["run_id"] == made["run_id"]
            assert state["metadata"]["thread_id"] == thread_id
            if parent is None:
                assert state["parent_checkpoint"] is None
            else:
                assert state["parent_checkpoint"] == parent["checkpoint"]
                assert state["parent_checkpoint_id"] == parent["checkpoint_id"]
        (task,) = history[1]["tasks"]
        assert set(task) == TASK
        assert (task["name"], task["error"], task["interrupts"]) == ("talk", None, [])
        assert row(await client.threads.get_state(thread_id)) == history[0]
        old = history[1]
        assert row(await client.threads.get_state(thread_id, old["checkpoint"])) == old
        assert row(await client.threads.get_state(thread_id, checkpoint_id=old["checkpoint_id"])) == old


@run
async def test_t07_a_state_edited_in_the_past_is_a_fork_that_a_run_goes_on(server: Server) -> None:
    async with server.client() as client:
        thread_id = await new(client)
        for text in ("one", "two"):
            await client.runs.wait(thread_id, "chat", input=said(text))
        history = rows(await client.threads.get_history(thread_id, limit=50))
        old = next(s for s in history if heard(s["values"]) == ["one", "echo one"] and not s["next"])
        update = client.threads.update_state(
            thread_id,
            said("instead"),
            as_node="__start__",
            checkpoint=old["checkpoint"],
        )
        forked = row(await update)
        assert forked["checkpoint"]["thread_id"] == thread_id
        assert forked["checkpoint_id"] == forked["checkpoint"]["checkpoint_id"]
        assert forked["configurable"]["checkpoint_id"] == forked["checkpoint_id"]
        state = row(await client.threads.get_state(thread_id, forked["checkpoint"]))
        assert state["metadata"]["source"] == "update"
        assert state["parent_checkpoint"]["checkpoint_id"] == old["checkpoint_id"]
        assert state["next"] == ["talk"]
        at: Any = {k: v for k, v in forked["checkpoint"].items() if k != "thread_id"}
        values = await client.runs.wait(thread_id, "chat", input=None, checkpoint=at)
        assert heard(values) == ["one", "echo one", "instead", "echo instead"]
        history = rows(await client.threads.get_history(thread_id, limit=50))
        ids = [s["checkpoint_id"] for s in history]
        assert ids == sorted(ids, reverse=True)
        children = [
            s for s in history if (s["parent_checkpoint"] or {}).get("checkpoint_id") == old["checkpoint_id"]
        ]
        assert {s["metadata"]["source"] for s in children} == {"update", "input"}
        assert ["one", "echo one", "two", "echo two"] in [heard(s["values"]) for s in history]
        assert heard((await client.threads.get(thread_id))["values"])[-1] == "echo instead"


@run
async def test_t07_a_run_on_an_old_checkpoint_begins_a_branch(server: Server) -> None:
    async with server.client() as client:
        thread_id = await new(client)
        for text in ("one", "two"):
            await client.runs.wait(thread_id, "chat", input=said(text))
        history = rows(await client.threads.get_history(thread_id, limit=50))
        old = next(s for s in history if heard(s["values"]) == ["one", "echo one"] and not s["next"])
        told = await parts(
            client.runs.stream(thread_id, "chat", input=said("other"), checkpoint_id=old["checkpoint_id"])
        )
        assert heard(told[-2].data) == ["one", "echo one", "other", "echo other"]
        assert heard((await client.threads.get_state(thread_id))["values"])[-1] == "echo other"


@run
async def test_t07_what_cannot_be_updated_is_refused(server: Server) -> None:
    async with server.client() as client:
        thread_id = await new(client)
        with pytest.raises(BadRequestError, match="graph"):
            await client.threads.update_state(thread_id, said("early"))
        await client.runs.wait(thread_id, "chat", input=said("hello"))
        with pytest.raises(BadRequestError, match="Node nowhere does not exist"):
            await client.threads.update_state(thread_id, said("x"), as_node="nowhere")
        with pytest.raises(NotFoundError):
            await client.threads.update_state(str(uuid.uuid4()), said("x"))


@run
async def test_t07_a_thread_with_nothing_left_to_do_after_an_edit_is_idle(server: Server) -> None:
    async with server.client() as client:
        thread_id = await new(client)
        await client.runs.wait(thread_id, "stopped", input=said("go"))
        await client.threads.update_state(thread_id, said("done by hand"), as_node="second")
        assert (await client.threads.get_state(thread_id))["next"] == []
        assert (await client.threads.get(thread_id))["status"] == "idle"
        found = await client.threads.search(ids=[thread_id], status="idle")
        assert [t["thread_id"] for t in found] == [thread_id]


@run
async def test_t07_update_state_answers_an_interrupted_thread_with_what_is_next(server: Server) -> None:
    async with server.client() as client:
        thread_id = await new(client)
        await client.runs.wait(thread_id, "stopped", input=said("go"))
        assert (await client.threads.get(thread_id))["status"] == "interrupted"
        await client.threads.update_state(thread_id, {"messages": [{"role": "ai", "content": "edited"}]})
        assert (await client.threads.get_state(thread_id))["next"] == ["second"]
        values = await client.runs.wait(thread_id, "stopped", input=None)
        assert heard(values) == ["go", "first", "edited", "second"]
        assert (await client.threads.get(thread_id))["status"] == "idle"


@run
async def test_q01_history_before_takes_an_id_a_reference_and_a_config(server: Server) -> None:
    async with server.client() as client, server.http() as http:
        thread_id = await new(client)
        await client.runs.wait(thread_id, "chat", input=said("hello"))
        history = rows(await client.threads.get_history(thread_id))
        newest = history[0]["checkpoint"]
        assert await client.threads.get_history(thread_id, before=newest["checkpoint_id"]) == history[1:]
        assert await client.threads.get_history(thread_id, before=newest) == history[1:]
        answer = await http.post(
            f"/threads/{thread_id}/history", json={"before": {"configurable": newest}, "limit": 1}
        )
        assert answer.json() == history[1:2]
        link = await http.get(f"/threads/{thread_id}/history?limit=2&before={newest['checkpoint_id']}")
        assert link.json() == history[1:3]
        assert await client.threads.get_history(thread_id, metadata={"source": "input"}) == history[2:]
        assert await client.threads.get_history(thread_id, metadata={"step": 7}) == []
        odd = await http.post(f"/threads/{thread_id}/history", json={"before": {"x": 1}})
        assert odd.status_code == 422
        detail(odd)


@run
async def test_q01_history_is_filtered_by_each_metadata_that_it_shows(server: Server) -> None:
    async with server.client() as client:
        thread_id = await new(client)
        await client.runs.wait(thread_id, "aware", input=said("x"))
        shown = rows(await client.threads.get_history(thread_id))
        assert len(shown) > 1
        for name, value in shown[0]["metadata"].items():
            if isinstance(value, str | int):
                having = [each for each in shown if each["metadata"].get(name) == value]
                found = rows(await client.threads.get_history(thread_id, metadata={name: value}))
                assert found == having, name
        assert await client.threads.get_history(thread_id, metadata={"thread_id": "other"}) == []


@run
async def test_q01_history_of_a_subgraph(server: Server) -> None:
    async with server.client() as client:
        thread_id = await new(client)
        await client.runs.wait(thread_id, "nested", input=said("hello"))
        (task,) = row(await client.threads.get_state(thread_id))["tasks"]
        assert task["state"] is None
        namespace = task["checkpoint"]["checkpoint_ns"]
        assert namespace.startswith("inner:")
        (task,) = row(await client.threads.get_state(thread_id, subgraphs=True))["tasks"]
        below = task["state"]
        assert below["next"] == ["ask"]
        assert below["checkpoint"]["checkpoint_ns"] == namespace
        assert below["tasks"][0]["interrupts"][0]["value"] == "deep?"
        at: Any = {"checkpoint_ns": namespace, "thread_id": thread_id}
        history = rows(await client.threads.get_history(thread_id, checkpoint=at))
        assert history[0]["checkpoint_id"] == below["checkpoint_id"]
        assert {s["checkpoint"]["checkpoint_ns"] for s in history} == {namespace}
        there = row(await client.threads.get_state(thread_id, below["checkpoint"]))
        assert there["values"] == below["values"]


@run
async def test_q03_only_what_is_selected_is_answered(server: Server) -> None:
    async with server.client() as client:
        thread_id = await new(client)
        await client.runs.wait(thread_id, "walk", input={"steps": 2, "pause": 0})
        whole = row(await client.threads.get_state(thread_id))
        assert row(await client.threads.get_state(thread_id, select=["values.trail", "next"])) == {
            "values": {"trail": [0, 1]},
            "next": [],
        }
        at = whole["checkpoint"]
        some = row(await client.threads.get_state(thread_id, at, select=["values"]))
        assert some == {"values": whole["values"]}
        by_id = await client.threads.get_state(
            thread_id, checkpoint_id=at["checkpoint_id"], select=["checkpoint"]
        )
        assert row(by_id) == {"checkpoint": at}
        history = rows(await client.threads.get_history(thread_id, select=["values.trail"]))
        assert history[0] == {"values": {"trail": [0, 1]}}
        assert all(set(state) <= {"values"} for state in history)


@run
async def test_q11_a_state_is_not_edited_under_a_run_and_the_refusal_is_short(server: Server) -> None:
    async with server.client() as client:
        thread_id = await new(client)
        going = await client.runs.create(thread_id, "slow", input=said("30"), metadata={"own": "secret"})
        with pytest.raises(ConflictError) as refused:
            await client.threads.update_state(thread_id, said("x"))
        assert len(refused.value.message) < 200
        assert "secret" not in refused.value.message
        assert "kwargs" not in refused.value.message
        await client.runs.cancel(thread_id, going["run_id"], wait=True)
        assert await client.threads.update_state(thread_id, said("x"))
