"""Threads whose time is over go, or all of them but their latest state does; others stay."""

from __future__ import annotations

import asyncio
from pathlib import Path

from perdure.database import connect
from perdure.model.records import Partition
from perdure.runtime import Runtime
from perdure.server.catalogue import THERE, Catalogue
from perdure.server.config import ThreadTtl
from perdure.server.hosting.sweeper import Sweeper
from tests.runtime.graphs import HOUR_US, Storage, Talk, eventually, go, working


def test_what_is_over_is_swept_and_nothing_else(storage: Storage, talk: Talk) -> None:
    async def main() -> None:
        database, line = storage.open()
        async with working(database, talk.graph) as runtime:
            catalogue = Catalogue(runtime)
            await catalogue.create(Partition("", "stays"), {})
            await catalogue.create(Partition("", "goes"), {}, {"ttl": 30})
            await catalogue.create(Partition("other", "goes, too"), {}, {"ttl": 30})
            await catalogue.create(Partition("", "shrinks"), {}, {"ttl": 30, "strategy": "keep_latest"})
            await catalogue.create(Partition("", "lives"), {}, {"ttl": 90})
            for name in ("goes", "shrinks"):
                await runtime.wait(await runtime.submit(name, {"messages": []}, within=THERE), 30)
            before = len(storage.rows("shrinks"))
            assert await Sweeper(catalogue, runtime).sweep() == 0
        again, line = storage.open()
        line.ahead_us = HOUR_US
        async with working(again, talk.graph) as runtime:
            catalogue = Catalogue(runtime)
            sweeper = Sweeper(catalogue, runtime)
            assert await sweeper.sweep() == 3
            assert {row.thread_id async for row in catalogue.search("")} == {"stays", "lives", "shrinks"}
            assert [row async for row in catalogue.search("other")] == []
            assert storage.rows("goes") == []
            assert 0 < len(storage.rows("shrinks")) < before
            assert await sweeper.sweep() == 0, "what shrank has time again"

    go(main())


def test_a_thread_that_is_spoken_to_lives_on_and_one_at_work_is_not_swept(
    memory: Storage, talk: Talk
) -> None:
    async def main() -> None:
        database, line = memory.open()
        async with working(database, talk.graph) as runtime:
            catalogue = Catalogue(runtime, ThreadTtl(default_ttl=30))
            for name in ("spoken to", "at work"):
                await catalogue.create(Partition("", name), {})
            line.ahead_us = HOUR_US
            runtime._clock._asked_at = None
            await catalogue.touched(Partition("", "spoken to"))
            held = await runtime.submit("at work", {"messages": [("user", "hold on")]}, within=THERE)
            await eventually(lambda: talk.under_way)
            assert await Sweeper(catalogue, runtime).sweep() == 0
            talk.gate.set()
            await runtime.wait(held, 30)
            assert await Sweeper(catalogue, runtime).sweep() == 1
            assert [row.thread_id async for row in catalogue.search("")] == ["spoken to"]

    go(main())


def test_items_whose_time_is_over_are_swept_for_every_tenant(tmp_path: Path, talk: Talk) -> None:
    async def main() -> None:
        async with (
            connect(f"sqlite:///{tmp_path}/store.db", migrate=True) as database,
            Runtime(database, {"agent": talk.graph}, observers=(), works=False) as runtime,
        ):
            for tenant in ("", "other"):
                store = runtime.store(tenant=tenant)
                await store.aput(("notes",), "short", {"n": 1}, ttl=0.0001)
                await store.aput(("notes",), "long", {"n": 2}, ttl=60)
            await asyncio.sleep(0.05)
            assert await Sweeper(Catalogue(runtime), runtime).sweep() == 0
            for tenant in ("", "other"):
                assert await runtime.store(tenant=tenant).asweep_ttl() == 0, "nothing was left to be swept"
                assert [i.key for i in await runtime.store(tenant=tenant).asearch(("notes",))] == ["long"]

    go(main())
