"""Generations of search indexes that this process wrote last, so that the only writer of a namespace does not
read them before each commit.

A generation's record is fixed by its version, and a commit that names one is refused if another is stored. So
this knowledge may be outdated: a writer that was refused reads, and tries again.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from perdure.engine.items.search_index import Generation
from perdure.model.bounded_cache import BoundedCache
from perdure.model.records import Partition

MOST = 1024
"""Namespaces whose generation is known at most: 1 kB each."""


class _Known(NamedTuple):
    generation: Generation
    is_ours: bool
    """Whether the generation before it was this process's, too."""


class KnownGenerations:
    """Generations by namespace; those that were written longest ago are forgotten first.

    Args:
        lock: Held during each change, as threads may share these.
    """

    def __init__(self, lock: AbstractContextManager[Any]) -> None:
        self._known: BoundedCache[Partition, _Known] = BoundedCache(MOST)
        self._lock = lock

    def get(self, partition: Partition) -> Generation | None:
        """Return a namespace's generation if this process wrote the last two. Where writers take turns, a
        guess would be refused each time, and cost more than it saves."""
        known = self._known.get(partition)
        if known is not None and known.is_ours:
            return known.generation
        return None

    def note_commit(self, partition: Partition, before: int | None, after: Generation | None) -> None:
        """Note a commit.

        Args:
            partition: The namespace.
            before: The number of the generation before it, if that is known.
            after: The generation that it made, ``None`` if it left none.
        """
        with self._lock:
            known = self._known.pop(partition, None)
            if after is not None:
                is_ours = known is not None and known.generation.version == before
                self._known[partition] = _Known(after, is_ours)

    def note_refusal(self, partition: Partition, version: int) -> None:
        """Forget a generation that is not the one that is stored."""
        with self._lock:
            known = self._known.get(partition)
            if known is not None and known.generation.version == version:
                del self._known[partition]
