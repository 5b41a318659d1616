"""A database that comes back older than it was, on any backend: what a promoted replica or a restored backup
does to processes that live on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from perdure.model.ops import Commit, Drop, Expect, Fetch, Find, Put, Range, Stage
from perdure.model.program import Effect
from perdure.model.records import CHUNK, KINDS, SPACES, Partition, Record
from perdure.storage.port import CommitLimits, Driver

R = TypeVar("R")
Past = dict[Partition, list[Record]]


def capture(driver: Driver) -> Past:
    """Everything that is stored, as a backup would hold it."""
    out: Past = {}
    for space in SPACES:
        for found in driver.perform(Find("threads", None, space=space)):
            answers = driver.perform(Fetch(found.partition, tuple(Range(kind) for kind in KINDS)))
            out[found.partition] = [record for answer in answers for record in answer]
    return out


def restore(driver: Driver, past: Past) -> None:
    """Bring everything back to what was captured; what came since is gone."""
    for space in SPACES:
        for found in driver.perform(Find("threads", None, space=space)):
            driver.perform(Drop(found.partition))
    for partition, records in past.items():
        chunks = tuple(_put(r) for r in records if r.kind is CHUNK)
        rows = [_put(r) for r in records if r.kind is not CHUNK]
        for start in range(0, len(chunks), 50):
            driver.perform(Stage(partition, chunks[start : start + 50]))
        for start in range(0, len(rows), 50):
            driver.perform(Commit(partition, tuple(rows[start : start + 50])))


def _put(record: Record) -> Put:
    return Put(record.kind, record.key, record.fields, record.body, Expect.ANY, record.version)


class Rewinding:
    """A driver whose database comes back, right before its ``at``-th commit, as it was after its ``to``-th
    (0: empty). ``at=0`` only counts."""

    def __init__(self, inner: Driver, at: int = 0, to: int = 0) -> None:
        self._inner = inner
        self._at = at
        self._to = to
        self.commits = 0
        self._past: Past = {}

    @property
    def limits(self) -> CommitLimits:
        return self._inner.limits

    def perform(self, effect: Effect[R]) -> R:
        return self._around(effect, lambda: self._inner.perform(effect))

    async def aperform(self, effect: Effect[R]) -> R:
        return self.perform(effect)

    def _around(self, effect: Effect[Any], perform: Callable[[], R]) -> R:
        if not isinstance(effect, Commit):
            return perform()
        self.commits += 1
        if self.commits == self._at:
            restore(self._inner, self._past)
        answer = perform()
        if self.commits == self._to:
            self._past = capture(self._inner)
        return answer

    def finish(self) -> None:
        """Lose nothing any more."""
        self._at = 0 if self._at > self.commits else self._at

    @property
    def is_over(self) -> bool:
        """Whether the database has come back already."""
        return 0 < self._at <= self.commits

    def close(self) -> None:
        self._inner.close()
