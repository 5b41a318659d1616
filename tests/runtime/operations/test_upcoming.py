"""What runs by itself, and when: crons, postponed messages, repeated attempts and waits."""

from __future__ import annotations

import asyncio
from typing import Any

from langgraph.graph import START, MessagesState, StateGraph

from perdure.database.base import handle_of
from perdure.engine.queue import crons
from perdure.model.ops import Now
from perdure.runtime import ask, sleep, wait_for
from perdure.runtime.operations.upcoming import find_upcoming
from perdure.runtime.operations.walk_by_activity import ThreadWalk
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
    handle = handle_of(storage.database())

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
                found, _ = await find_upcoming(ThreadWalk(handle, ""), now, now + HOUR_US)
                return any(entry["kind"] == "retry" for entry in found)

            await eventually_stored(waits)
        found, is_whole = await find_upcoming(ThreadWalk(handle, ""), now, now + HOUR_US)
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
        assert found[0]["repeats"] == "0 * * * * Europe/Berlin"
        assert (found[-1]["user"], found[-1]["graph"]) == ("bob", "agent")
        assert all(entry["at"] > now for entry in found)
        longer, _ = await find_upcoming(ThreadWalk(handle, ""), now, now + 24 * HOUR_US)
        assert [entry["kind"] for entry in longer] == [*(entry["kind"] for entry in found), "cron", "message"]
        # A viewer of some threads sees these alone.
        seen, _ = await find_upcoming(ThreadWalk(handle, "", lambda _: False), now, now + HOUR_US)
        assert seen == []
        assert await find_upcoming(ThreadWalk(handle, "other"), now, now + HOUR_US) == ([], True)

    go(main())


def test_a_cron_of_other_contents_is_listed_with_what_it_has(near: Storage) -> None:
    now = int(near.driver.perform(Now()))
    store_crons(near, now)
    handle = handle_of(near.database())
    handle.run(crons.create(crons.place(""), "odd", crons.Due({"thread_id": None}, now + 1), now, 1))
    found, _ = asyncio.run(find_upcoming(ThreadWalk(handle, ""), now, now + HOUR_US))
    assert [(entry["id"], entry["graph"], entry["repeats"]) for entry in found] == [
        ("odd", None, ""),
        ("soon", "agent", "0 * * * * Europe/Berlin"),
    ]
