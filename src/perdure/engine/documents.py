"""Documents: plain data under a name in a collection, replaced as a whole by compare-and-set.

Collections and contents are the callers'. Times are microseconds since the epoch; ``fresh`` is a number that
was never used before, as for the versions of a new thread.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from perdure.engine.transact import retry_attempt
from perdure.errors import Corrupt
from perdure.model.ops import Check, Commit, Committed, Delete, Expect, Expectation, Fetch, Get, Put, Range
from perdure.model.program import Program, ask
from perdure.model.records import DOCUMENT, OF_THREAD, Partition, Record
from perdure.model.runs.messages import decode_object, encode


class Document(NamedTuple):
    """A document as it was read.

    ``version`` is the expectation of a change. ``fault`` is the error for which a document of a listing has
    no body.
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
    (found,) = yield from ask(Fetch(partition, (Get(DOCUMENT, (collection, name)),)))
    return Document.read(found[0]) if found else None


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

    A new document starts at the version ``fresh``, and each replacement has the next one. A reader of a
    document that was removed and created again since therefore cannot overwrite the new one.

    Returns:
        The document as it is stored, ``None`` if the expectation does not hold.

    Raises:
        Unserialisable: the body is not plain data.
        TooLarge: the body exceeds the limit.
        Contention: the expectation names no version, and others change the document all the time.
    """
    if isinstance(expect, Expect) and expect is not Expect.ABSENT:
        return (yield from _over(partition, collection, name, body, now, expect, fresh=fresh))
    version = expect + 1 if isinstance(expect, int) else fresh
    stored = encode(dict(body), "document")
    write = Put(DOCUMENT, (collection, name), {"updated_at": now}, stored, expect, version)
    outcome = yield from ask(Commit(partition, (write,)))
    return _to_document(write) if isinstance(outcome, Committed) else None


def draft(collection: str, name: str, body: Mapping[str, Any], now: int, fresh: int) -> tuple[Put, Document]:
    """Return the operation that creates a document unless it exists, for a commit with others, and the
    document as it is stored then. Raises as ``put`` does."""
    stored = encode(dict(body), "document")
    write = Put(DOCUMENT, (collection, name), {"updated_at": now}, stored, Expect.ABSENT, fresh)
    return write, _to_document(write)


def redraft(collection: str, before: Document, body: Mapping[str, Any], now: int) -> Put:
    """Return the operation that replaces a document unless it was changed, for a commit with others. Raises
    as ``put`` does."""
    stored = encode(dict(body), "document")
    key = (collection, before.name)
    return Put(DOCUMENT, key, {"updated_at": now}, stored, before.version, before.version + 1)


def _to_document(write: Put) -> Document:
    # Decoded from the stored bytes, so that it equals what the next reader gets.
    return Document(write.key[1], json.loads(write.body), write.fields["updated_at"], write.version)


def _over(
    partition: Partition,
    collection: str,
    name: str,
    body: Mapping[str, Any],
    now: int,
    expect: Expect,
    *,
    fresh: int,
) -> Program[Document | None]:
    """Replace a document, readable or not: only its version is read."""

    def load() -> Program[tuple[int | None]]:
        (found,) = yield from ask(
            Fetch(partition, (Range(DOCUMENT, (collection, name), limit=1, bodies=False),))
        )
        return (found[0].version if found else None,)

    def attempt(view: tuple[int | None]) -> Program[tuple[Document | None] | None]:
        (version,) = view
        if version is None and expect is Expect.PRESENT:
            return (None,)
        seen: Expectation = Expect.ABSENT if version is None else version
        after = yield from put(partition, collection, name, body, now, seen, fresh=fresh)
        return None if after is None else (after,)

    (document,) = yield from retry_attempt(partition, None, load, attempt)
    return document


def change(
    partition: Partition, collection: str, name: str, change: Change, now: int, fresh: int
) -> Program[Document | None]:
    """Read, compute and store, repeated on conflict; return the document as it is afterwards.

    Raises as ``put`` does, and ``Contention`` if others change it all the time.
    """

    def store(before: Document | None, body: Mapping[str, Any]) -> Program[tuple[Document] | None]:
        expect: Expectation = before.version if before is not None else Expect.ABSENT
        after = yield from put(partition, collection, name, body, now, expect, fresh=fresh)
        return None if after is None else (after,)

    return (yield from _change(partition, collection, name, change, store))


def change_of_thread(
    partition: Partition, collection: str, name: str, change: Change, now: int, fresh: int
) -> Program[Document | None]:
    """As ``change``, for a document that is a part of a thread: ``None`` if the thread is not known to
    clients, or not any more, and nothing is stored then."""

    def store(before: Document | None, body: Mapping[str, Any]) -> Program[tuple[Document | None] | None]:
        if before is None:
            write, _ = draft(collection, name, body, now, fresh)
        else:
            write = redraft(collection, before, body, now)
        there = Check(DOCUMENT, OF_THREAD, Expect.PRESENT)
        outcome = yield from ask(Commit(partition, (there, write)))
        if isinstance(outcome, Committed):
            return (_to_document(write),)
        return (None,) if (outcome.kind, outcome.key) == (DOCUMENT, OF_THREAD) else None

    return (yield from _change(partition, collection, name, change, store))


_Store = Callable[[Document | None, Mapping[str, Any]], Program[tuple[Document | None] | None]]


def _change(
    partition: Partition, collection: str, name: str, change: Change, store: _Store
) -> Program[Document | None]:
    """Read a document, compute its new body and ``store`` it, which returns ``None`` on a conflict; then all
    of it is repeated."""

    def load() -> Program[tuple[Document | None]]:
        return ((yield from get(partition, collection, name)),)

    def attempt(view: tuple[Document | None]) -> Program[tuple[Document | None] | None]:
        (before,) = view
        body = change(before)
        return view if body is None else (yield from store(before, body))

    (document,) = yield from retry_attempt(partition, None, load, attempt)
    return document


def remove(
    partition: Partition, collection: str, name: str, expect: Expectation = Expect.PRESENT
) -> Program[bool]:
    """Remove a document; ``False`` if there is none or it is not the expected one."""
    outcome = yield from ask(Commit(partition, (Delete(DOCUMENT, (collection, name), expect),)))
    return isinstance(outcome, Committed)


def newest(
    partition: Partition, collection: str, limit: int, before: int | None = None
) -> Program[tuple[Document, ...]]:
    """Return the documents of a collection, at most ``limit``, latest change first.

    ``before`` continues at that time, inclusive, as several may have been changed in one microsecond: the
    caller skips those that it has seen, and asks for more than it saw of that moment. Documents of one moment
    are in no particular order. One that cannot be read has an empty body and a ``fault``.
    """
    after = None if before is None else before + 1
    item = Range(DOCUMENT, (collection,), "updated_at", reverse=True, after=after, limit=limit)
    try:
        (found,) = yield from ask(Fetch(partition, (item,)))
    except Corrupt:
        # One record that cannot be decrypted fails the whole answer: read each by itself.
        (stubs,) = yield from ask(Fetch(partition, (item._replace(bodies=False),)))
        return (yield from _each(partition, stubs))
    return tuple(map(_readable, found))


def several(partition: Partition, collection: str, names: Sequence[str]) -> Program[tuple[Document, ...]]:
    """Return those of the named documents that exist. One that cannot be read has an empty body and a
    ``fault``."""
    gets = tuple(Get(DOCUMENT, (collection, name)) for name in names)
    if not gets:
        return ()
    try:
        found = yield from ask(Fetch(partition, gets))
    except Corrupt:
        stubs = tuple(Range(DOCUMENT, get.key, limit=1, bodies=False) for get in gets)
        there = yield from ask(Fetch(partition, stubs))
        return (yield from _each(partition, [stub for answer in there for stub in answer]))
    return tuple(_readable(record) for answer in found for record in answer)


def _each(partition: Partition, stubs: Iterable[Record]) -> Program[tuple[Document, ...]]:
    out: list[Document] = []
    for stub in stubs:
        try:
            (found,) = yield from ask(Fetch(partition, (Get(DOCUMENT, stub.key),)))
        except Corrupt as error:
            out.append(Document(stub.key[1], {}, stub.fields["updated_at"], stub.version, error))
        else:
            out += map(_readable, found)
    return tuple(out)


def _readable(record: Record) -> Document:
    try:
        return Document.read(record)
    except Corrupt as error:
        return Document(record.key[1], {}, record.fields["updated_at"], record.version, error)
