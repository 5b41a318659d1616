"""A database that comes back older than it was, on any backend: what a promoted replica or a restored backup
does to processes that live on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from perdure.langgraph.saver import PerdureSaver
from perdure.model.ops import Commit, Drop, Expect, Fetch, FindThreads, Put, Range, Stage
from perdure.model.program import Effect
from perdure.model.records import BLOB, CHUNK, KINDS, PACK, SPACES, Partition, Record
from perdure.storage.port import Capabilities, CommitLimits, Driver

R = TypeVar("R")
CHUNKS = (CHUNK, BLOB, PACK)
Past = dict[Partition, list[Record]]


def capture(driver: Driver) -> Past:
    """Everything that is stored, as a backup would hold it."""
    out: Past = {}
    for space in SPACES:
        for found in driver.perform(FindThreads(None, space=space)):
            answers = driver.perform(Fetch(found.partition, tuple(Range(kind) for kind in KINDS)))
            out[found.partition] = [record for answer in answers for record in answer]
    return out


def restore(driver: Driver, past: Past) -> None:
    """Bring everything back to what was captured; what came since is gone."""
    for space in SPACES:
        for found in driver.perform(FindThreads(None, space=space)):
            driver.perform(Drop(found.partition))
    for partition, records in past.items():
        chunks = tuple(_put(r) for r in records if r.kind in CHUNKS)
        rows = [_put(r) for r in records if r.kind not in CHUNKS]
        for start in range(0, len(chunks), 50):
            driver.perform(Stage(partition, chunks[start : start + 50]))
        for start in range(0, len(rows), 50):
            driver.perform(Commit(partition, tuple(rows[start : start + 50])))


def _put(record: Record) -> Put:
    return Put(record.kind, record.key, record.fields, record.body, Expect.ANY, record.version)


class Rewinding:
    """A driver whose database comes back, right before its ``at``-th commit, as it was after its ``to``-th
    (0: empty). ``at=0`` only counts.

    Of two writes that are under way at the same time, one cannot know that the other is lost. So the database
    comes back later if the commit belongs to a ``watched`` saver's write that began before those with the
    commits before it had ended.
    """

    def __init__(self, inner: Driver, at: int = 0, to: int = 0) -> None:
        self._inner = inner
        self._at = at
        self._to = to
        self.commits = 0
        self._past: Past = {}
        self._lock = threading.RLock()
        self._under_way = 0
        self._write = threading.local()

    def watched(self, saver: PerdureSaver) -> PerdureSaver:
        """Return a saver whose writes are known to this driver; each is one call in one thread."""

        def known(write: Callable[..., R]) -> Callable[..., R]:
            @wraps(write)  # LangGraph looks at the parameters
            def called(*args: Any, **kwargs: Any) -> R:
                with self._lock:
                    self._under_way += 1
                    self._write.knows = self.commits if self._under_way == 1 else -1
                try:
                    return write(*args, **kwargs)
                finally:
                    with self._lock:
                        self._under_way -= 1
                        del self._write.knows

            return called

        saver.put = known(saver.put)  # type: ignore[method-assign]
        saver.put_writes = known(saver.put_writes)  # type: ignore[method-assign]
        return saver

    capabilities = Capabilities()

    @property
    def limits(self) -> CommitLimits:
        return self._inner.limits

    def perform(self, effect: Effect[R]) -> R:
        with self._lock:
            return self._around(effect, lambda: self._inner.perform(effect))

    async def aperform(self, effect: Effect[R]) -> R:
        return self.perform(effect)

    def _around(self, effect: Effect[Any], perform: Callable[[], R]) -> R:
        if not isinstance(effect, Commit):
            return perform()
        if self.commits + 1 == self._at and getattr(self._write, "knows", self.commits) != self.commits:
            self._at += 1
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
