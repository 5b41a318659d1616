"""Counts of the runs that end: stored every few seconds beside the threads, and read without reading threads.

Covers perdure.runtime.operations.growth, perdure.runtime.size_samples.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt

from perdure.database.base import handle_of
from perdure.engine.retention.old_counts import DAY_US, DAYS, HOUR_US, HOURS, MINUTES, SIZES, partition_of
from perdure.errors import Unavailable
from perdure.model.ops import Commit, Fetch, Now, Put, Range
from perdure.model.program import Effect
from perdure.model.records import DOCUMENT, SERVER
from perdure.runtime import Agent, Price, Runtime, activity, sleep
from perdure.runtime.activity import (
    BOUNDS_S,
    LENGTHS,
    find_latency_bucket,
)
from perdure.runtime.clock import DatabaseClock
from perdure.runtime.operations import growth, overview
from perdure.runtime.tenant import TenantRuntime
from perdure.runtime.threads.order import ThreadListing
from perdure.storage.port import Driver
from tests.inspector.test_scale import Counting
from tests.runtime.graphs import Storage, Talk, eventually_stored, go, settings, working

ONCE = settings(attempts=1, on_failure="keep")


def answering() -> Any:
    model = GenericFakeChatModel(messages=iter(AIMessage(f"answer {n}") for n in range(9)))

    async def call(state: MessagesState) -> dict[str, Any]:
        if state["messages"][-1].text == "boom":
            raise ValueError("boom")
        return {"messages": [await model.ainvoke(state["messages"])]}

    return StateGraph(MessagesState).add_node("call", call).add_edge(START, "call").compile()


async def said(runtime: Runtime | TenantRuntime, thread: str, text: str, user: str | None = None) -> None:
    config = None if user is None else {"configurable": {"user_id": user}}
    await runtime.wait(await runtime.accept(thread, text, config=config), 30)


def counts_of(storage: Storage, tenant: str = "") -> list[Any]:
    partition = partition_of(tenant)
    assert partition.space == SERVER
    return [
        record
        for record in storage.driver.perform(Fetch(partition, (Range(DOCUMENT),)))[0]
        if record.key[0] in (MINUTES, HOURS, DAYS)
    ]


def test_runs_are_counted_by_graph_user_and_error(storage: Storage) -> None:
    async def main() -> None:
        async with working(storage.database(), answering(), settings=ONCE) as runtime:
            for text, user in (("hello", "ada"), ("boom", "ada"), ("more", "bob"), ("last", None)):
                await said(runtime, f"t-{text}", text, user)
        found = await overview.read(handle_of(storage.database()), "")
        for part in ("hour", "day"):
            summed = found[part]
            assert (summed["runs"], summed["failed"]) == (4, 1)
            (graph,) = summed["graphs"]
            assert (graph["graph"], graph["runs"], graph["failed"]) == ("agent", 4, 1)
            assert graph["end"]["p95"] in BOUNDS_S
            assert 0 < graph["first"]["p50"] <= graph["end"]["p95"]
            assert {(each["user"], each["runs"], each["failed"]) for each in summed["users"]} == {
                ("ada", 2, 1),
                ("bob", 1, 0),
            }
            assert summed["errors"] == [{"kind": "ValueError", "runs": 1}]
        for slots in ("minutes", "hours"):
            assert sum(slot["runs"] for slot in found[slots]) == 4
            assert sum(slot["runs"] for slot in found[slots][-3:]) == 4
        assert (len(found["minutes"]), len(found["hours"])) == (60, 24)
        listed = handle_of(storage.database()).has_listing
        assert found["threads"]["failed"] == (1 if listed else None)
        assert found["is_whole"]

    go(main())


def spending() -> Any:
    usage = {"input_tokens": 3, "output_tokens": 5, "total_tokens": 8}
    model = GenericFakeChatModel(
        messages=iter(AIMessage("answer", usage_metadata=usage) for _ in range(9)), disable_streaming=True
    )

    async def call(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    return StateGraph(MessagesState).add_node("call", call).add_edge(START, "call").compile()


@pytest.mark.parametrize("cost", [None, 0.0, 13.0])
def test_tokens_and_cost_are_summed_by_graph_user_model_and_day(near: Storage, cost: float | None) -> None:
    price = None if cost is None else Price(input=cost and 1_000_000, output=cost and 2_000_000)
    prices = {} if price is None else {"GenericFakeChatModel": price}

    async def main() -> None:
        async with working(near.database(), Agent(spending(), prices=prices), settings=ONCE) as runtime:
            for thread, user in (("a", "ada"), ("b", "ada"), ("c", "bob")):
                await said(runtime, thread, "hello", user)
        found = await overview.read(handle_of(near.database()), "")

        def used(calls: int) -> dict[str, Any]:
            spent = None if cost is None else cost * calls
            return {"calls": calls, "input_tokens": 3 * calls, "output_tokens": 5 * calls, "cost": spent}

        for part in ("hour", "day", "month"):
            summed = found[part]
            assert used(3).items() <= summed.items()
            assert used(3).items() <= summed["graphs"][0].items()
            assert summed["models"] == [{"model": "GenericFakeChatModel", **used(3)}]
            by_user = {each["user"]: each for each in summed["users"]}
            assert set(by_user) == (set() if part == "month" else {"ada", "bob"})
            assert all(
                used(n).items() <= by_user[name].items() for name, n in (("ada", 2), ("bob", 1)) if by_user
            )
        for slots in ("minutes", "hours", "days"):
            assert sum(slot["input_tokens"] for slot in found[slots]) == 9
            assert {slot["cost"] for slot in found[slots] if not slot["calls"]} == {None}

    go(main())


def test_users_come_by_their_tokens(near: Storage) -> None:
    async def main() -> None:
        async with working(near.database(), {"spend": spending(), "talk": Talk().graph}) as runtime:
            for thread, user, graph in (("a", "ada", "talk"), ("b", "ada", "talk"), ("c", "bob", "spend")):
                config = {"configurable": {"user_id": user}}
                await runtime.wait(await runtime.accept(thread, "hello", graph=graph, config=config), 30)
        found = await overview.read(handle_of(near.database()), "")
        assert [(each["user"], each["runs"]) for each in found["hour"]["users"]] == [("bob", 1), ("ada", 2)]

    go(main())


def test_two_processes_add_up_and_tenants_are_apart(near: Storage) -> None:
    async def main() -> None:
        for tenant, thread in (("", "a"), ("", "b"), ("acme", "c")):
            database = near.database(tenant=tenant)
            async with working(database, answering(), settings=ONCE) as runtime:
                await said(runtime, thread, "hello")
        handle = handle_of(near.database())
        assert (await overview.read(handle, ""))["hour"]["runs"] == 2
        assert (await overview.read(handle, "acme"))["hour"]["runs"] == 1
        assert (await overview.read(handle, "none"))["hour"]["runs"] == 0

    go(main())


def test_what_waits_is_counted_with_its_age(near: Storage) -> None:
    async def main() -> None:
        database = near.database()
        async with working(database, answering(), works=False) as front:
            for thread in "abc":
                await front.accept(thread, "hello")
            await front.submit("d", {"messages": []}, delay=3600)

        async def is_due() -> bool:
            # A process's estimate of the time may be a little ahead.
            queue = (await overview.read(handle_of(database), ""))["queue"]
            return (queue["due"], queue["scheduled"], queue["under_way"]) == (3, 1, 0)

        await eventually_stored(is_due)
        found = await overview.read(handle_of(database), "")
        assert 0 <= found["now"] - found["queue"]["oldest"] < 60_000_000

    go(main())


def test_a_run_costs_no_request_of_its_own(near: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activity, "_FLUSH_S", 0.2)

    async def main() -> None:
        database, line = near.open()
        stored: list[int] = []

        async def before(effect: Effect[Any]) -> None:
            if not isinstance(effect, Commit) or effect.partition != partition_of(""):
                return
            # The size of a thread, which is sampled once a day, is stored after the counts.
            if puts := [op for op in effect.ops if isinstance(op, Put) and op.key[0] in LENGTHS]:
                stored.append(len(puts))

        line.before = before
        async with working(database, answering(), settings=ONCE) as runtime:
            await asyncio.gather(*(said(runtime, f"t{n}", "boom") for n in range(20)))

            async def is_stored() -> bool:
                found = await overview.read(handle_of(database), "")
                return bool(found["hour"]["runs"] == 20)

            await eventually_stored(is_stored)
            assert 1 <= len(stored) <= 10
            before_idle = len(stored)
            await asyncio.sleep(0.5)
            assert len(stored) == before_idle, "nothing ended, and something was stored"
        assert {len(LENGTHS)} == set(stored[:1])

    go(main())


def test_the_counts_of_many_tenants_are_stored_a_few_at_a_time(
    near: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activity, "_FLUSH_S", 0.2)
    monkeypatch.setattr(activity, "_TENANTS_MAX", 2)
    flushes: list[list[str]] = []

    async def main() -> None:
        database, line = near.open()
        flush = activity.ActivityCounts.flush

        async def note(self: Any, most: int | None = None) -> bool:
            flushes.append([])
            return await flush(self, most)

        monkeypatch.setattr(activity.ActivityCounts, "flush", note)

        async def before(effect: Effect[Any]) -> None:
            if isinstance(effect, Commit) and effect.partition == partition_of(effect.partition.tenant):
                flushes[-1].append(effect.partition.tenant)

        line.before = before
        tenants = [f"tenant{n}" for n in range(7)]
        async with working(database, answering(), settings=ONCE, all_tenants=True) as runtime:
            await asyncio.gather(*(said(runtime.for_tenant(tenant), "a", "boom") for tenant in tenants))

            async def is_stored() -> bool:
                found = [await overview.read(handle_of(database), tenant) for tenant in tenants]
                return [each["hour"]["runs"] for each in found] == [1] * 7

            await eventually_stored(is_stored)
        assert max(map(len, flushes[:-1])) == 2
        assert {tenant for stored in flushes for tenant in stored} == set(tenants)

    go(main())


def test_an_outage_is_reported_and_counts_stay(near: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activity, "_FLUSH_S", 0.05)
    events: list[tuple[str, dict[str, Any]]] = []

    class Watch:
        def event(self, name: str, fields: dict[str, Any]) -> None:
            events.append((name, fields))

        def span(self, name: str, fields: dict[str, Any]) -> Any:
            from contextlib import nullcontext

            return nullcontext()

    async def main() -> None:
        database, line = near.open()
        is_away = True

        async def before(effect: Effect[Any]) -> None:
            if is_away and isinstance(effect, Commit) and effect.partition == partition_of(""):
                raise Unavailable("away")

        line.before = before
        async with working(database, answering(), settings=ONCE, observers=[Watch()]) as runtime:
            await said(runtime, "a", "hello")

            async def is_reported() -> bool:
                return any(name == "activity.not_stored" for name, _ in events)

            await eventually_stored(is_reported)
            is_away = False
            await said(runtime, "b", "hello")
        assert (await overview.read(handle_of(database), ""))["hour"]["runs"] == 2

    go(main())


def test_old_counts_are_removed_and_many_names_are_joined(memory: Storage, talk: Talk) -> None:
    handle = handle_of(memory.database())
    now = int(memory.driver.perform(Now()))
    ago = {MINUTES: 3 * HOUR_US, HOURS: 27 * HOUR_US}
    old = tuple(
        Put(DOCUMENT, (name, f"{n}:old"), {"updated_at": now - at - n}, b"{}", version=1)
        for name, at in ago.items()
        for n in range(40)
    )
    memory.driver.perform(Commit(partition_of(""), old))

    async def main() -> None:
        async with working(memory.database(), answering(), settings=ONCE) as runtime:
            await asyncio.gather(*(said(runtime, f"t{n}", "boom", f"user {n:02}") for n in range(60)))
        found = await overview.read(handle, "")
        assert found["hour"]["runs"] == 60
        assert sum(each["runs"] for each in found["hour"]["users"]) <= 60
        (others,) = [each for each in found["hour"]["users"] if each["user"] is None]
        assert others["runs"] == 10

    go(main())
    assert all(not record.key[1].endswith("old") for record in counts_of(memory))


def test_counts_stay_where_they_are_if_the_clock_is_set(
    near: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(DatabaseClock.__init__.__kwdefaults__, "refresh_s", -1.0)  # type: ignore[arg-type]

    async def main() -> None:
        database, line = near.open()
        async with working(database, answering(), settings=ONCE) as runtime:
            await said(runtime, "a", "boom", "ada")
            line.ahead_us = 30 * HOUR_US
            await said(runtime, "b", "boom", "ada")
            line.ahead_us = 0
            await said(runtime, "c", "boom", "ada")
        found = await overview.read(handle_of(near.database()), "")
        for sums, slots in (("hour", "minutes"), ("day", "hours")):
            assert found[sums]["runs"] == sum(slot["runs"] for slot in found[slots]) == 2

    go(main())


def test_reading_does_not_grow_with_threads(near: Storage) -> None:
    def requests(driver: Driver) -> int:
        counting = Counting(driver)
        handle = handle_of(near.database())
        handle.driver = counting
        asyncio.run(overview.read(handle, ""))
        return counting.requests

    async def main(threads: int) -> None:
        async with working(near.database(), answering(), settings=ONCE) as runtime:
            await asyncio.gather(*(said(runtime, f"{threads}-{n}", "boom") for n in range(threads)))

    go(main(3))
    few = requests(near.driver)
    go(main(60))
    assert requests(near.driver) == few <= 7


def test_latencies_have_classes() -> None:
    assert [find_latency_bucket(round(seconds * 1e6)) for seconds in (0, 0.05, 0.06, 3600, 9999)] == [
        0,
        0,
        1,
        len(BOUNDS_S) - 1,
        len(BOUNDS_S),
    ]
    assert overview._estimate_latencies([]) is None
    assert overview._estimate_latencies([{str(len(BOUNDS_S)): 3}]) == {"p50": None, "p95": None}
    assert overview._estimate_latencies([{"0": 50}, {"5": 50}]) == {"p50": 0.05, "p95": 0.75}


def test_threads_that_sleep_are_told_apart_from_those_that_wait_for_an_answer(storage: Storage) -> None:
    async def either(state: MessagesState) -> dict[str, Any]:
        if state["messages"][-1].text == "ask":
            interrupt("?")
        await sleep(3600)
        return {}

    async def main() -> None:
        graph = StateGraph(MessagesState).add_node(either).add_edge(START, "either").compile()
        async with working(storage.database(), graph, settings=ONCE) as runtime:
            for thread, text in (("a", "ask"), ("b", "sleep"), ("c", "sleep")):
                await said(runtime, thread, text)
        found = await overview.read(handle_of(storage.database()), "")
        is_listed = handle_of(storage.database()).has_listing
        told = {"failed": 0, "interrupted": 3, "asleep": 2} if is_listed else dict.fromkeys(found["threads"])
        assert found["threads"] == told

    go(main())


def samples_of(storage: Storage, tenant: str = "") -> dict[str, Any]:
    (found,) = storage.driver.perform(Fetch(partition_of(tenant), (Range(DOCUMENT, (SIZES,)),)))
    return {record.key[1]: json.loads(record.body) for record in found}


def test_every_backend_has_a_sample_of_its_size_a_day(storage: Storage) -> None:
    handle = handle_of(storage.database())
    size = asyncio.run(handle.acount_bytes())
    knows = {name for name, known in (("bytes", size), ("threads", handle.has_listing or None)) if known}
    today = int(storage.driver.perform(Now())) // DAY_US * DAY_US
    old = tuple(
        Put(
            DOCUMENT,
            (SIZES, str(today - days * DAY_US)),
            {"updated_at": today - days * DAY_US},
            body,
            version=1,
        )
        for days, body in ((1, b'{"bytes":5,"threads":7}'), (91, b"{}"), (93, b"{}"))
    )
    storage.driver.perform(Commit(partition_of(""), old))

    async def main() -> None:
        for thread in ("a", "b"):
            async with working(storage.database(), answering(), settings=ONCE) as runtime:
                await said(runtime, thread, "hello")
        found = await growth.read(handle_of(storage.database()), "")
        sizes = [(each["bytes"], each["threads"]) for each in found["samples"]]
        assert sizes[:2] == [(None, None), (5, 7)]
        assert {name for name, value in found["samples"][-1].items() if value is not None} == {"at", *knows}
        if knows:
            # The second process left the sample of the first.
            assert len(sizes) == 4
            assert "threads" not in knows or (sizes[2][1], sizes[3][1]) == (1, 2)

    go(main())
    stored = samples_of(storage)
    assert str(today - 93 * DAY_US) not in stored
    assert stored.get(str(today), {}).keys() == knows or not knows


def test_a_sample_costs_a_process_one_look_a_day(near: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activity, "_FLUSH_S", 0.02)
    counted = 0

    async def count(*asked: Any) -> int:
        nonlocal counted
        counted += 1
        return 3

    monkeypatch.setattr(ThreadListing, "count_threads", count)

    async def main() -> None:
        database, line = near.open()
        async with working(database, answering(), settings=ONCE) as runtime:
            for thread in "abc":
                await said(runtime, thread, "hello")
                await runtime._worker.runner.activity.flush()  # pyright: ignore[reportPrivateUsage]
            assert counted == 1
            line.ahead_us = DAY_US
            await said(runtime, "d", "hello")

    go(main())
    assert counted <= 2
    assert {each["threads"] for each in samples_of(near).values()} == {3}
