"""Names and matching of the store's namespaces, and expiry of items.

A namespace's name is its labels, each followed by a terminator below every character that a label can hold.
Names are therefore unique, sorted like the tuples of labels, and one namespace lies within another exactly
if its name starts with the other's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Literal, NamedTuple

from perdure.model.records import SERVER, SESSIONS, STORE, Partition, Record

Labels = tuple[str, ...]

_END = "\x01"
_ESCAPE = "\x02"
_AFTER = chr(ord(_END) + 1)
_LOW = re.compile("[\x00-\x02]")
_ESCAPED = re.compile(f"{_ESCAPE}(.)", re.DOTALL)
_LIFT = 2

MINUTE = 60_000_000
"""Microseconds in a minute: durations of the store are given in minutes and kept in microseconds."""

LAST = (1 << 53) - 1
"""Latest time that is kept, in the year 2255; a later expiry is cut to it."""


NO_ENTRY = b""
"""Stands for an item's entry in the search index if the item is to have none."""


class Condition(NamedTuple):
    """Path that a namespace has to start or end with; ``"*"`` stands for any one label."""

    kind: Literal["prefix", "suffix"]
    path: Labels


def name_of(labels: Labels) -> str:
    """Return the unique name of a namespace. Names sort like the tuples of labels, and a namespace's name
    begins with the names of those that it lies within."""
    return "".join(_LOW.sub(_lift, label) + _END for label in labels)


def labels_of(name: str) -> Labels:
    """Return the namespace that has a name made by ``name_of``."""
    return tuple(_ESCAPED.sub(_lower, part) for part in name.split(_END)[:-1])


def name_after(labels: Labels) -> str:
    """Return a text, no namespace's name, that sorts after the names of ``labels`` and all namespaces within,
    and before all later names."""
    return name_of(labels)[: -len(_END)] + _AFTER


def partition_of(tenant: str, labels: Labels) -> Partition:
    return Partition(tenant, name_of(labels), STORE)


def matches(labels: Labels, conditions: Iterable[Condition]) -> bool:
    """Return True if a namespace meets every condition; a namespace shorter than a condition's path does
    not."""
    return all(_matches(labels, condition) for condition in conditions)


def common_prefix(conditions: Iterable[Condition]) -> Labels:
    """Return the longest run of labels that every matching namespace is known to start with."""
    best: Labels = ()
    for condition in conditions:
        if condition.kind == "prefix":
            known = tuple(takewhile(lambda label: label != "*", condition.path))
            best = max(best, known, key=len)
    return best


class Write(NamedTuple):
    """An item to put, or without a body to delete, at the time ``at``.

    ``version`` is unique to this write: a check for it holds for this write and no later one, even if the
    item is deleted in between. ``entry`` is the item's entry in the search index, or ``NO_ENTRY`` to remove
    the existing entry; ``None`` leaves the existing entry, which a search passes over once the item has
    another value.
    """

    key: str
    body: bytes | None
    at: int
    version: int
    ttl: int | None = None
    entry: bytes | None = None


def span(minutes: float, what: str = "a ttl") -> int:
    """Return a duration in microseconds; raises ``ValueError`` unless it is above 0 and finite, and
    ``TypeError`` unless it is a number. ``what`` names the argument."""
    try:
        is_one = not isinstance(minutes, bool) and 0 < minutes < float("inf")
    except TypeError:
        raise TypeError(f"{what} is a number of minutes, not {minutes!r}") from None
    if not is_one:
        raise ValueError(f"{what} is a number of minutes above 0, not {minutes!r}")
    # The product of a finite number of minutes may be infinite.
    return round(min(LAST, max(1, minutes * MINUTE)))


def is_over(record: Record, now: int) -> bool:
    """Return True if the item has expired, although its record may still be stored."""
    expires_at: int | None = record.fields["expires_at"]
    return expires_at is not None and expires_at <= now


def expiry(ttl: int | None, now: int) -> int | None:
    """Return the expiry of an item with this ttl that was written or read now."""
    if ttl is None:
        return None
    return min(LAST, now + ttl)


def postpone_expiry(record: Record, now: int) -> int | None:
    """Return the new expiry of an item that is read now, ``None`` if it is not later than the stored one."""
    new_expiry = expiry(record.fields["ttl"], now)
    stored_expiry: int | None = record.fields["expires_at"]
    if new_expiry is not None and stored_expiry is not None and new_expiry > stored_expiry:
        return new_expiry
    return None


def _matches(labels: Labels, condition: Condition) -> bool:
    size = len(condition.path)
    if size > len(labels):
        return False
    part: Sequence[str] = labels[:size]
    if condition.kind == "suffix":
        part = labels[len(labels) - size :]
    return all(wanted in ("*", label) for label, wanted in zip(part, condition.path, strict=True))


def _lift(low: re.Match[str]) -> str:
    return _ESCAPE + chr(ord(low[0]) + _LIFT)


def _lower(escaped: re.Match[str]) -> str:
    return chr(ord(escaped[1]) - _LIFT)


def describe_partition(partition: Partition) -> str:
    """Return a partition's description for errors."""
    if partition.space == STORE:
        return f"store namespace {labels_of(partition.thread)!r}"
    if partition.space == SERVER:
        return f"what the server keeps as {partition.thread!r}"
    if partition.space == SESSIONS:
        return f"history of session {partition.thread!r}"
    return f"thread {partition.thread!r}"
