"""Many threads that wait, for days, through crashes and jumps of the clock; and what they cost meanwhile.

`make waits` runs it at its full size.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import time
import tracemalloc
from collections import Counter
from functools import partial
from typing import Any

import pytest

from perdure.model.ops import Commit, Put
from perdure.model.records import EVENT, INBOX, KINDS, LANE, Partition
from perdure.model.runs.messages import DONE, Message
from perdure.model.runs.waits import BY_WAIT
from perdure.runtime import Runtime, ask, sleep, wait_for
from tests.runtime.graphs import (
    HOUR_US,
    Heard,
    Storage,
    advance,
    eventually,
    settings,
    stored,
    values,
    vanish,
)
from tests.runtime.nodes.test_waiting import HOUR, Noted, chain, naps

FULL = os.environ.get("PERDURE_WAITS") == "full"
THREADS = 1000 if FULL else 60
SLEEPING = 50_000 if FULL else 2000

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


def is_idle(runtime: Runtime) -> bool:
    return not runtime._worker.dispatch._serving


async def asks_for_a_day(state: Noted) -> dict[str, Any]:
    return {"notes": [ask("pay?", within=24 * HOUR, default="no", remind=[6 * HOUR, 18 * HOUR])]}


async def sleeps_for_a_day(state: Noted) -> dict[str, Any]:
    await sleep(24 * HOUR)
    return {"notes": ["slept"]}


async def waits_for_a_day(state: Noted) -> dict[str, Any]:
    return {"notes": [await wait_for("paid", within=24 * HOUR, default="unpaid")]}


@pytest.mark.parametrize("backend", ["memory", "sqlite"])
def test_each_deadline_reminder_and_wake_up_of_days_comes_once(backend: str) -> None:
    graph, drawn = chain(asks_for_a_day, sleeps_for_a_day, waits_for_a_day), random.Random(7)
    names = [f"t{n}" for n in range(THREADS)]

    async def is_done(runtime: Runtime, thread: str) -> bool:
        return bool((runs := await runtime.runs(thread, limit=1)) and runs[0].state == DONE)

    async def main(storage: Storage) -> None:
        ahead = 0
        signalled = set(names[::3])
        for life in range(60):
            database, line = storage.open()
            runtime = Runtime(
                database, graph, settings=settings(poll=0.05, attempts=100, keep_events=1e9), observers=[]
            )
            advance(runtime, ahead)
            await runtime.__aenter__()
            if life == 0:
                for thread in names:
                    await runtime.submit(thread, {})
                for thread in signalled:
                    await runtime.signal(thread, "paid", "paid", key=thread)
                await eventually(partial(is_idle, runtime))
            elif life < 40:
                line.die_at(drawn.randrange(1, 2 * THREADS), drawn.choice(["before", "after"]))
            # The clock goes on by hours, and is sometimes set back.
            step = HOUR_US * drawn.choice([2, 5, 9, -1])
            ahead += step
            advance(runtime, step)
            await asyncio.sleep(0.3)
            still = 0
            while not line.is_dead and runtime._worker.dispatch._serving and still < 200:
                await asyncio.sleep(0.05)
                still += 1
            vanish(runtime, line)
            if life % 5 == 4:
                other = storage.database()
                looking = Runtime(other, graph, settings=settings(), works=False)
                done = [await is_done(looking, thread) for thread in names]
                if all(done):
                    break
        else:
            states = [[run.state for run in await looking.runs(thread)] for thread in names]
            pytest.fail(f"some threads never came to their end: {Counter(map(str, states))}")
        last = storage.database()
        for thread in names:
            end = "paid" if thread in signalled else "unpaid"
            assert (await values(last, graph, thread))["notes"] == ["no", "slept", end], thread
            given = [m for m in map(Message.read, storage.rows(thread, INBOX)) if BY_WAIT in m.options]
            assert len(given) == 3, thread
            told = [row.body for row in storage.rows(thread, EVENT) if b"\treminder\t" in row.body]
            assert 1 <= len(told) <= 2, thread
            assert all(row.key[0] != "waits" for row in storage.rows(thread, LANE)), thread

    with stored(backend) as storage:
        asyncio.run(main(storage))


def test_threads_that_sleep_cost_no_processor_and_no_memory_of_a_worker() -> None:
    with stored("sqlite") as storage:
        asyncio.run(_prepare(storage))
        rows = [row for kind in KINDS for row in storage.rows("t0", kind)]
        puts = tuple(Put(row.kind, row.key, row.fields, row.body, version=row.version) for row in rows)
        without = asyncio.run(_idle(storage))
        for n in range(1, SLEEPING):
            storage.driver.perform(Commit(Partition("", f"t{n}"), puts))
        with_all = asyncio.run(_idle(storage))
        print(f"{SLEEPING} sleeping threads: {with_all}, one: {without}")
        assert with_all["requests"] <= without["requests"] * 2 + 10
        assert with_all["kib"] <= without["kib"] + 256
        assert with_all["processor"] <= without["processor"] * 3 + 0.2


async def _prepare(storage: Storage) -> None:
    async with Runtime(storage.database(), chain(naps), settings=settings()) as runtime:
        await runtime.wait(await runtime.submit("t0", {}))
        await eventually(lambda: not runtime._worker.dispatch._serving)


async def _idle(storage: Storage) -> dict[str, float]:
    """What a worker uses that looks at the database for a while, in which nothing is due."""
    database, line = storage.open()
    heard = Heard()
    async with Runtime(database, chain(naps), settings=settings(poll=0.2), observers=[heard]) as runtime:
        await asyncio.sleep(0.5)
        gc.collect()
        tracemalloc.start()
        before, used, began = line.count, time.process_time(), tracemalloc.get_traced_memory()[0]
        await asyncio.sleep(4)
        used = time.process_time() - used
        kib = (tracemalloc.get_traced_memory()[0] - began) / 1024
        tracemalloc.stop()
        assert not runtime._worker.dispatch._timers
        assert Counter(name for name, _ in heard.events)["run.claimed"] == 0
        return {"processor": used, "kib": kib, "requests": line.count - before}
