"""Every path of a small world: what the engine does, what the tables say and what the server shows are one.

Covers perdure.model.lifecycle.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import time
from collections.abc import Iterator

import pytest

from perdure.database.handle import DatabaseHandle
from perdure.model.chunks import Digester
from perdure.storage.encryption import EncryptedDriver
from perdure.storage.memory import MemoryDriver
from tests.server.lifecycle_worlds import EVENTS, Event, OnFailure, walk, world

FULL = os.environ.get("PERDURE_CHAOS") == "full"
SECONDS = 1200 if FULL else 25
DEPTH = 4 if FULL else 2


def _memory() -> DatabaseHandle:
    return DatabaseHandle(EncryptedDriver(MemoryDriver(), None), tenant="", digest=Digester())


def _paths(seed: int) -> Iterator[tuple[Event, ...]]:
    """Yield all short paths that begin with a question, then longer ones by chance."""
    ask, work = EVENTS[0], next(event for event in EVENTS if event.act == "work")
    for length in range(1, DEPTH + 1):
        for path in itertools.product(EVENTS, repeat=length):
            yield (ask, work, *path)
    chance = random.Random(seed)
    while True:
        yield tuple(chance.choices((*EVENTS, work, work), k=chance.randint(4, 14)))


def _explore(seconds: float, shape: str, on_failure: OnFailure, seed: int = 0) -> tuple[int, str | None]:
    """Walk paths for some time; return their number, and the first difference."""

    async def main() -> tuple[int, str | None]:
        until, count = time.monotonic() + seconds, 0
        for path in _paths(seed):
            if time.monotonic() > until:
                break
            count += 1
            async with world(_memory(), shape, on_failure) as place:
                if (found := await walk(place, path, on_failure)) is not None:
                    return count, found
        return count, None

    return asyncio.run(main())


@pytest.mark.parametrize("on_failure", ["rollback", "keep"])
@pytest.mark.parametrize("shape", ["flat", "nested"])
def test_every_view_of_a_path_is_what_the_tables_say(shape: str, on_failure: OnFailure) -> None:
    count, found = _explore(SECONDS / 4, shape, on_failure, seed=random.randrange(1 << 30))
    assert found is None, found
    assert count > 3
