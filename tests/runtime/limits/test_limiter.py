"""Limits of a process: who waits, who is told, what is given back, and what it costs in requests.

Covers perdure.engine.limits, perdure.runtime.limits.shares, perdure.runtime.limits.held_amounts,
perdure.runtime.limits.waiting_permits.
"""

import asyncio
import math
import multiprocessing
import threading
import time
from collections import Counter
from typing import Any

import pytest

import perdure
from perdure.database.base import handle_of
from perdure.engine import limits as stored
from perdure.errors import BadSetting, PerdureError, Unavailable
from perdure.limits import LimitReached, SharedLimit
from perdure.model.program import Effect
from perdure.runtime.limits.limiter import CallTurn, Limiter, limiter_of
from perdure.runtime.limits.waiting_permits import ExpectedUse
from perdure.runtime.operations import limit_states
from perdure.storage.port import WrappingDriver
from tests.backends import BACKENDS, EMPTY

MOST = float("inf")


def turn(user: str = "", **key: str) -> CallTurn:
    return CallTurn([("shared", key, user)])


async def limited(db: perdure.Database, **fields: Any) -> Limiter:
    limiter = limiter_of(handle_of(db))
    limiter.declare({"shared": SharedLimit(**fields)})
    return limiter


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_backend_holds_calls_to_a_concurrency_and_gives_it_back(backend: str) -> None:
    async def main(url: str) -> None:
        async with perdure.connect(url, migrate=True) as db:
            limiter = await limited(db, concurrency=2)
            under_way, most = 0, 0

            async def call() -> None:
                nonlocal under_way, most
                one = turn(user="ada", model="m")
                await limiter.acquire(one, "", MOST)
                under_way += 1
                most = max(most, under_way)
                await asyncio.sleep(0.01)
                under_way -= 1
                limiter.end(one)

            await asyncio.gather(*(call() for _ in range(20)))
            assert most == 2
            ((place, amounts, state),), _ = await handle_of(db).arun(stored.read_states("", 10))
            assert (place.limit, place.key) == ("shared", {"model": "m"})
            assert amounts["concurrency"] == 2
            assert [part.places for part in state.parts.values()] == [2]
            await asyncio.to_thread(limiter.close)
            assert await handle_of(db).arun(stored.read_states("", 10)) == ([], None)

    with EMPTY[backend]() as url:
        asyncio.run(main(url))


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_backend_holds_calls_to_a_rate(backend: str) -> None:
    async def main(url: str) -> None:
        async with perdure.connect(url, migrate=True) as db:
            limiter = await limited(db, rate=1200, burst=4)
            await limiter.acquire(turn(), "", MOST)
            began = time.monotonic()
            await asyncio.gather(*(limiter.acquire(turn(), "", MOST) for _ in range(24)))
            assert time.monotonic() - began >= (24 - 4) / 20 - 0.05

    with EMPTY[backend]() as url:
        asyncio.run(main(url))


class Counted(WrappingDriver):
    """A driver that counts its requests."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.requests: Counter[str] = Counter()

    def perform(self, effect: Effect[Any]) -> Any:
        self.requests[type(effect).__name__] += 1
        return self._inner.perform(effect)

    async def aperform(self, effect: Effect[Any]) -> Any:
        self.requests[type(effect).__name__] += 1
        return await self._inner.aperform(effect)


def test_a_thousand_calls_take_few_requests() -> None:
    async def main() -> None:
        async with perdure.connect("memory://") as db:
            handle = handle_of(db)
            driver = handle.driver = Counted(handle.driver)
            limiter = await limited(db, rate=60_000, burst=2000, concurrency=50)

            async def call() -> None:
                one = turn()
                await limiter.acquire(one, "", MOST)
                limiter.end(one)

            for _ in range(20):
                await asyncio.gather(*(call() for _ in range(50)))
            assert sum(driver.requests.values()) < 200

    asyncio.run(main())


def test_users_take_turns_however_many_calls_one_has() -> None:
    async def main() -> list[str]:
        order: list[str] = []
        is_busy = asyncio.Event()
        async with perdure.connect("memory://") as db:
            limiter = await limited(db, concurrency=1)

            async def call(user: str) -> None:
                one = turn(user=user)
                await limiter.acquire(one, "", MOST)
                order.append(user)
                if len(order) == 3:
                    is_busy.set()
                await asyncio.sleep(0.002)
                limiter.end(one)

            async with asyncio.TaskGroup() as group:
                for _ in range(200):
                    group.create_task(call("greedy"))
                await is_busy.wait()
                asked_at.append(len(order))
                for user in ("ada", "bob"):
                    group.create_task(call(user))
        return order

    asked_at: list[int] = []
    order = asyncio.run(main())
    assert asked_at[0] < 150
    assert max(order.index("ada"), order.index("bob")) <= asked_at[0] + 8


def test_a_caller_who_leaves_holds_nothing_and_delays_nobody() -> None:
    async def main() -> None:
        async with perdure.connect("memory://") as db:
            limiter = await limited(db, concurrency=1)
            first = turn()
            await limiter.acquire(first, "", MOST)
            waiting = asyncio.create_task(limiter.acquire(turn(), "", MOST))
            await asyncio.sleep(0.05)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            limiter.end(first)
            limiter.end(first)
            async with asyncio.timeout(5):
                await limiter.acquire(turn(), "", MOST)
            with pytest.raises(LimitReached) as refused:
                await limiter.acquire(turn(), "", 0)
            assert refused.value.limit == "shared"
            with pytest.raises(LimitReached, match="try again in"):
                await limiter.acquire(turn(), "", 0.05)

    asyncio.run(main())


def test_a_limit_can_be_set_while_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    from perdure.runtime.limits import limiter as module

    monkeypatch.setattr(module, "_REFRESH_S", 0.0)

    async def main() -> None:
        async with perdure.connect("memory://") as db:
            handle, limiter = handle_of(db), await limited(db, concurrency=1)
            await limiter.acquire(turn(), "", MOST)
            with pytest.raises(LimitReached):
                await limiter.acquire(turn(), "", 0)
            await handle.arun(stored.set_amounts("", "shared", {"concurrency": 2}, 1, handle.draw_version()))
            async with asyncio.timeout(5):
                await limiter.acquire(turn(), "", MOST)
            await handle.arun(stored.set_amounts("", "shared", {"concurrency": -2}, 2, handle.draw_version()))
            with pytest.raises(LimitReached):
                await limiter.acquire(turn(), "", 0)

    asyncio.run(main())


def test_a_limit_that_is_not_declared_is_named() -> None:
    async def main() -> None:
        async with perdure.connect("memory://") as db:
            limiter = await limited(db, concurrency=1)
            with pytest.raises(BadSetting, match="there is no limit 'other'"):
                await limiter.acquire(CallTurn([("other", {}, "")]), "", MOST)
            with pytest.raises(BadSetting, match="declared twice"):
                limiter.declare({"shared": SharedLimit(concurrency=2)})

    asyncio.run(main())


def _forked(limiter: Limiter) -> None:
    with pytest.raises(PerdureError):
        limiter.acquire_blocking(turn(), "", 20)


def test_a_fork_is_refused_by_its_database_and_does_not_wait_for_ever(tmp_path: Any) -> None:
    with perdure.connect_sync(f"sqlite:///{tmp_path / 'a.db'}", migrate=True) as db:
        limiter = limiter_of(handle_of(db))
        limiter.declare({"shared": SharedLimit(rate=600)})
        limiter.acquire_blocking(turn(), "", MOST)
        child = multiprocessing.get_context("fork").Process(target=_forked, args=(limiter,))
        child.start()
        child.join(30)
        if child.exitcode is None:
            child.kill()
        assert child.exitcode == 0


@pytest.mark.parametrize("taken", [40, 400])
def test_tokens_of_calls_that_take_more_than_a_burst_keep_to_the_rate(taken: int) -> None:
    async def main() -> float:
        async with perdure.connect("memory://") as db:
            # 100 tokens a second, of which 500 may gather.
            limiter = await limited(db, tokens=6000)
            spent, began = 0, 0.0
            while not began or time.monotonic() - began < 3:
                one = turn()
                async with asyncio.timeout(20):
                    await limiter.acquire(one, "", MOST)
                began = began or time.monotonic()
                limiter.end(one, tokens=taken)
                spent += taken
            return spent - 100 * (time.monotonic() - began)

    # Ahead of the rate by what gathers, and by the last call.
    assert asyncio.run(main()) <= 500 + taken + 50


async def call(limiter: Limiter, tokens: int | None, prompt: int = 0, within: float = 20) -> None:
    one = CallTurn([("shared", {}, "")], expected=ExpectedUse(prompt))
    await limiter.acquire(one, "", within)
    limiter.end(one, tokens=tokens)


async def wait_for_debt(db: perdure.Database, least: int) -> dict[str, Any]:
    """Wait until it is stored that tokens are owed. Return the entry of the limit."""
    async with asyncio.timeout(5):
        while True:
            found, _ = await limit_states.read_entries(handle_of(db), "", None, 9)
            if found and (found[0]["tokens"]["next_at"] or 0) > least:
                return found[0]
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("backend", ["sqlite", "postgresql"])
@pytest.mark.parametrize("way", ["ended", "under way", "closed"])
def test_what_a_call_uses_beyond_the_expected_holds_back_all_processes(backend: str, way: str) -> None:
    """A process that is killed has reported it, and another one continues from what is stored."""

    async def main(url: str) -> None:
        async with perdure.connect(url, migrate=True) as db, perdure.connect(url) as other:
            first = await limited(db, tokens=6000)
            if way == "under way":
                await first.acquire(CallTurn([("shared", {}, "")], expected=ExpectedUse(3000)), "", MOST)
            else:
                await call(first, 3000)
            if way == "closed":
                await asyncio.to_thread(first.close)
            entry = await wait_for_debt(db, 0)
            assert entry["tokens"]["left"] == 0
            second = await limited(other, tokens=6000)
            with pytest.raises(LimitReached) as refused:
                await call(second, 10, within=3)
            assert 5 < refused.value.retry_after < 35
            await limit_states.reset(handle_of(db), "", "shared", {})
            async with asyncio.timeout(10):
                await call(second, 10)

    with EMPTY[backend]() as url:
        asyncio.run(main(url))


def test_expected_tokens_that_a_call_did_not_use_are_given_back() -> None:
    async def main() -> None:
        async with perdure.connect("memory://") as db:
            limiter = await limited(db, tokens=6000)
            one = CallTurn([("shared", {}, "")], expected=ExpectedUse(60_000))
            await limiter.acquire(one, "", MOST)
            await wait_for_debt(db, 0)
            limiter.end(one, tokens=600)
            began = time.monotonic()
            async with asyncio.timeout(20):
                await call(limiter, 10)
            assert time.monotonic() - began < 5

    asyncio.run(main())


@pytest.mark.parametrize("backend", ["sqlite", "redis"])
def test_whatever_waits_fails_when_the_database_is_closed(backend: str) -> None:
    errors: list[BaseException] = []

    def wait(limiter: Limiter) -> None:
        try:
            limiter.acquire_blocking(turn(), "", math.inf)
        except PerdureError as error:
            errors.append(error)

    async def main(url: str) -> None:
        async with perdure.connect(url, migrate=True) as db:
            limiter = await limited(db, concurrency=1)
            held = turn()
            await limiter.acquire(held, "", MOST)
            threads = [threading.Thread(target=wait, args=(limiter,), daemon=True) for _ in range(3)]
            for thread in threads:
                thread.start()
            waiting = [asyncio.create_task(limiter.acquire(turn(), "", MOST)) for _ in range(3)]
            await asyncio.sleep(0.2)
        for thread in threads:
            await asyncio.to_thread(thread.join, 10)
        errors.extend(await asyncio.gather(*waiting, return_exceptions=True))  # type: ignore[arg-type]
        assert [type(error) for error in errors] == [Unavailable] * 6
        assert "is closed" in str(errors[0])
        limiter.end(held)
        for within in (0, MOST):
            with pytest.raises(Unavailable, match="is closed"):
                await limiter.acquire(turn(), "", within)
        with pytest.raises(Unavailable, match="is closed"):
            limiter.acquire_blocking(turn(), "", MOST)

    with EMPTY[backend]() as url:
        asyncio.run(main(url))
