"""A thread's stream: what all of its runs tell, to one client that stays.

Covers perdure.server.streaming.thread_events.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from langgraph_sdk.client import LangGraphClient
from langgraph_sdk.errors import NotFoundError
from langgraph_sdk.schema import StreamMode

from perdure.runtime.events import publisher
from tests.server.acceptance.saying import parts, said
from tests.server.acceptance.serving import run
from tests.server.gates import GATES
from tests.server.hosting import owners
from tests.server.listening import heard, lines_of, phase, place, until_ended

ALL: list[StreamMode] = ["values", "updates", "tasks", "custom", "debug"]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'threads.db'}"


async def until_ends(stream: AsyncIterator[Any], ends: int) -> list[Any]:
    told: list[Any] = []
    async for part in stream:
        told.append(part)
        ends -= part.event == "end"
        if not ends:
            return told
    raise AssertionError("the stream ended")


async def _listening(client: LangGraphClient, thread_id: str, ends: int) -> list[Any]:
    return await until_ends(await client.threads.join_stream(thread_id), ends)


@run
async def _every_run(url: str) -> None:
    async with place(url) as here, here.client() as client:
        thread_id = (await client.threads.create())["thread_id"]
        live = await here.begun(thread_id, _listening(client, thread_id, 3))
        asked: list[tuple[str, list[StreamMode]]] = [("chat", ["values", "updates"]), ("boom", ["values"])]
        for graph, modes in asked:
            created = await client.runs.create(thread_id, graph, input=said("hi"), stream_mode=modes)
            async for _ in client.runs.join_stream(thread_id, created["run_id"]):
                pass
        # What can be followed by those who asked for it alone is told to those who listen here.
        async for _ in client.runs.stream(thread_id, "chat", input=said("again"), stream_mode="values"):
            pass
        told = await live
        names = [part.event for part in told]
        assert [name for name in names if name in ("metadata", "error", "end")] == [
            *("metadata", "end"),
            *("metadata", "error", "end"),
            *("metadata", "end"),
        ]
        assert [part.data["status"] for part in told if part.event == "end"] == [
            "success",
            "error",
            "success",
        ]
        assert "updates" in names[: names.index("end")]
        kept = await until_ends(await client.threads.join_stream(thread_id, last_event_id="-"), 2)
        assert kept == told[: len(kept)]
        seen = kept[3]
        assert seen.id
        rest = await until_ends(await client.threads.join_stream(thread_id, last_event_id=seen.id), 2)
        assert rest == kept[4:]


def test_every_run_of_a_thread_is_told(url: str) -> None:
    _every_run(url)


@run
async def _modes(url: str) -> None:
    async with place(url) as here, here.client() as client, here.http() as http:
        thread_id = (await client.threads.create())["thread_id"]
        await client.runs.wait(thread_id, "chat", input=said("not kept"))
        created = await client.runs.create(
            thread_id, "chat", input=said("hi"), stream_mode=["values", "tasks", "custom"]
        )
        await client.runs.join(thread_id, created["run_id"])

        async def names(query: str) -> list[str]:
            found: list[str] = []
            headers = {"Last-Event-ID": "-"}
            asked = http.stream("GET", f"/threads/{thread_id}/stream?{query}", headers=headers)
            async with asked as answer, aclosing(lines_of(answer)) as lines:
                async for line in lines:
                    if line.startswith("event:"):
                        found.append(line.removeprefix("event:").strip())
                        if found[-1] == "end":
                            return found
            raise AssertionError("the stream ended")

        assert await names("stream_mode=lifecycle") == ["metadata", "end"]
        assert await names("stream_modes=lifecycle") == ["metadata", "end"]
        both = await names("stream_modes=lifecycle&stream_modes=state_update")
        assert set(both) == {"metadata", "values", "end"}
        assert set(await names("")) == {"metadata", "values", "tasks", "end"}
        assert (await http.get(f"/threads/{thread_id}/stream?stream_mode=values")).status_code == 422
        with pytest.raises(NotFoundError):
            await anext(await client.threads.join_stream("nowhere"))


def test_a_client_says_what_it_wants_under_either_name(url: str) -> None:
    _modes(url)


async def steps_of(client: LangGraphClient, thread_id: str) -> int:
    """How many steps of a walk are stored."""
    values: Any = (await client.threads.get_state(thread_id))["values"]
    return len(values.get("trail", ()))


@run
async def _too_much(url: str, held: pytest.MonkeyPatch) -> None:
    async with (
        place(url, gate=owners()) as here,
        here.client("alice") as alice,
        here.http("alice") as owner,
        here.http("bob") as stranger,
    ):
        thread_id = (await alice.threads.create())["thread_id"]
        told: dict[str, list[str]] = {"alice": [], "bob": []}

        async def listen(http: httpx.AsyncClient, to: list[str]) -> None:
            body = {"channels": ["values", "lifecycle"], "since": 0}
            path = f"/threads/{thread_id}/stream/events"
            # A stream that fails is broken off, so that clients come back.
            with suppress(httpx.TransportError):
                async with (
                    http.stream("POST", path, json=body) as answer,
                    aclosing(lines_of(answer)) as lines,
                ):
                    await taken(lines, to)

        async def taken(lines: AsyncIterator[str], to: list[str]) -> None:
            async for line in lines:
                is_data = bool(line) and not line.startswith(":")
                to += [line] if is_data else []

        # Nobody keeps what it tells, and it tells more than is held, to those who come in the middle of it.
        walk = {"steps": 30, "gated": 15, "pause": 0.05}
        walking = asyncio.create_task(
            parts(alice.runs.stream(thread_id, "walk", input=walk, stream_mode=ALL))
        )
        async with asyncio.timeout(60):
            while await steps_of(alice, thread_id) < 15:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        listening = [
            await here.begun(thread_id, listen(owner, told["alice"])),
            await here.begun(thread_id, listen(stranger, told["bob"])),
        ]
        GATES["walk"].set()
        # The stream of the run itself tells too much as well, and breaks off before the run has ended.
        await walking
        (walked,) = await alice.runs.list(thread_id)
        await alice.runs.join(thread_id, walked["run_id"])
        await asyncio.wait_for(listening[0], 60)
        assert any("faster than they are read" in line for line in told["alice"])
        # Whoever may not see the thread listens on, as on one that there is not.
        await asyncio.sleep(0.5)
        assert not listening[1].done()
        assert told["bob"] == []
        # Once it is seen, what comes then is told. On a busy machine that, too, might be more than is held.
        held.undo()
        await here.host.runtime.threads.change(thread_id, {"owner": "bob"})
        async with here.client("bob") as bob:
            await bob.runs.create(thread_id, "walk", input={"steps": 40}, stream_resumable=True)
            async with asyncio.timeout(60):
                while not any('"event":"completed"' in line for line in told["bob"]):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        assert sum('"event":"running"' in line for line in told["bob"]) == 1
        listening[1].cancel()


def test_a_stranger_does_not_learn_that_a_thread_tells_too_much(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    GATES.clear()
    monkeypatch.setattr(publisher, "_HELD_BYTES", 300)
    _too_much(url, monkeypatch)


@run
async def test_a_run_that_was_waited_for_is_heard_by_all_who_follow_its_thread(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'threads.db'}"
    async with place(url) as here, here.client() as client, here.http() as http:
        thread_id = (await client.threads.create())["thread_id"]
        live = await here.begun(thread_id, _listening(client, thread_id, 2))
        told_of = until_ended(heard(http, thread_id, channels=["values", "lifecycle"]), 2)
        events = await here.begun(thread_id, told_of)
        async with asyncio.timeout(60):
            await client.runs.wait(thread_id, "chat", input=said("hi"))
            # One that was begun without a server, and asked to tell nothing.
            await here.host.runtime.submit(thread_id, said("again"), graph="chat")
            told = await live
            assert [part.event for part in told if part.event in ("metadata", "end")] == [
                "metadata",
                "end",
            ] * 2
            assert told[-2].event == "values"
            phases = [phase(event) for event in await events if phase(event)]
        assert phases == ["running", "completed"] * 2
