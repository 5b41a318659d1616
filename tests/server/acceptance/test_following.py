"""Streams that are cut off, joined and left, driven by LangGraph's own client."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from langgraph_sdk.schema import StreamMode

from tests.server.acceptance.saying import heard, names, new, parts, said, state_values
from tests.server.acceptance.serving import Server, eventually, line_to, run
from tests.server.gates import GATES


@run
async def test_t11_a_dropped_connection_loses_and_repeats_nothing(server: Server) -> None:
    with line_to(server) as line, pytest.MonkeyPatch.context() as patch:
        _hurry(patch)
        async with line.near.client() as client:
            thread_id = await new(client)
            steps: list[int] = []
            ids: list[int] = []
            stream = client.runs.stream(
                thread_id,
                "walk",
                input={"steps": 40, "pause": 0.03},
                config={"recursion_limit": 100},
                stream_mode=["custom", "values"],
                stream_resumable=True,
            )
            last = ""
            async for part in stream:
                last = part.event
                if last != "end":
                    assert part.id is not None
                    ids.append(int(part.id))
                if last == "custom":
                    steps.append(part.data["step"])
                    if len(steps) in (5, 12, 13):
                        line.cut()
        assert line.cuts == 3
        assert steps == list(range(40))
        assert ids == sorted(set(ids))
        assert last == "end"


@pytest.mark.filterwarnings("ignore:Reconnecting without a Last-Event-ID")
@run
async def test_t11_a_stream_that_is_not_resumable_ends_all_the_same(server: Server) -> None:
    with line_to(server) as line, pytest.MonkeyPatch.context() as patch:
        _hurry(patch)
        async with line.near.client() as client:
            thread_id = await new(client)
            stream = client.runs.stream(
                thread_id, "walk", input={"steps": 12, "pause": 0.1}, stream_mode="custom"
            )
            steps: list[int] = []
            last = ""
            async for part in stream:
                last = part.event
                if last == "custom":
                    steps.append(part.data["step"])
                    if len(steps) == 2:
                        line.cut()
        assert last == "end"
        assert steps == sorted(set(steps))
        async with server.client() as client:
            assert (await state_values(client, thread_id))["trail"] == list(range(12))


@pytest.mark.filterwarnings("ignore:Request failed, attempting reconnect")
@run
async def test_t11_a_wait_survives_a_dropped_connection(server: Server) -> None:
    with line_to(server) as line, pytest.MonkeyPatch.context() as patch:
        _hurry(patch)
        async with line.near.client() as client, server.client() as other:
            thread_id = await new(client)
            waiting = asyncio.create_task(client.runs.wait(thread_id, "slow", input=said("0.7")))

            async def has_begun() -> bool:
                return bool(await other.runs.list(thread_id))

            await eventually(has_begun)
            await asyncio.sleep(0.2)
            line.cut()
            assert heard(await waiting) == ["0.7", "noted", "rested"]
            assert len(await other.runs.list(thread_id)) == 1


def _hurry(patch: pytest.MonkeyPatch) -> None:
    """The client's pauses before it comes back, shorter."""
    patch.setattr("langgraph_sdk._async.http._reconnect_delay", lambda attempt, **_: 0.1 * (attempt + 1))


@run
async def test_t12_a_run_is_joined_from_the_beginning_the_middle_and_after_its_end(server: Server) -> None:
    async with server.client() as client:
        thread_id = await new(client)
        made = await client.runs.create(
            thread_id,
            "walk",
            input={"steps": 12, "pause": 0.2},
            stream_mode=["custom", "values"],
            stream_resumable=True,
        )
        run_id = made["run_id"]
        whole, live = await asyncio.gather(
            parts(client.runs.join_stream(thread_id, run_id, last_event_id="-1")),
            parts(client.runs.join_stream(thread_id, run_id, stream_mode="custom")),
        )
        assert names(whole)[0] == "metadata"
        assert names(whole)[-1] == names(live)[-1] == "end"
        assert [p.data["step"] for p in whole if p.event == "custom"] == list(range(12))
        assert set(names(live)) <= {"metadata", "custom", "end"}
        # Once more, after it has ended.
        for said_of_all in ("-1", "-"):
            again = await parts(client.runs.join_stream(thread_id, run_id, last_event_id=said_of_all))
            assert [(p.event, p.data, p.id) for p in again] == [(p.event, p.data, p.id) for p in whole]
        middle = whole[7]
        rest = await parts(client.runs.join_stream(thread_id, run_id, last_event_id=middle.id))
        assert [(p.event, p.data) for p in rest] == [(p.event, p.data) for p in whole[8:]]
        each_way: list[StreamMode | list[StreamMode]] = ["custom", ["custom"], ["custom", "updates"]]
        for modes in each_way:
            some = await parts(
                client.runs.join_stream(thread_id, run_id, stream_mode=modes, last_event_id="-1")
            )
            assert set(names(some)) == {"metadata", "custom", "end"}
        after = await parts(client.runs.join_stream(thread_id, run_id, last_event_id=whole[-2].id))
        assert set(names(after)) <= {"end"}
        nothing = await parts(client.runs.join_stream(thread_id, run_id))
        assert set(names(nothing)) <= {"end"}


@run
async def test_t12_stream_modes_in_the_address_are_a_value_several_or_json(server: Server) -> None:
    async with server.client() as client, server.http() as http:
        thread_id = await new(client)
        told: list[Any] = []
        await parts(
            client.runs.stream(
                thread_id,
                "walk",
                input={"steps": 2},
                stream_mode=["custom", "values", "updates"],
                stream_resumable=True,
                on_run_created=told.append,
            )
        )
        path = f"/threads/{thread_id}/runs/{told[0]['run_id']}/stream"
        for query in (
            "stream_mode=custom&stream_mode=updates",
            "stream_mode=%5B%22custom%22,%22updates%22%5D",
        ):
            answer = await http.get(f"{path}?{query}", headers={"Last-Event-ID": "-1"})
            assert set(re.findall(r"event: (\S+)", answer.text)) == {"metadata", "custom", "updates", "end"}
        answer = await http.get(f"{path}?stream_mode=nothing")
        assert answer.status_code == 422


@run
async def test_t12_two_runs_of_a_thread_are_not_mixed(server: Server) -> None:
    async with server.client() as client:
        thread_id = await new(client)
        made = [
            await client.runs.create(
                thread_id,
                "walk",
                input={"steps": steps, "pause": 0.05},
                stream_mode="custom",
                stream_resumable=True,
            )
            for steps in (4, 7)
        ]
        told = await asyncio.gather(
            *(parts(client.runs.join_stream(thread_id, m["run_id"], last_event_id="-1")) for m in made)
        )
        assert [p.data["step"] for p in told[0] if p.event == "custom"] == [0, 1, 2, 3]
        assert [p.data["step"] for p in told[1] if p.event == "custom"] == [4, 5, 6]
        for stream, one in zip(told, made, strict=True):
            assert stream[0].data["run_id"] == stream[-1].data["run_id"] == one["run_id"]


@pytest.mark.parametrize(("then", "status"), [("cancel", "interrupted"), ("continue", "success")])
@run
async def test_t11_a_client_that_leaves_ends_the_run_or_not(server: Server, then: str, status: str) -> None:
    async with server.client() as client, server.http() as http:
        thread_id = await new(client)
        GATES.clear()
        body = {
            "assistant_id": "walk",
            "input": {"steps": 20, "gated": 3},
            "stream_mode": "custom",
            "on_disconnect": then,
        }
        async with http.stream("POST", f"/threads/{thread_id}/runs/stream", json=body) as answer:
            async for line in answer.aiter_lines():
                if line == "event: custom":
                    break
        if then == "continue":
            assert (await client.runs.list(thread_id))[0]["status"] == "running"
            GATES["walk"].set()

        async def is_over() -> bool:
            return (await client.runs.list(thread_id))[0]["status"] not in ("pending", "running")

        await eventually(is_over)
        (made,) = await client.runs.list(thread_id)
        assert made["status"] == status
        trail = (await state_values(client, thread_id))["trail"]
        if then == "cancel":
            assert len(trail) < 20

            async def is_idle() -> bool:
                return (await client.threads.get(thread_id))["status"] == "idle"

            # A run that is being cancelled counts as interrupted before it has ended.
            await eventually(is_idle)
        else:
            assert len(trail) == 20


@run
async def test_t11_a_client_that_leaves_a_joined_run_can_end_it(server: Server) -> None:
    async with server.client() as client, server.http() as http:
        thread_id = await new(client)
        made = await client.runs.create(
            thread_id, "walk", input={"steps": 200, "pause": 0.1}, stream_mode="custom"
        )
        path = f"/threads/{thread_id}/runs/{made['run_id']}/stream"
        for cancels in ("false", "true"):
            query = {"cancel_on_disconnect": cancels}
            async with http.stream("GET", path, params=query) as answer:
                async for line in answer.aiter_lines():
                    if line == "event: custom":
                        break
            if cancels == "false":
                await asyncio.sleep(0.5)
                assert (await client.runs.get(thread_id, made["run_id"]))["status"] == "running"

        async def is_over() -> bool:
            return (await client.runs.get(thread_id, made["run_id"]))["status"] == "interrupted"

        await eventually(is_over)
