"""The puts of a batch to the store, by namespace: the last one to each key, with its value packed.

A batch may have thousands of puts. Until they are written there is no object for each, as the garbage
collector looks again and again at those that live.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from langgraph.store.base import PutOp

from perdure.langgraph.search.index import Embedded, SearchIndex
from perdure.model.json_values import pack
from perdure.model.store_items import Labels, Write, span


class ItemName(NamedTuple):
    """Describes an item in errors. It becomes text only for an error, as that costs more than most checks."""

    key: str
    labels: Labels
    part: str = ""

    def __str__(self) -> str:
        return f"item {self.key!r} of {self.labels!r}{self.part}"


class Puts:
    """The last puts to the keys of one namespace, in the order of the first ones and at their times."""

    __slots__ = ("bodies", "entries", "ops", "spans", "times")

    def __init__(self) -> None:
        self.ops: dict[str, PutOp] = {}
        self.times: dict[str, int] = {}
        self.bodies: list[bytes | None] = []
        self.spans: dict[str, int] = {}
        self.entries: dict[str, bytes] = {}

    def writes(self, versions: Iterator[int]) -> Iterator[Write]:
        """Yield the writes, each with a version of its own."""
        for (key, at), body in zip(self.times.items(), self.bodies, strict=True):
            yield Write(key, body, at, next(versions), self.spans.get(key), self.entries.get(key))


def last_puts(
    ops: Iterable[PutOp], times: Iterable[int], index: SearchIndex | None, embedded: Embedded
) -> dict[Labels, Puts]:
    """Return the last put to each key, by namespace. Raises what a value or a time to live is refused with.

    Args:
        ops: The puts in their order.
        times: Their times.
        index: The index of the store, if it has one.
        embedded: The vectors of the texts of the puts.
    """
    by_labels: dict[Labels, Puts] = {}
    for op, at in zip(ops, times, strict=True):
        labels = tuple(op.namespace)
        puts = by_labels.get(labels)
        if puts is None:
            puts = by_labels[labels] = Puts()
        puts.ops[op.key] = op
        puts.times.setdefault(op.key, at)
    for labels, puts in by_labels.items():
        for key, op in puts.ops.items():
            body = None if op.value is None else pack(op.value, ItemName(key, labels, ": value"))
            puts.bodies.append(body)
            if op.ttl is not None:
                puts.spans[key] = span(op.ttl)
            if body is not None and index is not None:
                puts.entries[key] = index.entry(op, body, embedded)
    return by_labels
