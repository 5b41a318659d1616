"""Scans over all records of some kinds that continue past unreadable ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from perdure.engine.requests import read_records
from perdure.errors import Corrupt
from perdure.model.ops import Fetch, Range
from perdure.model.program import Program, ask
from perdure.model.records import Key, Kind, Partition, Record

_PAGE = 64


_MISNAMED = "its key is not what was written, and nothing finds it"
_TYPES: dict[str, type] = {"text": str, "integer": int, "bytes": bytes}


@dataclass(slots=True)
class Walk:
    """A scan over the records of a kind, page by page.

    Attributes:
        stubs: all records of the page whose keys have the right types, without their bodies and not verified.
        records: the readable records of the page.
        unreadable: keys of the other records, with the reason; a key with wrong types is converted to text.
        last: this is the last page.
    """

    kind: Kind
    stubs: tuple[Record, ...] = ()
    records: list[Record] = field(default_factory=list)
    unreadable: list[tuple[Key, str]] = field(default_factory=list)
    is_last: bool = False
    ahead: tuple[Record, ...] | None = None
    """Stubs of the next page, if they were read already."""
    _end: Key | None = None

    def read_next_page(self, partition: Partition) -> Program[None]:
        """Read the next page."""
        if self.ahead is None:
            (self.ahead,) = yield from ask(Fetch(partition, (_page(self.kind, self._end),)))
        found, self.ahead = self.ahead, None
        self.is_last = len(found) < _PAGE
        if found:
            self._end = found[-1].key
        self.stubs = tuple(stub for stub in found if self._has_right_types(stub))
        self.records = []
        self.unreadable = [
            (
                tuple(map(_format, stub.key)),
                f"{self.kind.name} {'/'.join(map(_format, stub.key))}: {_MISNAMED}",
            )
            for stub in found
            if not self._has_right_types(stub)
        ]
        keys = [stub.key for stub in self.stubs]
        try:
            self.records = yield from read_records(partition, self.kind, keys)
        except Corrupt:
            # An unreadable record fails the whole request: ask for each by itself.
            self.records = []
            for key in keys:
                try:
                    self.records += yield from read_records(partition, self.kind, [key])
                except Corrupt as error:
                    self.unreadable.append((key, str(error)))

    def _has_right_types(self, stub: Record) -> bool:
        parts = zip(self.kind.key, stub.key, strict=True)
        return all(isinstance(part, _TYPES[column.kind]) for column, part in parts)


def start(partition: Partition, kinds: Sequence[Kind]) -> Program[list[Walk]]:
    """Start a scan over each of the kinds. One request reads the first page of all."""
    pages = yield from ask(Fetch(partition, tuple(_page(kind, None) for kind in kinds)))
    return [Walk(kind, ahead=page) for kind, page in zip(kinds, pages, strict=True)]


def _page(kind: Kind, after: Key | None) -> Range:
    return Range(kind, after=after, limit=_PAGE, bodies=False, verify=False)


def _format(part: object) -> str:
    """Format a part of a key."""
    if isinstance(part, str):
        return part
    return repr(part)
