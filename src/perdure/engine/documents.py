"""Documents: plain data under a name in a collection, replaced as a whole by compare-and-set.

Callers choose the collections and define their contents. Times are microseconds since the epoch. ``fresh`` is
a number that was never used before, like the first version of a new thread.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from perdure.engine.requests import commit_for, expect_unchanged, read_record, try_commit
from perdure.engine.transact import retry_attempt
from perdure.errors import Corrupt
from perdure.model.ops import (
    Check,
    Commit,
    Committed,
    Delete,
    Expect,
    Expectation,
    Fetch,
    Get,
    Op,
    Put,
    Range,
)
from perdure.model.program import Program, ask
from perdure.model.record_versions import successor
from perdure.model.records import DOCUMENT, OF_THREAD, Partition, Record
from perdure.model.runs.messages import decode_object, encode


class Document(NamedTuple):
    """A document as it was read.

    ``version`` is the version that a change has to expect. ``fault`` is the reason why a document in a
    listing has no body.
    """

    name: str
    body: Mapping[str, Any]
    updated_at: int
    version: int
    fault: Corrupt | None = None

    @classmethod
    def read(cls, record: Record) -> Document:
        """Decode the document of a record; raises ``Corrupt`` if its body is not what was stored."""
        return cls(record.key[1], decode_object(record), record.fields["updated_at"], record.version)


Change = Callable[[Document | None], Mapping[str, Any] | None]
"""Function from a document, or its absence, to its new body; ``None`` leaves it as it is. It may be called
more than once, each time with the latest document."""


def get(partition: Partition, collection: str, name: str) -> Program[Document | None]:
    """Return the document of a name, ``None`` if there is none."""
    record = yield from read_record(partition, DOCUMENT, (collection, name))
    return record and Document.read(record)


def put(
    partition: Partition,
    collection: str,
    name: str,
    body: Mapping[str, Any],
    now: int,
    expect: Expectation,
    *,
    fresh: int,
) -> Program[Document | None]:
    """Store a document by compare-and-set.

    A new document starts at the version ``fresh``, and each replacement of a known version has a successor.
    Therefore a caller that has read a document cannot overwrite a later one of the same name. If ``expect``
    names no version, the present document need not be readable, and its replacement starts at ``fresh``.

    Returns:
        The document as it is stored, ``None`` if the expectation does not hold.

    Raises:
        Unserialisable: the body is not plain data.
        TooLarge: the body exceeds the limit.
    """
    write = plan_put(collection, name, body, now, expect, fresh)
    return (yield from commit_for(partition, (write,), _to_document(write)))


def plan_create(
    collection: str, name: str, body: Mapping[str, Any], now: int, fresh: int
) -> tuple[Put, Document]:
    """Return the operation that creates a document unless it exists, for a commit with other operations, and
    the document that it stores. Raises the errors of ``put``."""
    write = plan_put(collection, name, body, now, Expect.ABSENT, fresh)
    return write, _to_document(write)


def plan_replace(collection: str, before: Document, body: Mapping[str, Any], now: int) -> Put:
    """Return the operation that replaces a document unless it was changed, for a commit with other
    operations. Raises the errors of ``put``."""
    return plan_put(collection, before.name, body, now, before.version, before.version)


def plan_put(
    collection: str, name: str, body: Mapping[str, Any], now: int, expect: Expectation, fresh: int
) -> Put:
    """Return the operation of ``put``, for a commit with other operations."""
    stored = encode(dict(body), "document")
    if isinstance(expect, int):
        fresh = successor(expect, fresh, now)
    return Put(DOCUMENT, (collection, name), {"updated_at": now}, stored, expect, fresh)


def _to_document(write: Put) -> Document:
    # The body is decoded from the stored bytes, so that it equals what the next reader gets.
    return Document(write.key[1], json.loads(write.body), write.fields["updated_at"], write.version)


def change(
    partition: Partition,
    collection: str,
    name: str,
    change: Change,
    now: int,
    fresh: int,
    *,
    in_thread: bool = False,
    beside: Callable[[Document | None], Sequence[Op]] = lambda before: (),
) -> Program[Document | None]:
    """Read a document, compute its new body and store it, again after each conflict; return the new document.

    With ``in_thread`` the document is part of a thread: if clients do not, or no longer, know the thread,
    nothing is stored and the answer is ``None``. ``beside`` returns operations for the same commit, from the
    document as it is before.

    Raises the errors of ``put``, and ``Contention`` if others keep changing it.
    """
    checks = (Check(DOCUMENT, OF_THREAD, Expect.PRESENT),) * in_thread

    def load() -> Program[tuple[Document | None]]:
        return ((yield from get(partition, collection, name)),)

    def attempt(view: tuple[Document | None]) -> Program[tuple[Document | None] | None]:
        (before,) = view
        body = change(before)
        if body is None:
            return view
        write = plan_put(collection, name, body, now, expect_unchanged(before), fresh)
        outcome = yield from ask(Commit(partition, (*checks, write, *beside(before))))
        if isinstance(outcome, Committed):
            return (_to_document(write),)
        if in_thread and (outcome.kind, outcome.key) == (DOCUMENT, OF_THREAD):
            return (None,)
        return None

    (document,) = yield from retry_attempt(partition, None, load, attempt)
    return document


def remove(
    partition: Partition, collection: str, name: str, expect: Expectation = Expect.PRESENT
) -> Program[bool]:
    """Remove a document. Return False if there is none, or if it has another version than expected."""
    return (yield from try_commit(partition, (Delete(DOCUMENT, (collection, name), expect),)))


def list_newest(partition: Partition, collection: str, limit: int) -> Program[tuple[Document, ...]]:
    """Return the documents of a collection, at most ``limit``, latest change first.

    Documents of the same time are in no particular order. An unreadable document has an empty body and a
    ``fault``.
    """
    item = Range(DOCUMENT, (collection,), "updated_at", reverse=True, limit=limit)
    try:
        (found,) = yield from ask(Fetch(partition, (item,)))
    except Corrupt:
        # One record that cannot be decrypted fails the whole request: read each by itself.
        (stubs,) = yield from ask(Fetch(partition, (item._replace(bodies=False),)))
        return (yield from _read_each(partition, stubs))
    return tuple(map(_read_or_fault, found))


def get_many(partition: Partition, collection: str, names: Sequence[str]) -> Program[tuple[Document, ...]]:
    """Return the named documents that exist. An unreadable one has an empty body and a ``fault``."""
    gets = tuple(Get(DOCUMENT, (collection, name)) for name in names)
    if not gets:
        return ()
    try:
        found = yield from ask(Fetch(partition, gets))
    except Corrupt:
        stubs = tuple(Range(DOCUMENT, get.key, limit=1, bodies=False) for get in gets)
        present = yield from ask(Fetch(partition, stubs))
        return (yield from _read_each(partition, [stub for answer in present for stub in answer]))
    return tuple(_read_or_fault(record) for answer in found for record in answer)


def _read_each(partition: Partition, stubs: Iterable[Record]) -> Program[tuple[Document, ...]]:
    out: list[Document] = []
    for stub in stubs:
        try:
            (found,) = yield from ask(Fetch(partition, (Get(DOCUMENT, stub.key),)))
        except Corrupt as error:
            out.append(Document(stub.key[1], {}, stub.fields["updated_at"], stub.version, error))
        else:
            out += map(_read_or_fault, found)
    return tuple(out)


def _read_or_fault(record: Record) -> Document:
    try:
        return Document.read(record)
    except Corrupt as error:
        return Document(record.key[1], {}, record.fields["updated_at"], record.version, error)
