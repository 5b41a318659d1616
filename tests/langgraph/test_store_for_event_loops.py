"""The removal of expired items, awaited and blocking, beside the stock stores of either kind."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from langgraph.store.sqlite import AsyncSqliteStore, SqliteStore

import perdure
from tests.backends import BACKENDS, EMPTY

SOON = 0.0002
"""Minutes."""


@asynccontextmanager
async def stock(path: Path) -> AsyncIterator[Any]:
    async with AsyncSqliteStore.from_conn_string(str(path), ttl={"default_ttl": 60}) as store:
        await store.setup()
        yield store


@asynccontextmanager
async def ours(path: Path) -> AsyncIterator[Any]:
    async with perdure.connect(f"sqlite:///{path}", migrate=True) as db:
        yield db.store(ttl={"default_ttl": 60})


@contextmanager
def stock_blocking(path: Path) -> Iterator[Any]:
    with SqliteStore.from_conn_string(str(path), ttl={"default_ttl": 60}) as store:
        store.setup()
        yield store


@contextmanager
def ours_blocking(path: Path) -> Iterator[Any]:
    with perdure.connect_sync(f"sqlite:///{path}", migrate=True) as db:
        yield db.store(ttl={"default_ttl": 60})


@pytest.mark.parametrize("opened", [stock, ours])
def test_an_asynchronous_store_s_sweeper_is_awaited(opened: Callable[[Path], Any], tmp_path: Path) -> None:
    async def main() -> None:
        async with asyncio.timeout(60), opened(tmp_path / "items.db") as store:
            assert await store.stop_ttl_sweeper() is True
            await store.aput(("a",), "old", {}, ttl=SOON)
            await store.aput(("a",), "new", {})
            await asyncio.sleep(60 * SOON + 1.1)
            assert await store.sweep_ttl() == 1
            assert await store.sweep_ttl() == 0
            first = await store.start_ttl_sweeper(sweep_interval_minutes=SOON)
            assert isinstance(first, asyncio.Task)
            assert not first.done()
            assert await store.stop_ttl_sweeper(timeout=30) is True
            assert await first is None
            cancelled = await store.start_ttl_sweeper()
            cancelled.cancel()
            await asyncio.wait([cancelled])
            assert await store.stop_ttl_sweeper(30.0) is True

    asyncio.run(main())


@pytest.mark.parametrize("opened", [stock_blocking, ours_blocking])
@pytest.mark.parametrize("in_a_loop", [True, False])
def test_a_blocking_store_s_sweeper_is_not(
    opened: Callable[[Path], Any], in_a_loop: bool, tmp_path: Path
) -> None:
    def work() -> None:
        with opened(tmp_path / "items.db") as store:
            assert store.stop_ttl_sweeper() is True
            assert store.sweep_ttl() == 0
            ended = store.start_ttl_sweeper(sweep_interval_minutes=1)
            assert isinstance(ended, Future)
            assert not ended.done()
            assert store.stop_ttl_sweeper(timeout=30) is True
            assert ended.result(30) is None

    async def main() -> None:
        work()

    asyncio.run(main()) if in_a_loop else work()


@pytest.mark.parametrize("on", list(BACKENDS))
def test_the_sweeper_of_an_event_loop_removes_what_expired(on: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        with EMPTY[on]() as url:
            async with asyncio.timeout(60), perdure.connect(url, migrate=True) as db:
                config: Any = {"default_ttl": SOON, "sweep_interval_minutes": SOON}
                store = db.store(ttl=config)
                sweeps = asyncio.Queue[int]()
                loop, sweep = asyncio.get_running_loop(), store._sweep

                def counted() -> int:
                    removed = sweep()
                    loop.call_soon_threadsafe(sweeps.put_nowait, removed)
                    return removed

                monkeypatch.setattr(store, "_sweep", counted)
                await store.aput(("a",), "k", {})
                task = await store.start_ttl_sweeper()
                again = await store.start_ttl_sweeper()
                await task
                removed = 0
                # DynamoDB removes expired items itself, so there the sweeper finds none.
                while not removed:
                    removed = await sweeps.get() + (on == "dynamodb")
                assert not again.done()
            await again

    asyncio.run(main())


def test_a_sweeper_whose_future_is_cancelled_ends() -> None:
    with perdure.connect_sync("memory://") as db:
        store = db.store()
        store.start_ttl_sweeper(1).cancel()
        sweeper = store._sweeper
        assert sweeper is not None
        sweeper._thread.join(30)
        assert not sweeper._thread.is_alive()
        assert store.stop_ttl_sweeper(30) is True


@pytest.mark.filterwarnings("error")
def test_a_sweeper_that_nobody_stops_ends_with_its_event_loop(caplog: pytest.LogCaptureFixture) -> None:
    kept: list[Any] = []

    async def main() -> None:
        async with perdure.connect("memory://") as db:
            store = db.store()
            await store.start_ttl_sweeper(SOON)
            kept.append(store._sweeper)

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    (sweeper,) = kept
    sweeper._thread.join(30)
    assert not sweeper._thread.is_alive()
    assert caplog.records == []


def test_both_stores_have_the_same_methods_with_the_same_arguments() -> None:
    for name in ("sweep_ttl", "start_ttl_sweeper", "stop_ttl_sweeper"):
        awaited, blocking = (
            getattr(kind, name) for kind in (perdure.AsyncPerdureStore, perdure.PerdureStore)
        )
        assert inspect.iscoroutinefunction(awaited)
        assert not inspect.iscoroutinefunction(blocking)
        assert inspect.signature(awaited).parameters == inspect.signature(blocking).parameters
