"""Walks over all records of some kinds, past those that do not open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from perdure.errors import Corrupt
from perdure.model.ops import Fetch, Get, Range
from perdure.model.program import Program, ask
from perdure.model.records import Key, Kind, Partition, Record

_PAGE = 64


@dataclass(slots=True)
class Walk:
    """A walk over the records of a kind: those that open, and those that do not, with the reason."""

    kind: Kind
    stubs: tuple[Record, ...] = ()
    records: list[Record] = field(default_factory=list)
    unreadable: list[tuple[Key, str]] = field(default_factory=list)
    last: bool = False
    ahead: tuple[Record, ...] | None = None
    """The stubs of the next page, where they were read already."""

    def turn(self, partition: Partition) -> Program[None]:
        """Read the next page."""
        if self.ahead is None:
            (self.ahead,) = yield from ask(Fetch(partition, (_page(self.kind, self.stubs),)))
        self.stubs, self.ahead = self.ahead, None
        self.last = len(self.stubs) < _PAGE
        self.records, self.unreadable = [], []
        keys = [stub.key for stub in self.stubs]
        if not keys:
            return
        try:
            self.records = yield from self._get(partition, keys)
        except Corrupt:
            # One of them does not open and spoils the answer: ask for each by itself.
            self.records = []
            for key in keys:
                try:
                    self.records += yield from self._get(partition, [key])
                except Corrupt as error:
                    self.unreadable.append((key, str(error)))

    def _get(self, partition: Partition, keys: list[Key]) -> Program[list[Record]]:
        answers = yield from ask(Fetch(partition, tuple(Get(self.kind, key) for key in keys)))
        return [record for answer in answers for record in answer]


def start(partition: Partition, kinds: Sequence[Kind]) -> Program[list[Walk]]:
    """Begin a walk over each of the kinds. One request sees which of them have records at all."""
    pages = yield from ask(Fetch(partition, tuple(_page(kind, ()) for kind in kinds)))
    return [Walk(kind, ahead=page) for kind, page in zip(kinds, pages, strict=True)]


def _page(kind: Kind, before: tuple[Record, ...]) -> Range:
    return Range(kind, after=before[-1].key if before else None, limit=_PAGE, bodies=False, verify=False)
