"""Servers that die or stop while a client is with them, and others on the same database that go on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.server.acceptance.saying import heard, names, new, parts, questions, row, rows, said, state_values
from tests.server.acceptance.serving import Server, ServerProcess, eventually, line_to, run

WALK: dict[str, Any] = {
    "input": {"steps": 30, "pause": 0.05},
    "config": {"recursion_limit": 100},
    "stream_mode": "custom",
    "stream_resumable": True,
}


@contextmanager
def second(server: Server) -> Iterator[ServerProcess]:
    """Another server on the same database, in a process of its own."""
    process = ServerProcess(server.database)
    try:
        process.wait()
        yield process
    finally:
        process.kill()


@pytest.mark.slow
@run
async def test_t10_a_run_that_was_accepted_survives_the_servers_end(server: Server) -> None:
    with second(server) as doomed:
        async with doomed.client() as client:
            begun, accepted = await new(client), await new(client)
            walk = await client.runs.create(begun, "walk", **WALK)
            made = await client.runs.create(accepted, "chat", input=said("hello"))
            doomed.kill()
    async with server.client() as client:
        for thread_id, run_id in ((begun, walk["run_id"]), (accepted, made["run_id"])):

            async def is_over(thread_id: str = thread_id, run_id: str = run_id) -> bool:
                return (await client.runs.get(thread_id, run_id))["status"] == "success"

            await eventually(is_over)
            assert len(await client.runs.list(thread_id)) == 1
            assert (await client.threads.get(thread_id))["status"] == "idle"
        state = await client.threads.get_state(accepted)
        assert heard(state["values"]) == ["hello", "echo hello"]
        assert (await state_values(client, begun))["trail"] == list(range(30))
        history = rows(await client.threads.get_history(accepted, limit=50))
        assert [s["metadata"]["step"] for s in history] == [1, 0, -1]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Reconnecting without a Last-Event-ID")
@run
async def test_t11_a_stream_goes_on_at_another_server_when_the_first_is_killed(server: Server) -> None:
    with second(server) as doomed, line_to(doomed) as line, pytest.MonkeyPatch.context() as patch:
        patch.setattr("langgraph_sdk._async.http._reconnect_delay", lambda attempt, **_: 0.1 * (attempt + 1))
        async with line.near.client() as client:
            thread_id = await new(client)
            told = []
            ids: list[int] = []
            async for part in client.runs.stream(thread_id, "walk", **WALK):
                told.append(part)
                if part.event != "end":
                    ids.append(int(part.id or 0))
                if len(told) == 8:
                    line.target = server.port
                    doomed.kill()
                    line.cut()
    assert ids == sorted(set(ids))
    assert names(told)[-1] == "end"
    attempts = [part.data["attempt"] for part in told if part.event == "metadata"]
    assert attempts == [1, 2]
    steps = [part.data["step"] for part in told if part.event == "custom"]
    # What a server has told nobody yet when it is killed may be lost: the last thing that it told.
    assert len(set(range(30)) - set(steps)) <= 1
    assert sorted(set(steps)) == list(dict.fromkeys(steps))
    # The step that was under way is done again, and no other.
    assert len(steps) <= 31
    async with server.client() as client:
        assert (await state_values(client, thread_id))["trail"] == list(range(30))
        run_id = told[0].data["run_id"]
        again = await parts(client.runs.join_stream(thread_id, run_id, last_event_id="-1"))
        # So may what it had told just then. What is stored is as it was told.
        assert names(again)[-1] == "end"
        stored = [part.data["step"] for part in again if part.event == "custom"]
        assert len(set(range(30)) - set(stored)) <= 2
        known = {part.id: part.data for part in told if part.event != "end"}
        assert all(known.get(part.id, part.data) == part.data for part in again if part.event != "end")


@run
async def test_t11_a_server_that_stops_in_order_hands_its_streams_on(server: Server) -> None:
    first = Server(server.database)
    try:
        with line_to(first) as line, pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                "langgraph_sdk._async.http._reconnect_delay", lambda attempt, **_: 0.1 * (attempt + 1)
            )
            async with line.near.client() as client:
                thread_id = await new(client)
                steps: list[int] = []
                ids: list[int] = []
                last = ""
                async for part in client.runs.stream(thread_id, "walk", **WALK):
                    last = part.event
                    if last != "end":
                        ids.append(int(part.id or 0))
                    if last == "custom":
                        steps.append(part.data["step"])
                    if len(steps) == 5 and line.target == first.port:
                        line.target = server.port
                        first.begin_to_stop()
            assert server.port in line.reached, "the first server did not hand it on"
        assert steps == list(range(30))
        assert ids == sorted(set(ids))
        assert last == "end"
    finally:
        first.stop()


@run
async def test_t12_a_run_is_followed_at_another_server_than_its_own(server: Server) -> None:
    other = Server(server.database)
    try:
        async with server.client() as here, other.client() as there:
            thread_id = await new(here)
            made = await here.runs.create(thread_id, "walk", **WALK)
            told = await parts(there.runs.join_stream(thread_id, made["run_id"], last_event_id="-1"))
            assert [p.data["step"] for p in told if p.event == "custom"] == list(range(30))
            again = await parts(here.runs.join_stream(thread_id, made["run_id"], last_event_id="-1"))
            assert [(p.event, p.data, p.id) for p in again] == [(p.event, p.data, p.id) for p in told]
            # Questions are asked by one server and answered at another.
            values = await here.runs.wait(thread_id, "ask", input=said("hello"))
            assert questions(values)
            values = await there.runs.wait(thread_id, "ask", command={"resume": "yes"})
            assert heard(values) == ["hello", "you said yes"]
            made = await here.runs.create(thread_id, "slow", input=said("30"))
            await there.runs.cancel(thread_id, made["run_id"], wait=True)
            assert (await here.runs.get(thread_id, made["run_id"]))["status"] == "interrupted"
    finally:
        other.stop()


@run
async def test_t10_what_a_restarted_server_finds(server: Server) -> None:
    first = Server(server.database)
    async with first.client() as client:
        thread_id = await new(client)
        told = await parts(client.runs.stream(thread_id, "walk", **WALK))
        run_id = told[0].data["run_id"]
    first.stop()
    restarted = Server(server.database)
    try:
        async with restarted.client() as client:
            middle = told[10]
            rest = await parts(client.runs.join_stream(thread_id, run_id, last_event_id=middle.id))
            assert [(p.event, p.data) for p in rest] == [(p.event, p.data) for p in told[11:]]
            assert (await client.runs.get(thread_id, run_id))["status"] == "success"
            assert row(await client.threads.get(thread_id))["metadata"]["graph_id"] == "walk"
    finally:
        restarted.stop()
