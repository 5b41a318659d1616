"""Loads of threads that were read before they were asked for, in the round trip of a run's claim."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from perdure.model.bounded_cache import BoundedCache
from perdure.model.ops import Fetch
from perdure.model.records import EPOCH, Partition
from perdure.storage.port import Answers

_MOST = 1024
_KEPT: ContextVar[bool] = ContextVar("early_load_kept", default=False)


@contextmanager
def keep_for_next_load() -> Iterator[None]:
    """Leave what loads within it are answered with for the load that follows: for a caller that looks at a
    thread before a run's first step. What another writer stores in between refuses that step, as ever."""
    token = _KEPT.set(True)
    try:
        yield
    finally:
        _KEPT.reset(token)


class EarlyLoads:
    """The first answer of a thread's next load, read together with the claim of a run. It serves one load
    under that run's lease, if nothing was written in between."""

    def __init__(self) -> None:
        self._found: BoundedCache[Partition, tuple[Fetch, Answers]] = BoundedCache(_MOST)

    def add(self, fetch: Fetch, answers: Answers) -> None:
        """Keep the answer to a load's first request."""
        self._found[fetch.partition] = fetch, answers

    def pop(self, fetch: object, epoch: int | None) -> Answers | None:
        """Return the answer to a load's first request under a lease, once unless it is kept for the next;
        ``None`` if it has to be made."""
        if not self._found or not isinstance(fetch, Fetch):
            return None
        known, answers = self._found.pop(fetch.partition, (None, ()))
        if known != fetch or epoch is None:
            return None
        epochs = [found for item, found in zip(fetch.items, answers, strict=True) if item.kind is EPOCH]
        is_held = any(record.version == epoch for found in epochs for record in found)
        if is_held and _KEPT.get():
            self.add(fetch, answers)
        return answers if is_held else None

    def forget(self, partition: Partition) -> None:
        """Drop what a write makes outdated."""
        self._found.pop(partition, None)
