"""Threads whose time is over go, or all of them but their latest state does; others stay.

Covers perdure.engine.retention.thread_expiry, perdure.model.retention_policy.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Literal

import pytest

from perdure.database.opening import connect
from perdure.errors import NotFound
from perdure.model.records import OUTBOX
from perdure.model.retention_policy import ThreadTtl
from perdure.retention.sweeper import RetentionOptions
from perdure.runtime import Runtime, Ticket
from perdure.runtime.observers import Observers
from perdure.runtime.retention_loop import RetentionLoop
from perdure.runtime.threads.threads import THERE
from tests.runtime.graphs import HOUR_US, Storage, Talk, eventually, go, stored, working

FULL = os.environ.get("PERDURE_CHAOS") == "full"


async def expired(runtime: Runtime) -> int:
    """Sweep as a server does, and return how many threads were removed."""
    rules = replace(runtime.database.retention, usual_ttl=runtime._context.thread_ttl)
    options = RetentionOptions(all_tenants=True, share=1.0, rules=rules)
    swept = await RetentionLoop(runtime.database, Observers(()), every=1.0, options=options).sweep()
    return -1 if swept is None else swept.expired


@pytest.fixture(params=["memory", "sqlite"])
def close(request: pytest.FixtureRequest) -> Iterator[Storage]:
    with stored(request.param) as storage:
        yield storage


def test_what_is_over_is_swept_and_nothing_else(storage: Storage, talk: Talk) -> None:
    async def main() -> None:
        database, line = storage.open()
        async with working(database, talk.graph) as runtime:
            threads = runtime.threads
            await threads.create("stays", {})
            await threads.create("goes", {}, {"ttl": 30})
            await runtime.for_tenant("other").threads.create("goes, too", {}, {"ttl": 30})
            await threads.create("shrinks", {}, {"ttl": 30, "strategy": "keep_latest"})
            await threads.create("lives", {}, {"ttl": 90})
            for name in ("goes", "shrinks"):
                await runtime.wait(await runtime.submit(name, {"messages": []}, precondition=THERE), 30)
            before = len(storage.rows("shrinks"))
            assert await expired(runtime) == 0
        again, line = storage.open()
        line.ahead_us = HOUR_US
        async with working(again, talk.graph) as runtime:
            threads = runtime.threads
            assert await expired(runtime) == 2
            assert {row.thread_id async for row in threads.index.search()} == {"stays", "lives", "shrinks"}
            assert [row async for row in runtime.for_tenant("other").threads.index.search()] == []
            assert storage.rows("goes") == []
            assert 0 < len(storage.rows("shrinks")) < before
            left = storage.rows("shrinks")
            assert await expired(runtime) == 0
            assert storage.rows("shrinks") == left, "its latest state stays"

    go(main())


def test_a_thread_that_is_spoken_to_lives_on_and_one_at_work_is_not_swept(
    memory: Storage, talk: Talk
) -> None:
    async def main() -> None:
        database, line = memory.open()
        async with working(database, talk.graph, thread_ttl=ThreadTtl(default_ttl=30)) as runtime:
            threads = runtime.threads
            for name in ("spoken to", "at work"):
                await threads.create(name, {})
            held = await runtime.submit("at work", {"messages": [("user", "hold on")]}, precondition=THERE)
            await eventually(lambda: talk.under_way)
            for passed_us in (HOUR_US // 3, HOUR_US // 3 * 2):
                line.ahead_us = passed_us
                runtime._context.clock._asked_at = None
                if passed_us < HOUR_US // 2:
                    await threads.touch("spoken to")
            assert await expired(runtime) == 0
            talk.gate.set()
            await runtime.wait(held, 30)
            assert await expired(runtime) == 1
            assert [row.thread_id async for row in threads.index.search()] == ["spoken to"]

    go(main())


def test_what_waits_for_its_time_or_is_to_be_sent_is_not_swept(close: Storage, talk: Talk) -> None:
    """A thread whose only run is postponed, or whose reply waits for a sender, is not at rest."""

    async def main() -> None:
        database, line = close.open()
        async with working(database, talk.graph, thread_ttl=ThreadTtl(default_ttl=30)) as runtime:
            threads = runtime.threads
            for name in ("later", "unsent", "idle"):
                await threads.create(name, {})
            late = await runtime.submit("later", {"messages": []}, precondition=THERE, delay=7200.0)
            await runtime.wait(await runtime.accept("unsent", "hello", channel="post"), 30)
            line.ahead_us = HOUR_US
            runtime._context.clock._asked_at = None
            assert await expired(runtime) == 1
            assert {row.thread_id async for row in threads.index.search()} == {"later", "unsent"}
            assert (await runtime.look(late)).message.id == late.id
            assert len(close.rows("unsent", OUTBOX)) == 1
            await runtime.cancel("later", late.id)
            assert await expired(runtime) == 1

    go(main())


@pytest.mark.parametrize("how", ["server", "library", "postponed"])
def test_a_run_that_is_accepted_at_any_moment_of_a_sweep_is_kept(
    close: Storage, talk: Talk, how: Literal["server", "library", "postponed"]
) -> None:
    async def accept(front: Runtime, thread: str) -> Ticket | None:
        try:
            if how == "library":
                return await front.accept(thread, "hello")
            after = 60.0 if how == "postponed" else 0.0
            return await front.submit(thread, {"messages": []}, precondition=THERE, delay=after)
        except NotFound:
            return None

    async def swept(moment: int) -> tuple[bool, bool]:
        """Whether the sweep came to that moment, and whether a run was accepted in it."""
        thread = f"t{moment}"
        database, _ = close.open()
        sweeping, line = close.open()
        tickets: list[Ticket | None] = []
        moments = itertools.count()
        async with (
            working(database, talk.graph, works=False) as front,
            working(sweeping, talk.graph, works=False) as back,
        ):
            await front.threads.create(thread, {}, {"ttl": 1})
            line.ahead_us = HOUR_US
            back._context.clock._asked_at = None

            async def between(effect: object) -> None:
                if next(moments) == moment:
                    tickets.append(await accept(front, thread))

            line.before = between
            await expired(back)
            line.before = None
            for ticket in tickets:
                if ticket is not None:
                    assert (await front.look(ticket)).message.id == ticket.id, f"lost at effect {moment}"
                    await front.cancel(thread, ticket.id)
            await front.delete(thread)
        return bool(tickets), any(ticket is not None for ticket in tickets)

    async def main() -> None:
        accepted = moment = 0
        while True:
            was_reached, was_accepted = await swept(moment)
            if not was_reached:
                break
            moment += 1
            accepted += was_accepted
        assert moment > 5
        assert accepted > 3

    go(main())


def test_of_many_runs_accepted_during_sweeps_none_is_gone(storage: Storage, talk: Talk) -> None:
    """A real race: threads whose time is over, swept while runs are accepted for them."""
    most = 200 if FULL else 40

    async def main() -> None:
        database, _ = storage.open()
        sweeping, line = storage.open()
        async with (
            working(database, talk.graph, works=False) as front,
            working(sweeping, talk.graph, works=False) as back,
        ):
            threads = front.threads
            for n in range(most):
                await threads.create(f"t{n}", {}, {"ttl": 1})
            line.ahead_us = HOUR_US
            back._context.clock._asked_at = None

            async def accept(n: int) -> Ticket | None:
                await asyncio.sleep(0.0004 * n)
                try:
                    return await front.submit(f"t{n}", {"messages": []}, precondition=THERE)
                except NotFound:
                    return None

            sweep = asyncio.create_task(expired(back))
            tickets = await asyncio.gather(*(accept(n) for n in range(most)))
            swept = await sweep
            kept = [ticket for ticket in tickets if ticket is not None]
            for ticket in kept:
                assert (await front.look(ticket)).message.id == ticket.id
            assert swept + len(kept) >= most
            assert len(kept) == sum(bool(storage.rows(f"t{n}")) for n in range(most))

    go(main())


def test_items_whose_time_is_over_are_swept_for_every_tenant(tmp_path: Path, talk: Talk) -> None:
    async def main() -> None:
        async with (
            connect(f"sqlite:///{tmp_path}/store.db", migrate=True) as database,
            Runtime(database, {"agent": talk.graph}, observers=(), works=False) as runtime,
        ):
            for tenant in ("", "other"):
                store = runtime.for_tenant(tenant).store()
                await store.aput(("notes",), "short", {"n": 1}, ttl=0.0001)
                await store.aput(("notes",), "long", {"n": 2}, ttl=60)
            sessions = database.history(tenant="third", ttl=timedelta(microseconds=1))
            await sessions.commit(await sessions.load("s"), [{"role": "user", "content": "hi"}])
            await asyncio.sleep(0.05)
            assert await expired(runtime) == 0
            assert await sessions.sweep() == 0, "nothing was left to be swept"
            for tenant in ("", "other"):
                assert await runtime.for_tenant(tenant).store().asweep_ttl() == 0, (
                    "nothing was left to be swept"
                )
                assert [i.key for i in await runtime.for_tenant(tenant).store().asearch(("notes",))] == [
                    "long"
                ]

    go(main())


def test_a_thread_of_the_library_is_not_swept_because_its_hosts_clock_was_set_back(
    close: Storage, talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its time is that of its checkpoint's id, which the host's clock gives."""

    async def main() -> None:
        database = close.database()
        real = time.time_ns
        async with working(database, talk.graph, thread_ttl=ThreadTtl(default_ttl=30)) as runtime:
            monkeypatch.setattr(time, "time_ns", lambda: real() - HOUR_US * 1000)
            # In a process that was started after that.
            monkeypatch.setattr("langgraph.checkpoint.base.id._last_v6_timestamp", None)
            graph = talk.graph.copy(update={"checkpointer": database.checkpointer()})
            await graph.ainvoke({"messages": [("user", "hello")]}, {"configurable": {"thread_id": "ada"}})
            assert await expired(runtime) == 0
            # Once the clock is right again its time is over.
            monkeypatch.setattr(time, "time_ns", real)
            assert await expired(runtime) == 1

    go(main())
