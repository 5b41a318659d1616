"""Listing of the checkpoints of all threads of a tenant, or of all namespaces of one thread, by id,
descending."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from perdure.engine.threads import history
from perdure.engine.threads.thread_state import refuse_headless
from perdure.model.heads import ROOT
from perdure.model.ops import Fetch, FindThreads, Get, Range
from perdure.model.program import Program, ask
from perdure.model.records import CHECKPOINT, GC, HEAD, Partition

_AHEAD = 16
_THREADS = 1000


class Entry(NamedTuple):
    """Place of a checkpoint in the order."""

    checkpoint_id: str
    partition: Partition
    namespace: str


@dataclass(slots=True)
class _Line:
    """Cursor over one namespace of one thread: ids read ahead, the largest last."""

    partition: Partition
    namespace: str
    ids: list[str]
    ahead: int = 1

    @property
    def first(self) -> Entry:
        return Entry(self.ids[-1], self.partition, self.namespace)


@dataclass(slots=True)
class Merge:
    """Merge over the ids of all checkpoints of a tenant, or of one ``thread``, largest first; only those
    below ``before``.

    Only ids are read, and at most 16 of a namespace are held. The first call asks each thread once, and those
    with subgraphs twice: time and memory are linear in the number of threads. ``most`` is the maximum number
    of entries wanted, if known: no more namespaces than that are held.
    """

    tenant: str
    before: str | None
    most: int | None
    thread: Partition | None = None
    _lines: list[_Line] = field(default_factory=list)
    """Sorted by their first id, the largest last."""
    _started: bool = False

    def read_next(self, size: int) -> Program[list[Entry]]:
        """Return the next ``size`` entries, or fewer at the end.

        Raises:
            Corrupt: the head of a thread is missing, or names a checkpoint that is not stored.
        """
        if not self._started:
            yield from self._start()
            self._started = True
        out: list[Entry] = []
        while self._lines and len(out) < size:
            line = self._lines.pop()
            out.append(line.first)
            last = line.ids.pop()
            if not line.ids:
                line.ahead = min(2 * line.ahead, _AHEAD)
                wanted = _ids(line.namespace, last, line.ahead)
                (records,) = yield from ask(Fetch(line.partition, (wanted,)))
                line.ids = [record.key[1] for record in reversed(records)]
            if line.ids:
                insort(self._lines, line, key=lambda line: line.first)
        return out

    def _start(self) -> Program[None]:
        if self.thread is not None:
            self._lines = sorted((yield from self._load_lines(self.thread)), key=lambda line: line.first)
            return
        after: Partition | None = None
        while page := (yield from ask(FindThreads(self.tenant, after=after, limit=_THREADS))):
            for found in page:
                self._lines += yield from self._load_lines(found.partition)
            self._lines.sort(key=lambda line: line.first)
            if self.most is not None:
                # A line's first id is its largest, so only the last ``most`` lines can have wanted entries.
                del self._lines[: max(0, len(self._lines) - self.most)]
            after = page[-1].partition

    def _load_lines(self, partition: Partition) -> Program[Sequence[_Line]]:
        heads, records, generations = yield from ask(
            Fetch(partition, (Range(HEAD), _ids(ROOT, self.before, 1), Get(GC, ())))
        )
        others = [head.key[0] for head in heads if head.key[0] != ROOT]
        if len(others) == len(heads):
            if not generations:
                return []  # it is arriving, and has no checkpoint yet
            yield from refuse_headless(partition, ROOT)
        found = {ROOT: records}
        if others:
            wanted = tuple(_ids(namespace, self.before, 1) for namespace in others)
            found.update(zip(others, (yield from ask(Fetch(partition, wanted))), strict=True))
        out: list[_Line] = []
        for head in heads:
            namespace, target = head.key[0], head.fields["checkpoint_id"]
            ids = [record.key[1] for record in found[namespace]]
            if target not in ids and (self.before is None or target < self.before):
                # The head is an older checkpoint after a fork, or the thread is damaged. In the last case
                # reading the first page raises the error.
                yield from history.read_page(partition, namespace, below=None, limit=1)
            if ids:
                out.append(_Line(partition, namespace, ids))
        return out


def _ids(namespace: str, below: str | None, limit: int) -> Range:
    page = Range(CHECKPOINT, (namespace,), reverse=True, limit=limit, bodies=False)
    if below is None:
        return page
    return page._replace(after=(namespace, below))
