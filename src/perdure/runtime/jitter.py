"""Chance, which parts what would otherwise happen at the same moment: pauses, and looks at the database.

It is a source of its own, so that whoever seeds Python's shared one, or watches it, is not disturbed by what
a worker does beside. Whoever wants the same history again gives it another source, for its own tasks alone.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_source: ContextVar[random.Random] = ContextVar("chance", default=random.Random())  # noqa: B039 - shared


def spread() -> float:
    """A number from 0 up to, not including, 1."""
    return _source.get().random()


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Within, and in tasks that are begun within, chance follows a seed; other threads move nothing of it."""
    token = _source.set(random.Random(seed))
    try:
        yield
    finally:
        _source.reset(token)
