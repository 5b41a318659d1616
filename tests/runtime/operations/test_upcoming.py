"""What runs by itself, and when: crons, postponed messages, repeated attempts and waits."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from langgraph.graph import START, MessagesState, StateGraph

from perdure.database.base import handle_of
from perdure.engine.queue import crons, due_pages
from perdure.model.ops import Now
from perdure.model.program import Program
from perdure.model.records import Partition
from perdure.runtime import ask, sleep, wait_for
from perdure.runtime.operations import upcoming
from perdure.runtime.operations.upcoming import Upcoming, find_upcoming
from perdure.runtime.operations.walk_by_activity import ThreadWalk
from perdure.runtime.threads.index import Sees
from perdure.runtime.threads.rows import ThreadRow, load_row
from tests.runtime.graphs import HOUR_US, Storage, eventually_stored, go, settings, working

MINUTE_US = HOUR_US // 60


async def either(state: MessagesState) -> dict[str, Any]:
    text = state["messages"][-1].text
    if text == "fail":
        raise ConnectionError("gone")
    if text == "sleep":
        await sleep(60)
    if text == "signal":
        await wait_for("paid", within=120, default=None)
    if text == "ask":
        ask("sure?", within=180, default="no")
    if text == "ask for ever":
        ask("sure?")
    return {}


async def find(
    storage: Storage,
    now: int,
    hours: int = 1,
    limit: int = 100,
    *,
    tenant: str = "",
    sees: Sees | None = None,
    sees_crons: Sees | None = None,
    has_crons: bool = True,
) -> Upcoming:
    walk, until = ThreadWalk(handle_of(storage.database()), tenant, sees), now + hours * HOUR_US
    return await find_upcoming(walk, now, until, limit, sees_crons=sees_crons, has_crons=has_crons)


def see_none(metadata: Mapping[str, Any]) -> bool:
    return False


def store_crons(storage: Storage, now: int, tenant: str = "") -> None:
    handle = handle_of(storage.database())
    for name, at in (("soon", now + MINUTE_US // 2), ("late", now + 3 * HOUR_US), ("off", None)):
        body = {
            "graph_id": "agent",
            "thread_id": None,
            "user": {"identity": "ada"},
            "schedule": {"expression": "0 * * * *", "timezone": "Europe/Berlin", "end": None},
        }
        handle.run(crons.create(crons.place(tenant), name, crons.Due(body, at), now, 1))


def test_what_runs_is_found_with_its_time(storage: Storage) -> None:
    graph = StateGraph(MessagesState).add_node(either).add_edge(START, "either").compile()
    once = settings(attempts=3, backoff=600.0, max_backoff=600.0)
    now = int(storage.driver.perform(Now()))
    store_crons(storage, now)

    async def main() -> None:
        async with working(storage.database(), graph, settings=once) as runtime:
            config = {"configurable": {"user_id": "bob"}}
            await runtime.submit("later", {"messages": []}, config=config, delay=1800)
            await runtime.submit("later", {"messages": []}, delay=9 * 3600)
            await runtime.accept("gathers", "hello", debounce=1200.0, max_wait=1200.0)
            await runtime.accept("busy", "hello")
            for text in ("sleep", "signal", "ask", "ask for ever"):
                await runtime.wait(await runtime.accept(text, text), 60)
            await runtime.accept("fails", "fail")

            async def waits() -> bool:
                found, _ = await find(storage, now)
                return any(entry["kind"] == "retry" for entry in found)

            await eventually_stored(waits)
        found, is_whole = await find(storage, now)
        assert is_whole
        assert [(entry["kind"], entry["thread_id"]) for entry in found] == [
            ("cron", None),
            ("sleep", "sleep"),
            ("signal", "signal"),
            ("question", "ask"),
            ("retry", "fails"),
            ("message", "gathers"),
            ("message", "later"),
        ]
        assert [entry["at"] for entry in found] == sorted(entry["at"] for entry in found)
        assert (found[0]["id"], found[0]["user"]) == ("soon", "ada")
        assert found[0]["what"] == "0 * * * * Europe/Berlin"
        assert (found[-1]["user"], found[-1]["graph"]) == ("bob", "agent")
        assert found[2]["what"] == "paid"
        assert [entry["is_listed"] for entry in found] == [False, *[True] * 5, False]
        assert all(entry["at"] > now for entry in found)
        longer, _ = await find(storage, now, 24)
        assert [entry["kind"] for entry in longer] == [*(entry["kind"] for entry in found), "cron", "message"]
        # A viewer of some threads, or of some crons, sees these alone.
        for sees, sees_crons, has_crons, kinds in (
            (None, None, False, {entry["kind"] for entry in found[1:]}),
            (None, see_none, True, {entry["kind"] for entry in found[1:]}),
            (see_none, None, True, {"cron"}),
            (see_none, None, False, set()),
        ):
            seen, _ = await find(storage, now, sees=sees, sees_crons=sees_crons, has_crons=has_crons)
            assert {entry["kind"] for entry in seen} == kinds
        assert await find(storage, now, tenant="other") == ([], True)
        for limit in range(1, len(longer) + 2):
            assert await find(storage, now, 24, limit) == (longer[:limit], limit >= len(longer))

    go(main())


def test_a_cron_of_other_contents_is_listed_with_what_it_has(near: Storage) -> None:
    now = int(near.driver.perform(Now()))
    store_crons(near, now)
    handle = handle_of(near.database())
    handle.run(crons.create(crons.place(""), "odd", crons.Due({"thread_id": None}, now + 1), now, 1))
    found, _ = asyncio.run(find(near, now))
    assert [(entry["id"], entry["graph"], entry["what"]) for entry in found] == [
        ("odd", None, ""),
        ("soon", "agent", "0 * * * * Europe/Berlin"),
    ]


def test_no_more_queues_are_read_than_are_listed(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = StateGraph(MessagesState).add_node(either).add_edge(START, "either").compile()
    now = int(storage.driver.perform(Now()))
    threads = [f"t{number}" for number in range(6)]
    read: list[str] = []

    def note_and_load(partition: Partition) -> Program[ThreadRow | None]:
        read.append(partition.thread)
        return load_row(partition)

    monkeypatch.setattr(upcoming, "load_row", note_and_load)
    monkeypatch.setattr(upcoming, "_TOGETHER", 2)

    async def main() -> None:
        async with working(storage.database(), graph) as runtime:
            for number, thread in enumerate(threads):
                await runtime.submit(thread, {"messages": []}, delay=600 + 60 * number)
            found, is_whole = await find(storage, now, limit=1)
        assert ([entry["thread_id"] for entry in found], is_whole) == (threads[:1], False)
        assert sorted(read) == threads[:2]
        monkeypatch.setattr(upcoming, "_QUEUES_MAX", 3)
        found, is_whole = await find(storage, now)
        assert ([entry["thread_id"] for entry in found], is_whole) == (threads[:3], False)

    go(main())


def test_work_that_is_due_already_takes_no_place(near: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upcoming, "_QUEUES_MAX", 1)
    graph = StateGraph(MessagesState).add_node(either).add_edge(START, "either").compile()

    async def main() -> None:
        async with working(near.database(), graph, works=False) as runtime:
            for number in range(3):
                await runtime.accept(f"due{number}", "hello")
            await runtime.accept("gathers", "hello", debounce=1200.0, max_wait=1200.0)
        now = int(near.driver.perform(Now()))
        found, is_whole = await find(near, now)
        assert ([(entry["kind"], entry["thread_id"]) for entry in found], is_whole) == (
            [("message", "gathers")],
            True,
        )
        monkeypatch.setattr(upcoming, "_PAGES_MAX", 1)
        monkeypatch.setattr(due_pages, "PAGE", 2)
        assert await find(near, now) == ([], False)

    go(main())
