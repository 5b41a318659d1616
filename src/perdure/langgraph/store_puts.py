"""The puts of a batch to the store, by namespace: the last one to each key, with its value packed.

Values are packed before texts are embedded, and the texts are those of what was packed: an application may
change a value while a model embeds it. A batch may have thousands of puts. Until they are written no
object is made for each, as the garbage collector scans living objects again and again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from langgraph.store.base import PutOp

from perdure.langgraph.search.index import Embedded, IndexedTexts, SearchIndex
from perdure.model.store_items import NO_ENTRY, Labels, Write, span
from perdure.model.values.json_values import pack, unpack


class ItemName(NamedTuple):
    """Describes an item in errors. The text is made only for an error, as it costs more than most checks."""

    key: str
    labels: Labels
    part: str = ""

    def __str__(self) -> str:
        return f"item {self.key!r} of {self.labels!r}{self.part}"


class Puts:
    """The last put to each key of one namespace, in the order and at the places of the first puts to the
    keys."""

    __slots__ = ("bodies", "indexed", "ops", "places", "spans")

    def __init__(self) -> None:
        self.ops: dict[str, PutOp] = {}
        self.places: dict[str, int] = {}
        self.bodies: list[bytes | None] = []
        self.spans: dict[str, int] = {}
        self.indexed: dict[str, IndexedTexts] = {}

    def writes(
        self, times: Sequence[int], versions: Iterator[int], index: SearchIndex | None, embedded: Embedded
    ) -> Iterator[Write]:
        """Yield the writes, each with a version of its own.

        Args:
            times: The times of all puts of the batch.
            versions: Numbers that are used once.
            index: The index of the store, if it has one.
            embedded: The vectors of the texts of the puts.
        """
        for (key, place), body in zip(self.places.items(), self.bodies, strict=True):
            entry = None
            if index is not None and body is not None:
                entry = index.entry(body, self.indexed[key], embedded)
            elif body is not None and self.ops[key].index is False:
                # A store with an index may have put this item before.
                entry = NO_ENTRY
            yield Write(key, body, times[place], next(versions), self.spans.get(key), entry)


def find_last_puts(ops: Iterable[PutOp], index: SearchIndex | None) -> dict[Labels, Puts]:
    """Return the last put to each key, by namespace. Raises the error of a value or a time to live that
    is refused.

    Args:
        ops: The puts in their order.
        index: The index of the store, if it has one.
    """
    by_labels: dict[Labels, Puts] = {}
    for place, op in enumerate(ops):
        labels = tuple(op.namespace)
        puts = by_labels.get(labels)
        if puts is None:
            puts = by_labels[labels] = Puts()
        puts.ops[op.key] = op
        puts.places.setdefault(op.key, place)
    for labels, puts in by_labels.items():
        for key, op in puts.ops.items():
            name = ItemName(key, labels, ": value")
            body = None if op.value is None else pack(op.value, name)
            puts.bodies.append(body)
            if op.ttl is not None:
                puts.spans[key] = span(op.ttl)
            if body is not None and index is not None:
                puts.indexed[key] = index.texts_of(op, unpack(body, name))
    return by_labels
