"""Answers to loads of threads, read ahead in the round trip of a run's claim."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from perdure.model.bounded_cache import BoundedCache
from perdure.model.ops import Fetch
from perdure.model.records import EPOCH, Partition
from perdure.storage.port import Answers

_MOST = 1024
_IS_KEPT: ContextVar[bool] = ContextVar("early_load_kept", default=False)


@contextmanager
def keep_for_next_load() -> Iterator[None]:
    """Let the answer that a load within the block uses serve the next load, too: for a caller that reads a
    thread before a run's first step. If another writer writes in between, that step is refused, as usual."""
    token = _IS_KEPT.set(True)
    try:
        yield
    finally:
        _IS_KEPT.reset(token)


class EarlyLoads:
    """The first answer of a thread's next load, read together with the claim of a run. It serves one load
    under that run's lease, if nothing was written in between."""

    def __init__(self) -> None:
        self._found: BoundedCache[Partition, tuple[Fetch, Answers]] = BoundedCache(_MOST)

    def add(self, fetch: Fetch, answers: Answers) -> None:
        """Keep the answer to a load's first request."""
        self._found[fetch.partition] = fetch, answers

    def pop(self, fetch: object, epoch: int | None) -> Answers | None:
        """Return the answer to the first request of a load under a lease, ``None`` if the request has to be
        made. The answer is given once, unless ``keep_for_next_load`` keeps it."""
        if not self._found or not isinstance(fetch, Fetch):
            return None
        expected, answers = self._found.pop(fetch.partition, (None, ()))
        if expected != fetch or epoch is None:
            return None
        epochs = [records for item, records in zip(fetch.items, answers, strict=True) if item.kind is EPOCH]
        is_held = any(record.version == epoch for records in epochs for record in records)
        if is_held and _IS_KEPT.get():
            self.add(fetch, answers)
        if is_held:
            return answers
        return None

    def forget(self, partition: Partition) -> None:
        """Drop the answers that a write makes outdated."""
        self._found.pop(partition, None)
