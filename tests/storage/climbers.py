"""Writers that count up a thread each, for tests of what a server's end costs them."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Event

import perdure
from perdure.model.ops import Commit, Committed, Expect, Fetch, Get, Put, Range
from perdure.model.records import CHECKPOINT, GC, Partition
from perdure.storage.redis.driver import RedisDriver
from perdure.testing.conformance import rows


def step(n: int) -> tuple[Put, ...]:
    """The n-th write of a thread: the next version, and a checkpoint that only it writes."""
    return rows.gc(n, n - 1 or Expect.ABSENT), rows.checkpoint(f"c{n}", n, body=b"%d" % n)


def height(driver: RedisDriver, at: Partition) -> int:
    """The version that a thread has; every checkpoint up to it has to be there, and none beyond."""
    gc, checkpoints = driver.perform(Fetch(at, (Get(GC, ()), Range(CHECKPOINT, ("",), "seq"))))
    version = gc[0].version if gc else 0
    assert [r.fields["seq"] for r in checkpoints] == list(range(1, version + 1))
    return version


def climb(driver: RedisDriver, at: Partition, stop: Event, reached: dict[Partition, int]) -> tuple[int, int]:
    """Write step after step alone on a thread: how far it came, and how often an outcome was unknown."""
    n, unknown = height(driver, at), 0
    while not stop.is_set():
        try:
            answer = driver.perform(Commit(at, step(n + 1)))
        except perdure.Unavailable:
            unknown += 1
            n = max(n, height(driver, at))
            continue
        assert isinstance(answer, Committed), "a lone writer was refused: its own write came twice"
        n += 1
        reached[at] = n
    return n, unknown


def eventually(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < until, "it did not come to that in time"
        time.sleep(0.005)
