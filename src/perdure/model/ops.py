"""Requests and operations of the storage port, as values.

Requests (``Fetch``, ``Stage``, ``Commit``, ``Find``, ``Drop``, and ``Now`` for the clock) are effects; the
operations inside a commit are plain data. A driver executes them and holds no policy.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from operator import itemgetter
from typing import Any, ClassVar, Literal, NamedTuple

from perdure.model.program import Effect
from perdure.model.records import CHECKPOINT, ITEM, LANE, NO_FIELDS, THREADS, Key, Kind, Partition, Record


class Expect(Enum):
    """Expectation of a record without a version."""

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
    """Write one record. ``version`` is the version that the record has afterwards.

    ``keep`` names a field whose value in ``fields`` is the current time. If a record is overwritten, the
    field keeps the stored value, unless the stored record has expired by that time (its kind ``expires``).
    Only a driver for which ``Capabilities.keeps_fields`` is true takes a put with ``keep``.
    """

    kind: Kind
    key: Key
    fields: Mapping[str, Any] = NO_FIELDS
    body: bytes = b""
    expect: Expectation = Expect.ANY
    version: int = 0
    keep: str | None = None


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplicationStatement:
    """A statement on the application's own tables, in the form that its driver executes.

    Attributes:
        text: The text that the application gave, for errors; it has no values of parameters.
        sql: The text that is executed.
        values: The values of its parameters.
        types: Numbers of the values' types, if the driver sends these.
        formats: Numbers of the values' formats, if the driver sends these.
        size: Bytes of text and values.
    """

    text: str
    sql: str
    values: Any = field(repr=False)
    types: tuple[int, ...] = ()
    formats: tuple[int, ...] = ()
    size: int


_get_place = itemgetter(0, 1)
"""Kind and key of an operation."""


@dataclass(frozen=True, slots=True)
class Committed:
    """Answer to a commit: every operation is durable."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Answer to a commit: an expectation did not hold, and nothing was written. ``kind`` and ``key`` name
    the first that failed."""

    kind: Kind
    key: Key


@dataclass(frozen=True, slots=True)
class Fetch(Effect[tuple[tuple[Record, ...], ...]]):
    """Read one consistent state of a partition, with every acknowledged write. The answer has a tuple for
    each item, in order."""

    partition: Partition
    items: tuple[Get | Range, ...]


@dataclass(frozen=True, slots=True)
class Stage(Effect[None]):
    """Store chunks that do not fit a commit: idempotent, need not be atomic, harmless if orphaned."""

    partition: Partition
    puts: tuple[Put, ...]

    @property
    def ops(self) -> tuple[Put, ...]:
        """The puts, under the name that a ``Commit`` has for its operations."""
        return self.puts


@dataclass(frozen=True, slots=True)
class Commit(Effect[Committed | Refused]):
    """Write to one partition, all or nothing, durable before the answer. At most one operation a key.

    ``statements`` are executed after the operations, in order and in the same transaction, by a driver with
    ``Capabilities.statements``; they are not executed if an expectation fails. If a statement fails,
    ``StatementRefused`` is raised, and the commit has no effect. In a commit with statements the expectations
    have to be such that the commit is refused if it was applied before.
    """

    partition: Partition
    ops: tuple[Op, ...]
    statements: tuple[ApplicationStatement, ...] = ()

    def __post_init__(self) -> None:
        if len(set(map(_get_place, self.ops))) != len(self.ops):
            raise ValueError("a commit holds at most one operation a key")


class ListedThread(NamedTuple):
    """A thread's row in the listing.

    Times are microseconds since 1970; ``status`` is ``unsure`` if it can only be found by reading the thread.
    ``serial`` orders threads of the same time. In a page that leaves out threads (``FindListed.copies``),
    ``number`` is the thread's place, counted from 1 with those left out; in any other page it is 0.
    """

    created_at: int
    updated_at: int
    status: str
    serial: int = 0
    number: int = 0


class ListedPlace(NamedTuple):
    """Place of a thread in the listing: the time by which it is ordered, and its ``serial``."""

    time: int
    serial: int


class CopyCondition(NamedTuple):
    """Condition on a thread's copy in a server's index (``LISTED``). A copy violates it if it ends with
    ``ending`` and contains no text of one of the groups in ``holding``. An encrypted copy ends otherwise, so
    it never does."""

    ending: bytes
    holding: tuple[tuple[bytes, ...], ...]


class RankedItem(NamedTuple):
    """Place of a found item in the order of a query.

    Attributes:
        score: The cosine of the item's vector.
        content: Digest of the value that the vector was made for.
        is_whole: All vectors were compared, so that no item before this one is missing.
    """

    score: float
    content: bytes
    is_whole: bool


@dataclass(frozen=True, slots=True)
class IndexHit:
    """A hint from an index.

    Attributes:
        partition: The partition that was found.
        record: The record with its key and fields, from an index of records.
        listed: The thread's row in the listing, if there is one, from an index of threads.
        ranked: The item's rank, from an index of vectors.
    """

    partition: Partition
    record: Record | None = None
    listed: ListedThread | None = None
    ranked: RankedItem | None = None


class Bound(NamedTuple):
    """Lower bound of a field of an item's value if ``is_lower``, otherwise upper bound; inclusive.

    Text satisfies every bound that is a number, and a number violates every bound that is text. Texts are
    compared by code points. An absent field violates every bound. ``name`` consists of ASCII letters, digits
    and underscores.
    """

    name: str
    is_lower: bool
    limit: float | str


class ItemPlace(NamedTuple):
    """Place of an item in the order of ``FindItems``: by time descending, then by namespace and key."""

    updated_at: int
    thread: str
    key: str


@dataclass(frozen=True, slots=True)
class Find(Effect[tuple[IndexHit, ...]]):
    """Base of the reads across partitions, of one tenant or, with ``None``, of all.

    The answer is at most ``limit`` hints. A hint may be out of date, even its partition may be gone, so the
    commit that relies on it verifies it. A driver performs ``FindThreads`` and the subclasses of
    ``FindRecords``; its capabilities say which of the other requests it performs.
    """

    tenant: str | None
    limit: int = field(default=1000, kw_only=True)


@dataclass(frozen=True, slots=True)
class FindThreads(Find):
    """Find, in one space, the partitions whose name starts with ``prefix``, after the partition ``after`` in
    the order of tenant and name. ``prefix`` ends in an ASCII character. No other request orders partitions by
    their names."""

    space: str = THREADS
    prefix: str = ""
    after: Partition | None = None


@dataclass(frozen=True, slots=True)
class FindListed(Find):
    """Find a tenant's threads in the order of the time ``by``, without the runtime's own (``INTERNAL``): only
    those with ``status`` if it is given, and without the first ``skip``. Needs ``Capabilities.has_listing``.

    ``last`` is the end of the page before: only threads after it are found. A page has the next ``limit``
    threads. With ``copies`` it leaves out those whose copies violate that condition, except the last one.
    """

    status: str = ""
    by: Literal["updated_at", "created_at"] = "updated_at"
    reverse: bool = False
    skip: int = 0
    last: ListedPlace | None = None
    copies: CopyCondition | None = None

    def after(self, end: ListedThread) -> FindListed:
        """Return the request for the threads after one that was found."""
        return replace(self, skip=0, last=ListedPlace(getattr(end, self.by), end.serial))


class FindRecords(Find, ABC):
    """Base of the requests that find records of a kind by its indexed field, in the order of that field."""

    __slots__ = ()
    kind: ClassVar[Kind]

    @property
    @abstractmethod
    def span(self) -> tuple[Any, Any]:
        """The lowest value of the field, ``None`` for no such limit, and the highest."""


@dataclass(frozen=True, slots=True)
class FindRuns(FindRecords):
    """Find the checkpoints of a run, in any order."""

    kind = CHECKPOINT
    run_id: str

    @property
    def span(self) -> tuple[str, str]:
        return self.run_id, self.run_id


@dataclass(frozen=True, slots=True)
class FindDue(FindRecords):
    """Find the queue records whose ``due_at`` is at or below ``until`` and, if given, at or above ``since``,
    the earliest first. Only their key and ``due_at`` are promised."""

    kind = LANE
    until: int
    since: int | None = None

    @property
    def span(self) -> tuple[int | None, int]:
        return self.since, self.until


@dataclass(frozen=True, slots=True)
class FindExpired(FindRecords):
    """Find the store's items whose ``expires_at`` is at or below ``until``. A backend that removes them by
    itself finds none."""

    kind = ITEM
    until: int

    @property
    def span(self) -> tuple[None, int]:
        return None, self.until


@dataclass(frozen=True, slots=True)
class FindItems(Find):
    """Find the store's items with their bodies, last written first and without the first ``skip``, in the
    namespaces whose name starts with ``prefix``: those that have not expired at ``until`` and whose body
    contains a text of each group in ``holding``. Needs ``Capabilities.searches_items``.

    ``last`` is the end of the page before: only items after it are found. Items that violate one of the
    ``bounds`` may be found or left out, whichever is cheaper. A ``Range`` would have to read every item of a
    namespace to find a few.
    """

    prefix: str
    until: int
    holding: tuple[tuple[bytes, ...], ...] = ()
    bounds: tuple[Bound, ...] = ()
    skip: int = 0
    last: ItemPlace | None = None


@dataclass(frozen=True, slots=True)
class FindNearest(Find):
    """Find the store's items, with their bodies, that have a vector of one of the ``models``, the nearest to
    ``vector`` first, in the namespaces whose name starts with ``prefix``. An item with several vectors may be
    found several times. Without ``exact`` the nearest ones may be found approximately.

    Needs ``Capabilities.vector_dims`` of the length of the vector at least.

    Attributes:
        vector: 32-bit floats, little-endian.
        models: Digests of the embedding models whose vectors can be compared with it.
    """

    prefix: str
    until: int
    vector: bytes
    models: tuple[bytes, ...]
    exact: bool = False


@dataclass(frozen=True, slots=True)
class FindOutdated(Find):
    """Find the items, in the namespaces whose name starts with ``prefix``, whose entries in the search index
    are of none of the ``models``: the namespace once for each item. Performed by drivers with
    ``FindNearest``."""

    prefix: str
    models: tuple[bytes, ...]


def end_of(prefix: str) -> str:
    """Return the first name, in code points, after all that start with a prefix; "" for the empty prefix."""
    if prefix:
        return prefix[:-1] + chr(ord(prefix[-1]) + 1)
    return ""


@dataclass(frozen=True, slots=True)
class Now(Effect[int]):
    """Read of the database's clock, in microseconds since 1970, which all processes that use the database
    share. A backend without a clock of its own answers with its host's."""


@dataclass(frozen=True, slots=True)
class Drop(Effect[Committed | Refused]):
    """Remove a partition with everything in it. Without ``checks`` it may be repeated until it succeeds.

    With ``checks`` the partition is removed only if they hold, in one atomic step. A repetition after a lost
    answer may be ``Refused`` although the partition was removed, as the checked records are gone.

    With ``if_empty``, and without ``checks``, only the name of a partition that holds no records is removed,
    in one atomic step, where a backend keeps such names. A partition with records stays; the answer is the
    same.
    """

    partition: Partition
    checks: tuple[Check, ...] = ()
    if_empty: bool = False
