"""The checkpoints of all threads in one order, of which few are held at a time."""

from __future__ import annotations

import random
from typing import Any

import pytest

from perdure.engine.threads.tenant_checkpoints import Entry, Merge
from perdure.model.ops import Fetch, Range
from perdure.model.records import CHECKPOINT
from perdure.storage.memory import MemoryDriver
from perdure.storage.port import Capabilities, run
from perdure.testing.conformance import Backend
from perdure.testing.conformance.backend import at

THREADS = 3
LENGTH = 100


@pytest.fixture(scope="module")
def driver() -> MemoryDriver:
    """Three threads of a hundred checkpoints each, whose ids lie between each other."""
    driver = MemoryDriver()
    saver = Backend(driver).saver()
    order = [thread for thread in range(THREADS) for _ in range(LENGTH)]
    random.Random(7).shuffle(order)
    heads: dict[int, str] = {}
    for n, thread in enumerate(order):
        place = at(heads.get(thread), thread=f"t{thread}")
        checkpoint: Any = {
            "v": 4,
            "id": f"c{n:04}",
            "ts": "",
            "channel_values": {},
            "channel_versions": {},
            "versions_seen": {},
        }
        saver.put(place, checkpoint, {}, {})
        heads[thread] = f"c{n:04}"
    return driver


class Counting:
    """Counts the ids that are read, and the most that one request asks for."""

    capabilities = Capabilities()

    def __init__(self, inner: MemoryDriver) -> None:
        self._inner = inner
        self.limits = inner.limits
        self.read = 0
        self.most = 0
        self.requests = 0

    def perform(self, effect: Any) -> Any:
        answers = self._inner.perform(effect)
        if isinstance(effect, Fetch):
            for item, found in zip(effect.items, answers, strict=True):
                if isinstance(item, Range) and item.kind is CHECKPOINT:
                    assert not item.bodies
                    assert item.limit is not None
                    self.most = max(self.most, item.limit)
                    self.read += len(found)
                    self.requests += 1
        return answers

    async def aperform(self, effect: Any) -> Any:
        return self.perform(effect)

    def close(self) -> None:
        """The driver belongs to the tests."""


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_at_most_16_ids_of_a_namespace_are_held(driver: MemoryDriver, size: int) -> None:
    counting = Counting(driver)
    merge = Merge("", None, None)
    found: list[Entry] = []
    while page := run(merge.read_next(size), counting):
        found += page
        assert all(len(line.ids) <= 16 for line in merge._lines)
    assert [entry.checkpoint_id for entry in found] == [f"c{n:04}" for n in reversed(range(THREADS * LENGTH))]
    assert counting.most == 16
    # Each id is read once, and no namespace asks for one id at a time.
    assert counting.read == THREADS * LENGTH
    assert counting.requests <= THREADS * (LENGTH // 16 + 6)


def test_what_is_wanted_at_all_bounds_the_namespaces_that_are_held(driver: MemoryDriver) -> None:
    counting = Counting(driver)
    merge = Merge("", None, 1)
    (entry,) = run(merge.read_next(1), counting)
    assert entry.checkpoint_id == f"c{THREADS * LENGTH - 1:04}"
    assert len(merge._lines) <= 1
    # One id of each namespace, and what follows the one that was taken.
    assert counting.read <= THREADS + 2
