"""Seedable jitter for retries and polling.

It has a random source of its own, so that a seed of Python's shared source, or a test that watches it, is not
affected by a worker. Tests can replace the source for their own tasks to repeat a history.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_source: ContextVar[random.Random] = ContextVar("chance", default=random.Random())  # noqa: B039 - shared


def spread() -> float:
    """Return a random number from 0 up to, not including, 1."""
    return _source.get().random()


@contextmanager
def use_seed(seed: int) -> Iterator[None]:
    """Use a seeded source in this block and in tasks created within it; other OS threads do not affect it."""
    token = _source.set(random.Random(seed))
    try:
        yield
    finally:
        _source.reset(token)
