"""The verbs of the storage port, as values.

Requests (``Fetch``, ``Stage``, ``Commit``, ``Find``, ``Drop``, and ``Now`` for the clock) are effects; the
operations inside a commit are plain data. A driver executes them and holds no policy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal, NamedTuple

from perdure.model.program import Effect
from perdure.model.records import NO_FIELDS, THREADS, Key, Kind, Partition, Record


class Expect(Enum):
    """What a commit may demand of a record without naming its version."""

    ANY = "any"
    ABSENT = "absent"
    PRESENT = "present"


Expectation = Expect | int
"""``ANY``, ``ABSENT``, ``PRESENT``, or the exact version of a versioned record."""


class Get(NamedTuple):
    """Read one record by key."""

    kind: Kind
    key: Key


class Range(NamedTuple):
    """Read the records whose key starts with ``prefix``, ordered by the rest of the key or by ``by``.

    ``after`` continues past a value of the ordering (for ``by``: that field's value; otherwise the full
    key). ``bodies=False`` leaves bodies out. ``verify=False`` returns damaged records as well.
    """

    kind: Kind
    prefix: Key = ()
    by: str | None = None
    reverse: bool = False
    after: Any = None
    limit: int | None = None
    bodies: bool = True
    verify: bool = True


class Put(NamedTuple):
    """Write one record. ``version`` is the version that the record has afterwards."""

    kind: Kind
    key: Key
    fields: Mapping[str, Any] = NO_FIELDS
    body: bytes = b""
    expect: Expectation = Expect.ANY
    version: int = 0


class Delete(NamedTuple):
    """Remove one record; ``unchanged`` demands that these clear fields still have these values."""

    kind: Kind
    key: Key
    expect: Expectation = Expect.ANY
    unchanged: Mapping[str, Any] = NO_FIELDS


class Check(NamedTuple):
    """Demand a version, or absence, of a record that the commit does not write."""

    kind: Kind
    key: Key
    expect: Expectation


Op = Put | Delete | Check


@dataclass(frozen=True, slots=True)
class Committed:
    """Every operation of the commit is durable."""


@dataclass(frozen=True, slots=True)
class Refused:
    """An expectation did not hold; nothing was written. ``kind`` and ``key`` name the first that failed."""

    kind: Kind
    key: Key


@dataclass(frozen=True, slots=True)
class Fetch(Effect[tuple[tuple[Record, ...], ...]]):
    """Read from one partition, consistent and after every acknowledged write; one tuple an item, in order."""

    partition: Partition
    items: tuple[Get | Range, ...]


@dataclass(frozen=True, slots=True)
class Stage(Effect[None]):
    """Store chunks that do not fit a commit: idempotent, need not be atomic, harmless if orphaned."""

    partition: Partition
    puts: tuple[Put, ...]


@dataclass(frozen=True, slots=True)
class Commit(Effect[Committed | Refused]):
    """All or nothing in one partition; durable before it is answered. One operation a key."""

    partition: Partition
    ops: tuple[Op, ...]

    def __post_init__(self) -> None:
        if len({op[:2] for op in self.ops}) != len(self.ops):
            raise ValueError("a commit holds at most one operation a key")


class ListedThread(NamedTuple):
    """A thread's row in the listing. Times are microseconds since 1970; ``status`` is ``unsure`` where the
    thread has to be read for it."""

    created_at: int
    updated_at: int
    status: str


@dataclass(frozen=True, slots=True)
class IndexHit:
    """A hint from an index: a partition and, where the index is of records, the record's clear part; of
    threads also their rows in the listing, where there is one."""

    partition: Partition
    record: Record | None = None
    listed: ListedThread | None = None


class Bound(NamedTuple):
    """What a field of an item's value is not below, or, unless ``is_lower``, not above. Text keeps every
    bound that is a number; numbers break a bound that is text, and text is compared by code points. What is
    absent breaks every bound. ``name`` is made of ASCII letters, digits and underscores."""

    name: str
    is_lower: bool
    limit: float | str


class ItemPlace(NamedTuple):
    """The place of an item in the order of ``Find("items")``: by time downwards, by namespace and key."""

    updated_at: int
    thread: str
    key: str


@dataclass(frozen=True, slots=True)
class Find(Effect[tuple[IndexHit, ...]]):
    """The only read across partitions, and a hint that the next commit verifies.

    ``index`` is ``"threads"`` (the partitions of a ``space`` in order of tenant and name, a tenant's or
    everybody's, those whose name starts with ``prefix``, which ends in an ASCII character), ``"runs"``
    (checkpoints whose run id is ``value``), ``"expired"`` (store items whose ``expires_at`` is at or below
    ``until``; a backend that removes them by itself finds none) or ``"due"`` (lanes whose ``due_at`` is at or
    below ``until`` and, if it is given, at or above ``since``, those due longest first; of such a record only
    the key and ``due_at`` are promised). A partition may be found empty.

    ``"listed"``, where ``perdure.storage.port.has_listing``, finds a tenant's threads by the time ``by``,
    those with the status ``value`` if one is given, past the first ``skip``. No other verb orders
    partitions by anything but their names.

    ``"items"``, where ``perdure.storage.port.searches_items``, finds the store's items with their bodies, in
    the namespaces whose name starts with ``prefix``, those written last first and past the first ``skip``:
    those that are not over at ``until`` and whose body contains one of each of the ``holding``. ``last`` is
    where the page before ended: only what comes after it is found. Items that break one of the ``bounds`` may
    be found or left out, whichever is cheaper. Ranges would read every item of a namespace for the few that
    are asked for.
    """

    index: Literal["threads", "runs", "expired", "due", "listed", "items"]
    tenant: str | None
    value: str = ""
    after: Partition | None = None
    limit: int = 1000
    space: str = THREADS
    prefix: str = ""
    until: int = 0
    since: int | None = None
    by: Literal["updated_at", "created_at"] = "updated_at"
    reverse: bool = False
    skip: int = 0
    holding: tuple[tuple[bytes, ...], ...] = ()
    bounds: tuple[Bound, ...] = ()
    last: ItemPlace | None = None

    @property
    def prefix_end(self) -> str:
        """The first name, in code points, after all that start with the prefix."""
        return self.prefix[:-1] + chr(ord(self.prefix[-1]) + 1) if self.prefix else ""


@dataclass(frozen=True, slots=True)
class Now(Effect[int]):
    """The database's clock, in microseconds since 1970: every process that uses the database shares it,
    whatever its own clock says. A backend without a clock of its own answers with its host's."""


@dataclass(frozen=True, slots=True)
class Drop(Effect[Committed | Refused]):
    """Remove a partition with everything in it. Without ``checks`` it is repeatable until it succeeds.

    With them it is removed only if they hold, in one step with the judgement: no commit comes in between. If
    the answer was lost on the way, a removal that was carried out may be answered ``Refused``, as nothing
    that was checked is there any more.
    """

    partition: Partition
    checks: tuple[Check, ...] = ()
