"""Runs that fail, ask or stop on the way, and how they go on."""

from __future__ import annotations

from functools import partial
from typing import Any

import httpx
import pytest
from langgraph_sdk.client import LangGraphClient
from langgraph_sdk.errors import ConflictError

from tests.server.acceptance.saying import heard, new, parts, questions, row, said, state_values, statuses
from tests.server.acceptance.serving import Server, eventually, run


@run
async def test_t05_a_failure_is_told_in_every_way(server: Server) -> None:
    async with server.client() as client, server.http() as http:
        thread_id = await new(client)
        told = await parts(client.runs.stream(thread_id, "boom", input=said("x")))
        assert [part.event for part in told] == ["metadata", "values", "error", "end"]
        assert told[-2].data == {"error": "ValueError", "message": "it broke"}
        assert told[-1].data["status"] == "error"
        with pytest.raises(Exception, match=r"^ValueError: it broke$"):
            await client.runs.wait(thread_id, "boom", input=said("x"))
        values = await client.runs.wait(thread_id, "boom", input=said("x"), raise_error=False)
        failure = {"__error__": {"error": "ValueError", "message": "it broke"}}
        assert values == failure
        thread = row(await client.threads.get(thread_id))
        assert thread["status"] == "error"
        assert thread["error"] == {"error": "ValueError", "message": "it broke"}
        state = await client.threads.get_state(thread_id)
        assert state["next"] == ["boom"]
        assert state["tasks"][0]["error"] == "ValueError('it broke')"
        assert await statuses(client, thread_id) == ["error"] * 3
        run_id = (await client.runs.list(thread_id))[0]["run_id"]
        joined = await http.get(f"/threads/{thread_id}/runs/{run_id}/join")
        assert (joined.status_code, joined.json()) == (200, failure)
        # The thread can be spoken to again.
        await client.runs.wait(thread_id, "chat", input=said("y"))
        assert (await client.threads.get(thread_id))["status"] == "idle"
        assert row(await client.threads.get(thread_id))["error"] is None


@run
async def test_t06_an_interrupted_run_waits_and_resumes(server: Server) -> None:
    async with server.client() as client:
        thread_id = await new(client)
        values = await client.runs.wait(thread_id, "ask", input=said("hello"))
        (asked,) = questions(values)
        assert asked["value"] == {"question": "really?"}
        assert asked["id"]
        thread = await client.threads.get(thread_id)
        assert thread["status"] == "interrupted"
        ((task_id, (waiting,)),) = thread["interrupts"].items()
        assert (waiting["id"], waiting["value"]) == (asked["id"], asked["value"])
        state = await client.threads.get_state(thread_id)
        assert state["next"] == ["ask"]
        assert state["tasks"][0]["id"] == task_id
        assert [i["id"] for i in state["interrupts"]] == [asked["id"]]
        assert [i["id"] for i in state["tasks"][0]["interrupts"]] == [asked["id"]]
        values = await client.runs.wait(thread_id, "ask", command={"resume": "yes"})
        assert heard(values) == ["hello", "you said yes"]
        assert "__interrupt__" not in values
        thread = await client.threads.get(thread_id)
        assert (thread["status"], thread["interrupts"]) == ("idle", {})
        with pytest.raises(httpx.HTTPStatusError, match="409"):
            await client.runs.wait(thread_id, "ask", command={"resume": "again"}, strict_resume=True)


@run
async def test_t06_a_question_is_streamed_and_answered(server: Server) -> None:
    async with server.client() as client:
        thread_id = await new(client)
        told = await parts(client.runs.stream(thread_id, "ask", input=said("hello"), stream_mode=["values"]))
        # The question comes as an update even where no updates were asked for.
        assert [p.event for p in told] == ["metadata", "values", "updates", "values", "end"]
        assert list(told[2].data) == ["__interrupt__"]
        assert told[3].data["__interrupt__"][0]["value"] == {"question": "really?"}
        told = await parts(client.runs.stream(thread_id, "ask", command={"resume": "yes"}))
        assert heard(told[-2].data) == ["hello", "you said yes"]
        assert (await client.threads.get(thread_id))["status"] == "idle"


@run
async def test_t06_two_questions_are_answered_by_their_ids(server: Server) -> None:
    async with server.client() as client:
        thread_id = await new(client)
        begun: dict[str, Any] = {"answers": ["begun"]}
        values: Any = await client.runs.wait(thread_id, "both", input=begun)
        ids = {asked["value"]: asked["id"] for asked in questions(values)}
        assert set(ids) == {"left?", "right?"}
        assert len((await client.threads.get(thread_id))["interrupts"]) == 2
        values = await client.runs.wait(thread_id, "both", command={"resume": {ids["right?"]: "r"}})
        assert [asked["value"] for asked in questions(values)] == ["left?"]
        assert (await client.threads.get(thread_id))["status"] == "interrupted"
        values = await client.runs.wait(thread_id, "both", command={"resume": {ids["left?"]: "l"}})
        assert values["answers"][0] == "begun"
        assert sorted(values["answers"][1:]) == ["left l", "right r"]


@run
async def test_t06_a_question_of_a_subgraph(server: Server) -> None:
    async with server.client() as client:
        thread_id = await new(client)
        values = await client.runs.wait(thread_id, "nested", input=said("hello"))
        assert [asked["value"] for asked in questions(values)] == ["deep?"]
        values = await client.runs.wait(thread_id, "nested", command={"resume": "yes"})
        assert heard(values) == ["hello", "echo hello", "within: yes", "outside"]


@run
async def test_t06_breakpoints_of_the_graph_and_of_the_request(server: Server) -> None:
    async with server.client() as client:
        thread_id = await new(client)
        values = await client.runs.wait(thread_id, "stopped", input=said("go"))
        assert heard(values) == ["go", "first"]
        assert (await client.threads.get(thread_id))["status"] == "interrupted"
        assert (await client.threads.get_state(thread_id))["next"] == ["second"]
        assert heard(await client.runs.wait(thread_id, "stopped", input=None))[-1] == "second"
        assert (await client.threads.get(thread_id))["status"] == "idle"
        thread_id = await new(client)
        for stop in ({"interrupt_after": ["note"]}, {"interrupt_before": "*"}):
            thread_id = await new(client)
            values = await client.runs.wait(thread_id, "slow", input=said("0"), **stop)
            assert heard(values) == (["0", "noted"] if "interrupt_after" in stop else ["0"])
            assert (await client.threads.get(thread_id))["status"] == "interrupted"
        thread_id = await new(client)
        await client.runs.wait(thread_id, "slow", input=said("0"), interrupt_after=["note"])
        assert heard(await client.runs.wait(thread_id, "slow", input=None)) == ["0", "noted", "rested"]


@run
async def test_t05_a_state_that_was_edited_after_a_failure_shows_no_error(server: Server) -> None:
    async with server.client() as client:
        for node, status in (("boom", "idle"), ("__start__", "interrupted")):
            thread_id = await new(client)
            await client.runs.wait(thread_id, "boom", input=said("x"), raise_error=False)
            await client.threads.update_state(thread_id, said("mended"), as_node=node)
            thread = row(await client.threads.get(thread_id))
            assert (thread["status"], thread["error"]) == (status, None)


@run
async def test_t06_a_breakpoint_is_not_streamed_as_an_interrupt_unless_updates_are(server: Server) -> None:
    async with server.client() as client:
        every: list[Any] = [["values"], ["values", "updates"]]
        for modes in every:
            thread_id = await new(client)
            told = await parts(
                client.runs.stream(
                    thread_id, "stopped", input=said("go"), stream_mode=modes, interrupt_before="*"
                )
            )
            assert [part.event for part in told] == ["metadata", *modes, "end"]


@run
async def test_t06_supersteps_leave_a_thread_that_waits_at_a_node(server: Server) -> None:
    async with server.client() as client:
        for node, status in (("first", "interrupted"), ("second", "idle")):
            steps: Any = [{"updates": [{"values": said("x"), "as_node": node}]}]
            made: Any = await client.threads.create(graph_id="stopped", supersteps=steps)
            assert made["status"] == status
            (found,) = await client.threads.search(ids=[made["thread_id"]], status=made["status"])
            assert found["thread_id"] == made["thread_id"]


@run
async def test_t06_a_command_goes_elsewhere_and_updates(server: Server) -> None:
    async with server.client() as client:
        thread_id = await new(client)
        await client.runs.wait(thread_id, "stopped", input=said("go"))
        note = {"messages": [{"role": "user", "content": "by command"}]}
        values = await client.runs.wait(thread_id, "stopped", command={"update": note, "goto": "first"})
        assert heard(values) == ["go", "first", "by command", "first", "second"]


@run
async def test_q09_an_answer_that_nothing_asked_for_is_refused(server: Server) -> None:
    async with server.client() as client:
        thread_id = await new(client)
        for strict in (True, None):
            with pytest.raises(ConflictError):
                await client.runs.create(thread_id, "ask", command={"resume": "yes"}, strict_resume=strict)
        assert await client.runs.list(thread_id) == []
        assert (await client.threads.get(thread_id))["status"] == "idle"


@run
async def test_a_question_that_is_marked_as_resolved_is_closed(server: Server) -> None:
    async with server.client() as client:
        thread_id = await new(client)
        await client.runs.wait(thread_id, "ask", input=said("hello"))
        # As a chat does it that has nothing to answer.
        stream = client.runs.stream(
            thread_id, "ask", command={"goto": "__end__"}, stream_mode=["messages-tuple", "values"]
        )
        told = await parts(stream)
        assert all("__interrupt__" not in (part.data or {}) for part in told if part.event == "values")
        state = await client.threads.get_state(thread_id)
        assert (state["next"], state["interrupts"], state["tasks"]) == ([], [], [])
        thread = await client.threads.get(thread_id)
        assert (thread["status"], thread["interrupts"]) == ("idle", {})
        assert (await client.threads.get_history(thread_id, limit=1))[0]["tasks"] == []
        values = await client.runs.wait(thread_id, "chat", input=said("more"))
        assert heard(values)[-1] == "echo hello + more"


@run
async def test_a_thread_whose_run_was_stopped_is_idle_at_once(server: Server) -> None:
    async with server.client() as client, server.http() as http:
        for begins in ("stopped by its page", "stopped before it began"):
            thread_id = await new(client)
            is_late = "before" in begins
            made = await client.runs.create(
                thread_id,
                "walk",
                input={"steps": 50, "pause": 0.1},
                config={"recursion_limit": 100},
                stream_resumable=True,
                after_seconds=60 if is_late else None,
            )
            if not is_late:
                await eventually(partial(_walks, client, thread_id))
            # The page does not wait for it.
            path = f"/threads/{thread_id}/runs/{made['run_id']}/cancel"
            assert (await http.post(path, params={"wait": "0", "action": "interrupt"})).is_success

            async def is_idle(at: str = thread_id) -> bool:
                return (await client.threads.get(at))["status"] == "idle"

            await eventually(is_idle)
            found = await client.runs.get(thread_id, made["run_id"])
            assert found["status"] == "interrupted"
            values = await client.runs.wait(thread_id, "chat", input=said("more"))
            assert heard(values)[-1] == "echo more"


async def _walks(client: LangGraphClient, thread_id: str) -> bool:
    return bool((await state_values(client, thread_id)).get("trail"))
