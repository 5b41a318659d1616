"""Streams of runs, driven by LangGraph's own client: their events, order and form."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest
from langgraph_sdk.schema import StreamMode

from perdure.runtime import Runtime
from tests.server.acceptance.saying import heard, names, new, parts, said
from tests.server.acceptance.serving import Server, near, run

TOLD: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "values": ("chat", said("x"), ["values", "values"]),
    "updates": ("chat", said("x"), ["updates"]),
    "messages-tuple": ("chat", said("x"), ["messages"] * 3),
    "messages": ("chat", said("x"), ["messages/metadata", *["messages/partial"] * 3]),
    "custom": ("walk", {"steps": 2}, ["custom", "custom"]),
    "tasks": ("chat", said("x"), ["tasks", "tasks"]),
    "checkpoints": ("chat", said("x"), ["checkpoints"] * 3),
    "debug": ("chat", said("x"), ["debug"] * 5),
}
"""What runs of one node tell in each mode, between their metadata and their end."""


@pytest.mark.parametrize("mode", TOLD)
@run
async def test_t03_a_mode_tells_its_events_after_metadata_and_before_the_end(
    server: Server, mode: StreamMode
) -> None:
    graph, given, expected = TOLD[mode]
    async with server.client() as client:
        thread_id = await new(client)
        told = await parts(client.runs.stream(thread_id, graph, input=given, stream_mode=mode))
        assert names(told) == ["metadata", *expected, "end"]
        (made,) = await client.runs.list(thread_id)
        assert told[0].data == {"run_id": made["run_id"], "attempt": 1}
        assert told[-1].data == {"run_id": made["run_id"], "status": "success"}
        assert [part.id for part in told] == [None] * len(told)
        for part in told[1:-1]:
            _check(mode, part.event, part.data)


def _check(mode: str, event: str, data: Any) -> None:
    """What clients read of an event."""
    match event:
        case "values":
            assert heard(data)[0] == "x"
        case "updates":
            assert heard(data["talk"]) == ["echo x"]
        case "messages":
            message, metadata = data
            assert message["type"] == "AIMessageChunk"
            assert metadata["langgraph_node"] == "talk"
            assert metadata["langgraph_step"] == 1
        case "messages/metadata":
            (about,) = data.values()
            assert about["metadata"]["langgraph_node"] == "talk"
        case "messages/partial":
            (message,) = data
            assert message["type"] == "ai"
            assert "echo x".startswith(message["content"])
        case "custom":
            assert set(data) == {"step"}
        case "tasks":
            if "result" in data:
                assert set(data) == {"id", "name", "error", "result", "interrupts"}
            else:
                assert {"id", "name", "input", "triggers"} <= set(data)
        case "checkpoints":
            assert {"config", "metadata", "values", "next", "parent_config", "tasks"} <= set(data)
        case _:
            assert mode == event == "debug"
            assert set(data) == {"step", "timestamp", "type", "payload"}
            assert data["type"] in ("checkpoint", "task", "task_result")


@run
async def test_t03_a_task_refers_to_the_state_of_its_subgraph_in_both_forms(server: Server) -> None:
    async with server.client() as client:
        thread_id = await new(client)
        modes: list[Any] = ["checkpoints", "debug"]
        told = await parts(client.runs.stream(thread_id, "nested", input=said("x"), stream_mode=modes))
        seen = [part.data.get("payload", part.data) for part in told if part.event in modes]
        tasks = [task for payload in seen for task in payload.get("tasks", ())]
        assert all("state" in task for task in tasks)
        referring = [task for task in tasks if task["state"] is not None]
        assert len(referring) >= 2
        for task in referring:
            assert task["state"] == {"configurable": task["checkpoint"]}
            assert task["checkpoint"]["thread_id"] == thread_id
            assert task["checkpoint"]["checkpoint_ns"] == f"{task['name']}:{task['id']}"


@run
async def test_t03_langchains_events(server: Server) -> None:
    async with server.client() as client:
        thread_id = await new(client)
        told = await parts(client.runs.stream(thread_id, "chat", input=said("x"), stream_mode="events"))
        assert names(told) == ["metadata", *["events"] * (len(told) - 2), "end"]
        kinds = [part.data["event"] for part in told[1:-1]]
        assert kinds[0] == "on_chain_start"
        assert kinds[-1] == "on_chain_end"
        assert kinds.count("on_chat_model_stream") == 3
        assert {"on_chat_model_start", "on_chat_model_end"} <= set(kinds)


@run
async def test_t03_modes_together_come_in_the_order_of_the_graph(server: Server) -> None:
    modes: list[Any] = ["messages-tuple", "values", "updates", "custom"]
    async with server.client() as client:
        thread_id = await new(client)
        told = await parts(client.runs.stream(thread_id, "chat", input=said("x"), stream_mode=modes))
        assert names(told) == [
            "metadata", "values", "messages", "messages", "messages", "updates", "values", "end"
        ]  # fmt: skip
        assert heard(told[1].data) == ["x"]
        assert "".join(part.data[0]["content"] for part in told[2:5]) == "echo x"
        assert heard(told[-2].data) == ["x", "echo x"]


@near
@run
async def test_t03_a_run_that_is_over_before_it_is_followed_is_told_all_the_same(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit = Runtime.submit

    async def late(*args: Any, **given: Any) -> Any:
        ticket = await submit(*args, **given)
        await asyncio.sleep(0.4)
        return ticket

    async with server.client() as client:
        thread_id = await new(client)
        await client.runs.wait(thread_id, "chat", input=said("before"))
        monkeypatch.setattr(Runtime, "submit", late)
        told = await parts(client.runs.stream(thread_id, "chat", input=said("x"), stream_mode="updates"))
        assert names(told) == ["metadata", "updates", "end"]


@run
async def test_t03_values_are_what_is_told_when_nothing_is_asked_for(server: Server) -> None:
    async with server.http() as http:
        async with server.client() as client:
            thread_id = await new(client)
        answer = await http.post(
            f"/threads/{thread_id}/runs/stream", json={"assistant_id": "chat", "input": said("x")}
        )
        assert re.findall(r"event: (\S+)", answer.text) == ["metadata", "values", "values", "end"]


@run
async def test_t03_a_stream_is_framed_as_clients_read_it(server: Server) -> None:
    async with server.client() as client, server.http() as http:
        thread_id = await new(client)
        body = {"assistant_id": "chat", "input": said("two\nlines")}
        for is_resumable in (False, True):
            answer = await http.post(
                f"/threads/{thread_id}/runs/stream", json={**body, "stream_resumable": is_resumable}
            )
            assert answer.headers["Content-Type"] == "text/event-stream; charset=utf-8"
            assert answer.headers["Cache-Control"] == "no-store"
            assert answer.headers["X-Accel-Buffering"] == "no"
            assert "Content-Encoding" not in answer.headers
            path = answer.headers["Content-Location"]
            assert re.fullmatch(rf"/threads/{thread_id}/runs/[0-9a-f-]{{36}}", path)
            query = "?last_event_id=-1" if is_resumable else ""
            assert answer.headers["Location"] == f"{path}/stream{query}"
            frames = [frame.splitlines() for frame in re.split(r"(?:\r?\n){2}", answer.text) if frame]
            for frame in frames:
                fields = [line.split(": ", 1)[0] for line in frame]
                assert fields[:2] == ["event", "data"] or sorted(fields) == ["data", "event", "id"]
                json.loads(next(line for line in frame if line.startswith("data")).split(": ", 1)[1])
                if frame[0] != "event: end":
                    assert ("id" in fields) == is_resumable


@run
async def test_t05_a_client_that_was_cut_off_before_the_first_event_misses_nothing(server: Server) -> None:
    """It has seen no event's number to come back with."""
    async with server.client() as client, server.http() as http:
        thread_id = await new(client)
        body = {"assistant_id": "chat", "input": said("hello"), "stream_resumable": True}
        async with http.stream("POST", f"/threads/{thread_id}/runs/stream", json=body) as answer:
            address, run_id = answer.headers["Location"], answer.headers["Content-Location"].split("/")[-1]
        await client.runs.join(thread_id, run_id)
        again = await http.get(address)
        assert again.headers["Location"] == address
        everything = await http.get(address.partition("?")[0], headers={"Last-Event-ID": "-1"})
        assert again.content == everything.content
        assert b"echo hello" in again.content
        # Whoever has seen something says what, and that counts.
        last = re.findall(rb"id: (\d+)", again.content)[-2].decode()
        rest = await http.get(address, headers={"Last-Event-ID": last})
        assert rest.content in everything.content
        assert 0 < len(rest.content) < len(everything.content)


@run
async def test_t04_version_two_maps_the_namespaces_of_subgraphs(server: Server) -> None:
    async with server.client() as client:
        thread_id = await new(client)
        told = [
            part
            async for part in client.runs.stream(
                thread_id,
                "nested",
                input=said("x"),
                stream_mode=["values", "updates", "messages-tuple"],
                stream_subgraphs=True,
                version="v2",
            )
        ]
        assert told[0]["type"] == "metadata"
        below = [part for part in told if part["ns"]]
        assert {part["type"] for part in below} == {"values", "updates", "messages"}
        (namespace,) = {tuple(part["ns"]) for part in below}
        assert len(namespace) == 1
        assert namespace[0].startswith("inner:")
        assert told[-1]["type"] == "values"
        assert told[-1]["ns"] == []
        assert [asked["value"] for asked in told[-1]["interrupts"]] == ["deep?"]


@run
async def test_t04_subgraphs_are_told_by_their_names_or_not_at_all(server: Server) -> None:
    async with server.client() as client:
        thread_id = await new(client)
        modes: list[Any] = ["values", "updates"]
        told = await parts(client.runs.stream(thread_id, "deep", input=said("x"), stream_mode=modes))
        assert names(told) == ["metadata", "values", "updates", "values", "end"]
        told = await parts(
            client.runs.stream(thread_id, "deep", input=said("x"), stream_mode=modes, stream_subgraphs=True)
        )
        assert any(re.fullmatch(r"updates\|inner:[0-9a-f-]{36}", name) for name in names(told))
        assert {name.partition("|")[0] for name in names(told)} == {"metadata", "values", "updates", "end"}


@near
@run
async def test_q05_a_stream_ends_with_end_so_that_the_client_asks_no_more(server: Server) -> None:
    async with server.client() as client:
        asked: list[str] = []

        async def note(request: Any) -> None:
            asked.append(f"{request.method} {request.url.path}")

        client.http.client.event_hooks["request"].append(note)
        thread_id = await new(client)
        for graph in ("chat", "boom", "ask"):
            await parts(client.runs.stream(thread_id, graph, input=said("x")))
        assert asked == ["POST /threads", *[f"POST /threads/{thread_id}/runs/stream"] * 3]


@pytest.mark.slow
@near
@run
async def test_t03_silence_is_broken_by_heartbeats(server: Server) -> None:
    async with server.client() as client, server.http() as http:
        threads = [await new(client) for _ in range(2)]
        body = {"assistant_id": "slow", "input": said("5.5")}

        async def followed() -> None:
            beats, before = 0, ""
            async with http.stream("POST", f"/threads/{threads[0]}/runs/stream", json=body) as answer:
                async for line in answer.aiter_lines():
                    beats += line == ": heartbeat"
                    # JavaScript clients take a blank line after it for an event without a name.
                    assert line or before != ": heartbeat"
                    before = line
            assert beats

        async def waited() -> None:
            seen = b""
            async with http.stream("POST", f"/threads/{threads[1]}/runs/wait", json=body) as answer:
                assert answer.status_code == 200
                async for chunk in answer.aiter_bytes():
                    seen += chunk
            assert seen.startswith(b"\n")
            assert heard(json.loads(seen)) == ["5.5", "noted", "rested"]

        await asyncio.gather(followed(), waited())
