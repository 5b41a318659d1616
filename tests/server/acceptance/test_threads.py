"""Threads, driven by LangGraph's own client.

Covers perdure.server.routes.threads.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from urllib.parse import quote

import pytest
from langgraph_sdk.errors import (
    ConflictError,
    NotFoundError,
    UnprocessableEntityError,
)

from tests.server.acceptance.saying import detail, heard, is_time, names, new, parts, row, rows, said
from tests.server.acceptance.serving import Server, eventually, near, run

THREAD = {
    "thread_id",
    "created_at",
    "updated_at",
    "state_updated_at",
    "metadata",
    "status",
    "config",
    "values",
    "interrupts",
    "error",
}


@run
async def test_t01_a_thread_is_created_read_patched_and_deleted(server: Server) -> None:
    async with server.client() as client:
        made = row(await client.threads.create(metadata={"who": "ada"}, graph_id="chat"))
        assert set(made) == THREAD
        assert made["status"] == "idle"
        assert made["values"] is None
        assert made["interrupts"] == {}
        assert made["metadata"] == {"who": "ada", "graph_id": "chat"}
        assert all(is_time(made[name]) for name in ("created_at", "updated_at", "state_updated_at"))
        thread_id = made["thread_id"]
        assert await client.threads.get(thread_id) == made
        patched = await client.threads.update(thread_id, metadata={"mood": "calm"})
        assert patched["metadata"] == {"who": "ada", "graph_id": "chat", "mood": "calm"}
        assert patched["created_at"] == made["created_at"]
        assert patched["updated_at"] > made["updated_at"]
        # For mypy, what returns None has no result.
        update: Callable[..., Awaitable[Any]] = client.threads.update
        assert await update(thread_id, metadata={"mood": "glad"}, return_minimal=True) is None
        assert row(await client.threads.get(thread_id))["metadata"]["mood"] == "glad"
        await client.threads.delete(thread_id)
        for ask in (client.threads.get, client.threads.get_state, client.threads.get_history):
            with pytest.raises(NotFoundError, match=thread_id):
                await ask(thread_id)
        with pytest.raises(NotFoundError):
            await client.threads.delete(thread_id)
        with pytest.raises(NotFoundError):
            await client.threads.update(thread_id, metadata={})


@run
async def test_t01_a_second_thread_of_an_id_is_refused_or_is_the_first(server: Server) -> None:
    thread_id = str(uuid.uuid4())
    async with server.client() as client:
        made = await client.threads.create(thread_id=thread_id, metadata={"n": 1})
        assert made["thread_id"] == thread_id
        with pytest.raises(ConflictError, match="exists"):
            await client.threads.create(thread_id=thread_id, metadata={"n": 2})
        with pytest.raises(ConflictError):
            await client.threads.create(thread_id=thread_id, if_exists="raise")
        again = await client.threads.create(thread_id=thread_id, metadata={"n": 2}, if_exists="do_nothing")
        assert again == made


@run
async def test_t01_threads_are_found_by_metadata_values_status_and_id(server: Server) -> None:
    mark = str(uuid.uuid4())
    async with server.client() as client:
        made = [
            (await client.threads.create(metadata={"mark": mark, "n": n, "deep": {"n": n, "x": 0}}))[
                "thread_id"
            ]
            for n in range(4)
        ]
        await client.runs.wait(made[1], "chat", input=said("hello"))
        await client.runs.wait(made[2], "ask", input=said("hello"))

        async def found(**asked: Any) -> list[str]:
            return [t["thread_id"] for t in await client.threads.search(metadata={"mark": mark}, **asked)]

        assert await found() == [made[2], made[1], made[3], made[0]]
        assert await found(limit=2, offset=1) == [made[1], made[3]]
        assert await found(sort_by="created_at", sort_order="asc") == made
        assert await found(status="interrupted") == [made[2]]
        assert await found(ids=[made[3], made[0], str(uuid.uuid4())]) in (
            [made[3], made[0]],
            [made[0], made[3]],
        )
        texts = {"messages": [{"content": "echo hello"}]}
        assert await found(values=texts) == [made[1]]
        deep = await client.threads.search(metadata={"mark": mark, "deep": {"n": 3}})
        assert [t["thread_id"] for t in deep] == [made[3]]
        assert await client.threads.count(metadata={"mark": mark}) == 4
        assert await client.threads.count(metadata={"mark": mark}, status="idle") == 3
        shown = await client.threads.search(
            metadata={"mark": mark},
            status="interrupted",
            select=["thread_id", "status"],
            extract={"last": "values.messages[-1].content", "none": "values.nothing[3]"},
        )
        assert rows(shown) == [
            {
                "thread_id": made[2],
                "status": "interrupted",
                "extracted": {"last": "hello", "none": None},
            }
        ]


@run
async def test_t01_a_page_of_threads_says_how_many_there_are_and_where_the_next_begins(
    server: Server,
) -> None:
    mark = str(uuid.uuid4())
    async with server.client() as client, server.http() as http:
        for _ in range(5):
            await client.threads.create(metadata={"mark": mark})
        asked: dict[str, Any] = {"metadata": {"mark": mark}, "limit": 2, "unknown": [1]}
        first = await http.post("/threads/search", json=asked)
        assert len(first.json()) == 2
        assert first.headers["X-Pagination-Next"] == "2"
        assert int(first.headers["X-Pagination-Total"]) > 2
        last = await http.post("/threads/search", json={**asked, "offset": 4})
        assert len(last.json()) == 1
        assert "X-Pagination-Next" not in last.headers
        assert last.headers["X-Pagination-Total"] == "5"
        for limit in (0, 1001):
            refused = await http.post("/threads/search", json={"limit": limit})
            assert refused.status_code == 422
            detail(refused)


@run
async def test_t01_the_first_run_writes_whose_thread_it_is(server: Server) -> None:
    async with server.client() as client:
        thread_id = await new(client)
        await client.runs.wait(thread_id, "chat", input=said("hello"))
        thread = row(await client.threads.get(thread_id))
        assert thread["metadata"]["graph_id"] == "chat"
        assistant = str(uuid.uuid5(uuid.UUID("6ba7b821-9dad-11d1-80b4-00c04fd430c8"), "chat"))
        assert thread["metadata"]["assistant_id"] == assistant
        for asked in ({"graph_id": "chat"}, {"assistant_id": assistant}):
            found = await client.threads.search(metadata=asked, ids=[thread_id])
            assert [t["thread_id"] for t in found] == [thread_id]
        assert heard(thread["values"]) == ["hello", "echo hello"]


@run
async def test_t01_threads_are_copied_and_pruned(server: Server) -> None:
    async with server.client() as client:
        mark = {"mark": str(uuid.uuid4())}
        thread_id = (await client.threads.create(metadata=mark))["thread_id"]
        for text in ("one", "two"):
            await client.runs.wait(thread_id, "chat", input=said(text))
        await client.threads.copy(thread_id)
        found = {t["thread_id"] for t in await client.threads.search(metadata=mark)}
        (copy_id,) = found - {thread_id}
        before = rows(await client.threads.get_history(thread_id, limit=50))
        after = rows(await client.threads.get_history(copy_id, limit=50))
        assert [s["checkpoint_id"] for s in after] == [s["checkpoint_id"] for s in before]
        assert {s["checkpoint"]["thread_id"] for s in after} == {copy_id}
        assert (await client.threads.get(copy_id))["status"] == "idle"
        await client.runs.wait(copy_id, "chat", input=said("apart"))
        assert len(await client.threads.get_history(thread_id, limit=50)) == len(before)
        kept = await client.threads.prune([copy_id], strategy="keep_latest")
        assert kept == {"pruned_count": 1}
        left = await client.threads.get_history(copy_id)
        assert len(left) == 1
        assert heard(left[0]["values"])[-1] == "echo apart"
        assert await client.threads.prune([copy_id, str(uuid.uuid4())]) == {"pruned_count": 1}
        with pytest.raises(NotFoundError):
            await client.threads.get(copy_id)
        assert await client.threads.prune([]) == {"pruned_count": 0}
        with pytest.raises(ConflictError):
            await client.threads.copy(copy_id)


@run
async def test_t01_a_thread_can_begin_with_supersteps_and_have_a_time_to_live(server: Server) -> None:
    async with server.client() as client:
        replayed = {"messages": [{"role": "ai", "content": "replayed"}]}
        steps: list[dict[str, Sequence[dict[str, Any]]]] = [
            {"updates": [{"values": said("past"), "as_node": "__start__"}]},
            {"updates": [{"values": replayed, "as_node": "talk"}]},
        ]
        made = await client.threads.create(graph_id="chat", supersteps=steps, ttl=30)
        thread_id = made["thread_id"]
        state = await client.threads.get_state(thread_id)
        assert heard(state["values"]) == ["past", "replayed"]
        assert state["next"] == []
        await client.runs.wait(thread_id, "chat", input=said("now"))
        assert heard((await client.threads.get_state(thread_id))["values"])[2:] == ["now", "echo now"]
        assert "ttl" not in await client.threads.get(thread_id)
        ttl = row(await client.threads.get(thread_id, include=["ttl"]))["ttl"]
        assert (ttl["strategy"], ttl["ttl_minutes"]) == ("delete", 30)
        assert is_time(ttl["expires_at"])
        with pytest.raises(UnprocessableEntityError):
            await client.threads.create(supersteps=steps)


def quoted(thread_id: str) -> str:
    """As a part of an address; what is a way through folders is none then."""
    plain = quote(thread_id, safe="")
    return plain.replace(".", "%2E") if plain in (".", "..") else plain


AWKWARD = ["wa:+4917…/x", "..", ".", "a b%2Fc?d#e", "telegram:123", "ü/😀/%", "x" * 255]


@pytest.mark.slow
@pytest.mark.parametrize("thread_id", AWKWARD, ids=range(len(AWKWARD)))
@run
async def test_t24_a_thread_id_may_have_any_character_on_every_route(server: Server, thread_id: str) -> None:
    async with server.client() as client, server.http() as http:
        assert (await client.threads.create(thread_id=thread_id))["thread_id"] == thread_id
        assert (await client.threads.get(thread_id))["thread_id"] == thread_id
        await client.threads.update(thread_id, metadata={"x": 1})
        found = await client.threads.search(ids=[thread_id])
        assert [t["thread_id"] for t in found] == [thread_id]
        created: list[Any] = []
        told = await parts(
            client.runs.stream(
                thread_id, "chat", input=said("one"), on_run_created=created.append, stream_resumable=True
            )
        )
        assert names(told)[-1] == "end"
        run_id = created[0]["run_id"]
        # The client reads the address as it comes.
        assert created[0]["thread_id"] == quoted(thread_id)
        assert heard(await client.runs.wait(thread_id, "chat", input=said("two")))[-1] == "echo two"
        assert {r["thread_id"] for r in await client.runs.list(thread_id)} == {thread_id}
        assert (await client.runs.get(thread_id, run_id))["run_id"] == run_id
        again = await parts(client.runs.join_stream(thread_id, run_id, last_event_id="-1"))
        assert names(again) == names(told)
        state: Any = await client.threads.get_state(thread_id)
        assert state["checkpoint"]["thread_id"] == thread_id
        assert await client.threads.get_state(thread_id, state["checkpoint"]) == state
        assert await client.threads.get_state(thread_id, checkpoint_id=state["checkpoint_id"]) == state
        assert len(await client.threads.get_history(thread_id)) == 6
        await client.threads.update_state(thread_id, said("edit"))
        slow = await client.runs.create(thread_id, "slow", input=said("30"))
        await client.runs.cancel(thread_id, slow["run_id"], wait=True)
        await client.runs.join(thread_id, slow["run_id"])
        await client.runs.delete(thread_id, run_id)
        # The addresses in the headers lead back here.
        path = f"/threads/{quoted(thread_id)}"
        answer = await http.post(f"{path}/runs/wait", json={"assistant_id": "chat", "input": said("three")})
        assert (await http.get(answer.headers["Location"])).json() == answer.json()
        assert (await http.get(answer.headers["Content-Location"])).json()["status"] == "success"
        await client.threads.copy(thread_id)
        await client.threads.delete(thread_id)
        with pytest.raises(NotFoundError):
            await client.threads.get(thread_id)


@near
@run
async def test_q13_every_refusal_is_one_text(server: Server) -> None:
    async with server.client() as client, server.http() as http:
        thread_id = await new(client)
        unknown = uuid.uuid4()
        asked: list[tuple[int, str, str, Any]] = [
            (422, "POST", "/threads", {"metadata": 7}),
            (422, "POST", "/threads", {"thread_id": "x" * 256}),
            (422, "POST", "/threads", {"if_exists": "perhaps"}),
            (422, "POST", f"/threads/{thread_id}/runs", {"input": {}}),
            (422, "POST", f"/threads/{thread_id}/runs", {"assistant_id": "nobody"}),
            (404, "POST", f"/threads/{thread_id}/runs", {"assistant_id": str(unknown)}),
            (404, "POST", f"/threads/{unknown}/runs", {"assistant_id": "chat"}),
            (404, "POST", f"/threads/{unknown}/runs/wait", {"assistant_id": "chat"}),
            (404, "POST", f"/threads/{unknown}/runs/stream", {"assistant_id": "chat"}),
            (422, "POST", "/runs/stream", {"assistant_id": "chat", "stream_mode": ["values", "tools"]}),
            (422, "POST", "/runs/stream", {"assistant_id": "chat", "stream_mode": "lifecycle"}),
            (422, "POST", "/runs/wait", {"assistant_id": "chat", "multitask_strategy": "hope"}),
            (400, "POST", "/runs/wait", {"assistant_id": "chat", "command": {"resume": 1}}),
            (
                400,
                "POST",
                "/runs/wait",
                {"assistant_id": "chat", "context": {"a": 1}, "config": {"configurable": {"b": 1}}},
            ),
            (404, "GET", f"/threads/{unknown}", None),
            (404, "GET", f"/threads/{unknown}/runs", None),
            (404, "GET", f"/threads/{unknown}/state", None),
            (404, "POST", f"/threads/{unknown}/history", {}),
            (404, "GET", f"/threads/{thread_id}/runs/{unknown}", None),
            (404, "GET", f"/threads/{thread_id}/runs/{unknown}/join", None),
            (404, "POST", f"/threads/{thread_id}/runs/{unknown}/cancel", None),
            (404, "DELETE", f"/threads/{thread_id}/runs/{unknown}", None),
            (422, "GET", f"/threads/{thread_id}/runs?limit=many", None),
            (422, "POST", "/runs/cancel", {}),
            (404, "GET", "/no/such/route", None),
            (405, "PUT", f"/threads/{thread_id}", None),
        ]
        for status, method, path, body in asked:
            answer = await http.request(method, path, json=body)
            assert answer.status_code == status, (method, path, body, answer.text)
            detail(answer)
            assert answer.headers["X-Request-Id"]
        assert (
            await http.post("/threads", content=b"{", headers={"Content-Type": "application/json"})
        ).status_code == 422
        assert (
            detail(await http.post(f"/threads/{unknown}/runs", json={"assistant_id": "chat"}))
            == "Thread or assistant not found."
        )
        assert await client.runs.list(thread_id) == []


@run
async def test_q15_ids_that_are_no_uuids_are_taken_and_a_run_can_make_the_thread(server: Server) -> None:
    thread_id = f"customer:{uuid.uuid4()}"
    async with server.client() as client:
        with pytest.raises(NotFoundError):
            await client.runs.create(thread_id, "chat", input=said("x"))
        with pytest.raises(NotFoundError):
            await client.threads.get(thread_id)
        made = await client.runs.create(thread_id, "chat", input=said("hello"), if_not_exists="create")
        assert made["thread_id"] == thread_id

        async def is_idle() -> bool:
            return (await client.threads.get(thread_id))["status"] == "idle"

        await eventually(is_idle)
        thread = row(await client.threads.get(thread_id))
        assert heard(thread["values"]) == ["hello", "echo hello"]
        assert thread["metadata"]["graph_id"] == "chat"
