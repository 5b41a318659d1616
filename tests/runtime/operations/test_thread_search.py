"""Threads are found by their cost and their words, several at a time and in order, on every backend."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from perdure.database.base import handle_of
from perdure.errors import BadSetting
from perdure.model.model_calls import Price, Prices
from perdure.runtime.operations import thread_search
from perdure.runtime.operations.thread_search import ThreadMatch, ThreadQuery, search
from perdure.runtime.operations.walk_by_activity import ThreadWalk
from perdure.runtime.operations.word_search import has_words
from tests.inspector.many_threads import MODEL, agent
from tests.inspector.test_scale import Counting
from tests.runtime.graphs import Storage, go

PRICES = Prices({MODEL: Price(2.0, 8.0)}, "EUR")
A_TURN = 0.012
"""What the two calls of a turn cost."""


async def say(storage: Storage, said: dict[str, tuple[str, ...]]) -> ThreadWalk:
    database = storage.database()
    graph = agent().compile(checkpointer=database.checkpointer())
    for thread, texts in said.items():
        for text in texts:
            config: Any = {"configurable": {"thread_id": thread}}
            await graph.ainvoke({"messages": [("user", text)]}, config)
    return ThreadWalk(handle_of(database), "")


async def found(walk: ThreadWalk, query: ThreadQuery) -> list[ThreadMatch]:
    return [match async for match in search(walk, query) if match.row is not None]


def test_threads_are_found_by_what_they_cost(storage: Storage) -> None:
    async def main() -> None:
        said = {"a": ("tides",), "b": ("tides", "the moon"), "c": ("ask May I?",)}
        walk = await say(storage, said)
        by_id = walk._replace(is_by_id=True)

        async def cost(least: float, **more: Any) -> list[tuple[str, float]]:
            query = ThreadQuery(cost=least, prices=PRICES, **more)
            return [
                (match.row.thread_id, round(match.cost, 6))
                for match in await found(by_id, query)
                if match.row is not None and match.cost is not None
            ]

        assert await cost(0) == [("a", A_TURN), ("b", 2 * A_TURN)]  # the third called no model to its end
        assert await cost(1.5 * A_TURN) == [("b", 2 * A_TURN)]
        assert await cost(3 * A_TURN) == []
        assert await cost(0, words="tides") == [("a", A_TURN), ("b", 2 * A_TURN)]
        assert await cost(0, words="moon") == [("b", 2 * A_TURN)]
        other = ThreadQuery(cost=0, prices=Prices({"another": Price(1, 1)}))
        assert await found(walk, other) == []
        with pytest.raises(BadSetting, match="needs prices"):
            await found(walk, ThreadQuery(cost=0))

    go(main())


def test_several_threads_are_examined_at_once_and_come_in_order(near: Storage) -> None:
    async def main() -> None:
        walk = await say(near, {f"t{n:02d}": ("the moon" if n % 3 else "the sun",) for n in range(40)})
        walk.database.driver = counting = Counting(walk.database.driver)
        every = [match.cursor async for match in search(walk, ThreadQuery())]
        counting.at_once = 0
        read = [match async for match in search(walk, ThreadQuery(words="MOON"))]
        assert counting.at_once >= 16
        assert [match.cursor for match in read] == every
        names = sorted(match.row.thread_id for match in read if match.row is not None)
        assert names == [f"t{n:02d}" for n in range(40) if n % 3]
        steps = search(walk, ThreadQuery(words="MOON"))
        await anext(steps)
        await steps.aclose()
        # None goes on behind a caller who has left.
        left = {getattr(task.get_coro(), "__name__", "") for task in asyncio.all_tasks()}
        assert "_examine" not in left

    go(main())


def test_a_long_conversation_is_read_beside_the_event_loop(
    near: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    places: list[bool] = []

    def seen(text: str, wanted: list[str]) -> bool:
        places.append(threading.current_thread() is threading.main_thread())
        return has_words(text, wanted)

    async def main() -> None:
        walk = await say(near, {"short": ("the moon",)})
        monkeypatch.setattr("perdure.runtime.operations.word_search.has_words", seen)
        assert len(await found(walk, ThreadQuery(words="moon"))) == 1
        assert set(places) == {True}
        monkeypatch.setattr(thread_search, "_THREAD_BYTES", 1)
        places.clear()
        assert len(await found(walk, ThreadQuery(words="moon"))) == 1
        assert set(places) == {not walk.database.driver.capabilities.has_threads}

    go(main())
