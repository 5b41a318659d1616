"""Decides which items of a request one query can read: those whose records follow each other in the table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from perdure.model.ops import Get, Range
from perdure.model.records import CHECKPOINT, WRITE
from perdure.storage.dynamodb import items, places
from perdure.storage.evaluation import get_prefix
from perdure.storage.kv import keys as layout

_LARGE = 256
"""The least limit of a range that is read together with its neighbours. Such a query reads up to a megabyte
at once, too much for a range of a few records."""


class Span(NamedTuple):
    """An item of a request whose records follow each other in the table, from the sort key ``start`` on."""

    item: Get | Range
    start: bytes

    @property
    def limit(self) -> int | None:
        if isinstance(self.item, Range):
            return self.item.limit
        return None

    def holds(self, place: bytes) -> bool:
        """Return True if the record at a place belongs to the span."""
        if isinstance(self.item, Get):
            return place == self.start
        return place.startswith(self.start) and places.record_at(place)[0] is self.item.kind

    def ends_before(self, place: bytes) -> bool:
        """Return True if all records of the span precede a place."""
        return place > self.start and (isinstance(self.item, Get) or place >= layout.successor(self.start))

    def precedes(self, other: Span) -> bool:
        """Return True if the records of another span follow those of this one, probably with nothing in
        between."""
        item = self.item
        if isinstance(item, Get):
            return item.kind is CHECKPOINT and other.item.kind is WRITE and other.start == self.start
        return places.is_followed(item.kind, item.prefix, other.start)


def group_neighbours(wanted: Sequence[Get | Range]) -> list[list[Span]]:
    """Return the items of a request in groups that one query can read, in order; most groups have one
    item."""
    alone: list[list[Span]] = []
    together: list[list[Span]] = []
    spans = [Span(item, places.find_place_prefixes(item.kind, get_prefix(item))[0]) for item in wanted]
    for span in sorted(spans, key=lambda span: (span.start, span.item.kind is WRITE)):
        if not _wants_all(span):
            alone.append([span])
        elif together and together[-1][-1].precedes(span):
            together[-1].append(span)
        else:
            together.append([span])
    return alone + together


def _wants_all(span: Span) -> bool:
    """Return True if an item wants all its records, with their bodies, in the order of their places."""
    item = span.item
    if isinstance(item, Get):
        return True
    if len(span.start) > items.KEPT or item.by is not None or item.after is not None or not item.bodies:
        return False
    if item.limit is not None and (item.limit < _LARGE or item.kind.expires):
        # Of records that expire, fewer may be returned than were read, and the caller takes a short page for
        # the last one.
        return False
    return item.reverse == places.is_mirrored(item.kind)
