"""Kinds of stored records, with their keys and fields.

A partition is one thread of one tenant, one namespace of its store, or one part of a server's data for it;
every record belongs to exactly one. The kinds are declared here once; a driver derives its tables, keys and
statements from the declarations and knows no kind by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

THREADS = "thread"
STORE = "store"
SERVER = "server"
SESSIONS = "session"
SPACES = (THREADS, STORE, SERVER, SESSIONS)
"""Spaces of the partitions of a database."""

INTERNAL = "perdure.memory:"
"""Beginning of the names of threads that belong to the runtime itself; listings for clients omit them."""
INTERNAL_END = "perdure.memory;"
"""First name after all of those."""
OF_ITEMS = (STORE, SESSIONS)
"""Spaces whose partitions consist of items."""


class Partition(NamedTuple):
    """Unit of atomicity and isolation: one thread of one tenant.

    In the space ``STORE`` it is one namespace of the tenant's store, whose encoded path is in ``thread``; in
    the space ``SERVER`` one part of a server's data for the tenant, whose name is there; in the space
    ``SESSIONS`` the history of one session, whose id is there.
    """

    tenant: str
    thread: str
    space: str = THREADS


@dataclass(frozen=True, slots=True)
class Column:
    """A named scalar: ``kind`` is ``"text"``, ``"integer"`` or ``"bytes"``."""

    name: str
    kind: str
    nullable: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """A declared kind of record. Kinds are compared by identity: there is one object for each.

    Attributes:
        key: columns that order and name records within a partition.
        fields: further columns that are never encrypted.
        body: the record also has bytes, the only place for anything a user could have typed.
        versioned: records carry an integer that a commit may expect.
        by: fields by which the records of a key prefix can be ordered, instead of by the key.
        compact: records are small and are stored inside their key's index.
        grows: integer field that a rewrite of the record never lowers.
        index: field, text or an integer, by which records are found across partitions.
        expires: ``index`` is a time in microseconds after which the record counts as absent.
        compressed: bodies may be stored compressed: a driver compresses them when it writes, in an OS thread
            of its own if it has any, and returns them as they are stored.
    """

    name: str
    key: tuple[Column, ...]
    fields: tuple[Column, ...] = ()
    body: bool = False
    versioned: bool = False
    by: tuple[str, ...] = ()
    compact: bool = True
    grows: str | None = None
    index: str | None = None
    expires: bool = False
    compressed: bool = False

    def columns(self) -> tuple[str, ...]:
        """Return key columns, then fields, then version and body if the kind has them."""
        names = [c.name for c in (*self.key, *self.fields)]
        if self.versioned:
            names.append("version")
        if self.body:
            names.append("body")
        return tuple(names)


def _declare(declared: str) -> tuple[Column, ...]:
    """Return the columns of a declaration, e.g. ``"seq integer, run_id text null"``."""
    parts = [column.split() for column in declared.split(",")]
    return tuple(Column(name, kind, nullable=bool(null)) for name, kind, *null in parts)


def _declare_chunk_kind(name: str, key: str) -> Kind:
    """Return a kind of records that hold chunks. Storing a chunk again can only raise its generation."""
    return Kind(
        name,
        _declare(key),
        fields=_declare("generation integer"),
        body=True,
        compact=False,
        grows="generation",
        compressed=True,
    )


HEAD = Kind(
    "head", key=_declare("namespace text"), fields=_declare("checkpoint_id text, seq integer"), versioned=True
)
"""Pointer to the latest checkpoint of a namespace, moved by compare-and-set. It alone decides which one is
the latest, never the largest id."""

GC = Kind("gc", key=(), fields=(), versioned=True)
"""Collection generation: every put checks it, every collection raises it."""

EPOCH = Kind("epoch", key=(), fields=_declare("open_run text null"), versioned=True)
"""Fencing token of the thread: the version is the epoch, ``open_run`` the run that holds it."""

CHECKPOINT = Kind(
    "checkpoint",
    key=_declare("namespace text, checkpoint_id text"),
    fields=_declare(
        "seq integer, parent_id text null, run_id text null, source text null, step integer null"
    ),
    body=True,
    by=("seq",),
    compact=False,
    index="run_id",
)
"""Checkpoint: its place in the tree is in the fields, everything else in the body."""

CHUNK = _declare_chunk_kind("chunk", "digest bytes")
"""Immutable bytes named by their digest, scoped to the thread. Small chunks that are not
in a pack yet (``perdure.model.values.packs``)."""

BLOB = _declare_chunk_kind("blob", "digest bytes")
"""Chunk that is too large for a pack."""

PACK = _declare_chunk_kind("pack", "block integer, digest bytes")
"""Small chunks of a thread in one record (``perdure.model.values.packs``)."""

WRITE = Kind(
    "write",
    key=_declare("namespace text, checkpoint_id text, task_id text, idx integer"),
    fields=_declare("channel text, task_path text, nonce text"),
    body=True,
    versioned=True,
)
"""Pending writes of a task on a checkpoint. The checkpoint need not be stored yet."""

TAG = Kind(
    "tag", key=_declare("name text"), fields=_declare("namespace text, checkpoint_id text"), versioned=True
)
"""Named anchor: the checkpoint that it points at is never pruned."""

SEAL = Kind("seal", key=_declare("name text"), body=True, versioned=True)
"""Known text, encrypted, in the reserved partition, by which a key is verified when the database is opened.
In a thread's partition it is the claim of a transfer to that thread (``engine.threads.transfer_claim``), or
the account of what an import has stored (``engine.transfer.importing``)."""

ITEM = Kind(
    "item",
    key=_declare("key text"),
    fields=_declare("created_at integer, updated_at integer, ttl integer null, expires_at integer null"),
    body=True,
    versioned=True,
    compact=False,
    index="expires_at",
    expires=True,
)
"""Item of the store. Times are microseconds since the epoch, ``ttl`` is a duration in microseconds. An item
past its ``expires_at`` is gone for every reader, whether or not its record is still stored."""

LANE = Kind(
    "lane",
    key=_declare("name text"),
    fields=_declare(
        "due_at integer null, last integer, bound integer, since integer null, "
        "ready_at integer null, run_id text null, owner text null, epoch integer, "
        "lease_until integer null, retry_at integer null, waiting text null, stop text null"
    ),
    versioned=True,
    index="due_at",
)
"""State of a thread's queue, e.g. its inbox or outbox (``perdure.model.runs.queue``). ``due_at`` is the time
at which a worker has to look at it, null if there is nothing to do."""

INBOX = Kind(
    "inbox",
    key=_declare("seq integer"),
    fields=_declare("graph text, channel text, mode text, dedupe bytes, accepted_at integer"),
    body=True,
    compact=False,
)
"""Accepted message. The run that covers its number has its result. Before that run the message can be
withdrawn; nothing else changes its record."""

DEDUPE = Kind("dedupe", key=_declare("digest bytes"), fields=_declare("seq integer"))
"""Number of the message that was accepted under a dedupe key. A postponed message has no number yet:
``seq`` is then minus the time at which it is due, by which the message's document is found."""

RUN = Kind(
    "run",
    key=_declare("run_id text"),
    fields=_declare(
        "first integer, last integer, state text, graph text, channel text, epoch integer, "
        "attempts integer, base text null, started_at integer, updated_at integer"
    ),
    body=True,
    versioned=True,
    by=("first",),
)
"""Run: one invocation of a graph for the messages ``first`` to ``last``, however often it is attempted.
The body is its result: an error, or the interrupts that it waits on."""

OUTBOX = Kind(
    "outbox",
    key=_declare("seq integer"),
    fields=_declare(
        "run_id text, ord integer, channel text, state text, attempts integer, "
        "provider_id text null, created_at integer"
    ),
    body=True,
    versioned=True,
    compact=False,
)
"""Reply to be delivered to a channel."""

EFFECT = Kind("effect", key=_declare("run_id text, task_id text, idx integer"), body=True)
"""Result of a side effect within a task, so that the effect is not repeated. A second
record, under the same key with an empty ``run_id``, has the id of the run that recorded the result."""

DOCUMENT = Kind(
    "document",
    key=_declare("collection text, name text"),
    fields=_declare("updated_at integer"),
    body=True,
    versioned=True,
    by=("updated_at",),
    compact=False,
)
"""Named data that is replaced as a whole by compare-and-set. Within its collection documents are found by
name, or newest first. ``updated_at`` is in microseconds since the epoch."""

OF_THREAD = ("thread", "")
"""Key of the document in a thread's own partition that describes the thread to its clients."""

EDITED = ("edited", "")
"""Key of the document that records an edit or a fork of a thread's state after a run."""

LISTED = ("threads", SERVER)
"""Name and space of the partition with a server's index of a tenant's threads. Its documents are
copies of those of the threads (``OF_THREAD``), under the threads' names in the collection ``threads``."""

CHAT_SESSIONS = "chat:"
"""Start of the names of the partitions, in the space ``SERVER``, with the sessions of chats. The address of
the chat follows, with which the names of its threads start."""

EXPIRING = "expiring"
"""Collection in the partition ``LISTED``: an empty document, under the thread's name, for each thread with a
time to live of its own. Its ``updated_at`` is the time at which the thread expires."""

REQUESTS = "requests"
"""Collection in a thread: an empty document, under the run's id, for each run that further requests follow
whose clients end it by disconnecting. Its version is the number of the latest of them."""

EVENT = Kind("event", key=_declare("seq integer"), fields=_declare("run_id text"), body=True, compact=False)
"""Events of a run for its followers, several in one record under the number of the last. They are
provisional: the durable state is in checkpoints."""

KINDS: tuple[Kind, ...] = (
    HEAD,
    GC,
    EPOCH,
    CHECKPOINT,
    CHUNK,
    BLOB,
    PACK,
    WRITE,
    TAG,
    SEAL,
    ITEM,
    LANE,
    INBOX,
    DEDUPE,
    RUN,
    OUTBOX,
    EFFECT,
    DOCUMENT,
    EVENT,
)

INDEXED: Mapping[str, Kind] = MappingProxyType({"runs": CHECKPOINT, "expired": ITEM, "due": LANE})
"""Kinds with an indexed field, by the name of the index."""

RESERVED = Partition("", "")
"""Partition of records that belong to the database and to no thread; no listing contains it."""

Key = tuple[Any, ...]


NO_FIELDS: Mapping[str, Any] = MappingProxyType({})


class Record(NamedTuple):
    """A stored record as a driver returns it."""

    kind: Kind
    key: Key
    fields: Mapping[str, Any] = NO_FIELDS
    version: int = 0
    body: bytes = b""
