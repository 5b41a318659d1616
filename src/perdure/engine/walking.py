"""Walking over all records of a kind, past those that do not open."""

from __future__ import annotations

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

    def turn(self, partition: Partition) -> Program[None]:
        """Read the next page."""
        after = self.stubs[-1].key if self.stubs else None
        items = (Range(self.kind, after=after, limit=_PAGE, bodies=False, verify=False),)
        (self.stubs,) = yield from ask(Fetch(partition, items))
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
