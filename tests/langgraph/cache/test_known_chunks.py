"""The chunks that a process takes for stored: what proves them, and how many it remembers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from itertools import pairwise
from typing import Any, TypeVar

import pytest
from langgraph.graph import START, StateGraph
from typing_extensions import TypedDict

from perdure.database.opening import open_database
from perdure.langgraph.cache import known_chunks, thread_cache
from perdure.langgraph.cache.known_chunks import KnownChunks, enter_generation
from perdure.langgraph.cache.thread_cache import Caches, Elements, KnownValue, ThreadCache
from perdure.model.ops import Commit, Put, Stage
from perdure.model.program import Effect
from perdure.model.records import BLOB, CHUNK, Partition
from perdure.storage.port import Driver, WrappingDriver
from tests.langgraph.session import config

R = TypeVar("R")
PLACE = (CHUNK, (b"",))


def test_a_checkpoint_heard_of_late_does_not_prove_what_came_after_it() -> None:
    known = KnownChunks(1, "head")
    known.advance("second", "first", {b"of the second": PLACE})
    known.advance("first", "head", {b"of the first": PLACE})
    assert known.root == "first"
    assert known.stored.keys() == {b"of the first"}
    assert known.recent.keys() == {b"of the second"}


def test_digests_of_earlier_states_are_forgotten_beyond_a_multiple_of_the_state() -> None:
    known = KnownChunks(1, "head")
    known.stored.update((str(n).encode(), PLACE) for n in range(2000))
    known.note_end()
    known.recent.update((str(n).encode(), PLACE) for n in range(2000, 8000))
    known.note_end()
    assert enter_generation(known, 1, "head") is known
    assert enter_generation(known, 1, "other").first == 2000
    known.recent[b"one more"] = PLACE
    assert enter_generation(known, 1, "head").count == 0


def test_what_is_known_of_a_thread_counts_for_the_bound_of_all_threads() -> None:
    cache = ThreadCache()
    before = cache.weight()
    cache.known.stored.update((str(n).encode(), PLACE) for n in range(8000))
    assert cache.weight() == before + 1000


def test_few_large_elements_count_as_much_as_many_small_ones() -> None:
    def weight(*sizes: int) -> int:
        cache = ThreadCache()
        refs = [b""] * len(sizes)
        elements = Elements(refs, list(sizes), 0, [b""] * len(sizes), None, None)
        cache.hold({("", "messages"): KnownValue(b"", 1, elements)})
        return cache.weight() - ThreadCache().weight()

    assert weight(*[1] * 100) == 100
    assert weight(51_200) == 101
    assert weight(51_200, 51_200) == 202


def test_threads_with_large_values_are_dropped_at_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_cache, "_MOST", 1000)
    caches = Caches()
    for number in range(20):
        partition = Partition("", str(number))
        elements = Elements([b""], [100_000], 0, [b""], None, None)
        caches.of(partition).hold({("", "messages"): KnownValue(b"", 1, elements)})
        caches.weigh(partition)
    assert list(caches._threads) == [Partition("", str(number)) for number in range(16, 20)]


class Counting(WrappingDriver):
    """A driver that counts the chunks that commits bring."""

    chunks = 0

    def perform(self, effect: Effect[R]) -> R:
        ops: Any = effect.ops if isinstance(effect, Commit) else ()
        ops = effect.puts if isinstance(effect, Stage) else ops
        self.chunks += sum(isinstance(op, Put) and op.kind in (CHUNK, BLOB) for op in ops)
        return self._inner.perform(effect)

    async def aperform(self, effect: Effect[R]) -> R:
        return self.perform(effect)


class Files(TypedDict):
    turn: int
    files: dict[str, str]


def files(turn: int, count: int) -> dict[str, str]:
    """Files of a turn: each turn rewrites one of them."""
    return {f"{n}.txt": f"{max(0, turn - (turn - n) % count)} of {n}: " * 200 for n in range(count)}


def talked(turns: int, count: int, each: Callable[[Any, Counting], None]) -> None:
    """Have so many turns on one thread whose state has so many files, and compare what is stored."""
    drivers: list[Counting] = []

    def wrap(driver: Driver) -> Driver:
        drivers.append(Counting(driver))
        return drivers[0]

    builder = StateGraph(Files).add_node("write", lambda state: {"files": files(state["turn"], count)})
    builder.add_edge(START, "write")
    with closing(open_database("memory://", wrap=wrap)) as db:
        saver = db.checkpointer()
        graph = builder.compile(checkpointer=saver)
        for turn in range(turns):
            graph.invoke({"turn": turn, "files": {}}, config())
            each(saver, drivers[0])
        stored = builder.compile(checkpointer=db.checkpointer()).get_state(config()).values
        assert stored == {"turn": turns - 1, "files": files(turns - 1, count)}
        assert db.fsck() == []


def test_a_thread_of_many_turns_remembers_the_chunks_of_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_chunks, "_DIGESTS_MAX", 64)
    counts = list[int]()
    talked(100, 5, lambda saver, _: counts.append(saver._caches.of(Partition("", "t")).known.count))
    assert 32 < max(counts) < 96
    assert any(after < before for before, after in pairwise(counts[50:]))


def test_a_state_of_many_chunks_is_not_stored_anew_by_each_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_chunks, "_DIGESTS_MAX", 16)
    counts = list[int]()
    talked(60, 40, lambda _, driver: counts.append(driver.chunks))
    brought = [after - before for before, after in zip([0, *counts], counts, strict=False)]
    assert brought[0] >= 40
    assert sum(chunks >= 40 for chunks in brought) <= 6
