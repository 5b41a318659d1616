"""Generations of search indexes that this process wrote last, so that the only writer of a namespace does not
read them before each commit.

All records with the version of a generation have the same content, and a commit that expects a version is
refused if another is stored. So it does no harm if this knowledge is out of date: a writer that was refused
reads the generation, and tries again.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from perdure.engine.items.search_index import Generation
from perdure.model.bounded_cache import BoundedCache
from perdure.model.records import Partition

MOST = 1024
"""Maximum number of namespaces whose generation is known: 1 kB each."""


class _Known(NamedTuple):
    generation: Generation
    follows_ours: bool
    """Whether the generation before it was this process's, too."""


class KnownGenerations:
    """Generations by namespace; those that were written longest ago are forgotten first.

    Args:
        lock: Held during each change, as OS threads may share this object.
    """

    def __init__(self, lock: AbstractContextManager[Any]) -> None:
        self._known: BoundedCache[Partition, _Known] = BoundedCache(MOST)
        self._lock = lock

    def get(self, partition: Partition) -> Generation | None:
        """Return a namespace's generation if this process wrote the last two. Where writers take turns, a
        guess would be refused each time, and cost more than it saves."""
        known = self._known.get(partition)
        if known is not None and known.follows_ours:
            return known.generation
        return None

    def note_commit(self, partition: Partition, before: int | None, after: Generation | None) -> None:
        """Note a commit.

        Args:
            partition: The namespace.
            before: The version of the generation before the commit, if that is known.
            after: The generation that the commit made, ``None`` if it left none.
        """
        with self._lock:
            known = self._known.pop(partition, None)
            if after is not None:
                follows_ours = known is not None and known.generation.version == before
                self._known[partition] = _Known(after, follows_ours)

    def note_refusal(self, partition: Partition, version: int) -> None:
        """Forget a generation that is not the one that is stored."""
        with self._lock:
            known = self._known.get(partition)
            if known is not None and known.generation.version == version:
                del self._known[partition]
