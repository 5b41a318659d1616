"""Documents: plain data under a name in a collection, replaced as a whole and only over what was read.

It knows no collection by name, and nothing of what a document says. Times are microseconds since the epoch;
``fresh`` is a number that was never given before, as for the versions of a new thread.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from perdure.engine.transact import retrying
from perdure.errors import Corrupt
from perdure.model.messages import decode_object, encode
from perdure.model.ops import Commit, Committed, Delete, Expect, Expectation, Fetch, Get, Put, Range
from perdure.model.program import Program, ask
from perdure.model.records import DOCUMENT, Partition, Record


class Document(NamedTuple):
    """A document as it was read. ``version`` is what a change of it expects. ``fault`` says why a document
    of a listing has no body."""

    name: str
    body: Mapping[str, Any]
    updated_at: int
    version: int
    fault: Corrupt | None = None

    @classmethod
    def read(cls, record: Record) -> Document:
        """The document of a record; ``Corrupt`` when its body is not what was stored."""
        return cls(record.key[1], decode_object(record), record.fields["updated_at"], record.version)


Change = Callable[[Document | None], Mapping[str, Any] | None]
"""From a document, or its absence, to what it is to say; ``None`` leaves it as it is. It may be called more
than once, each time with what stands there by then."""


def get(partition: Partition, collection: str, name: str) -> Program[Document | None]:
    """The document of a name, if there is one."""
    (found,) = yield from ask(Fetch(partition, (Get(DOCUMENT, (collection, name)),)))
    return Document.read(found[0]) if found else None


def put(
    partition: Partition,
    collection: str,
    name: str,
    body: Mapping[str, Any],
    now: int,
    expect: Expectation,
    fresh: int,
) -> Program[Document | None]:
    """Compare and set; the document as it is stored, or ``None`` when what was expected is not so.

    A new document starts at the version ``fresh``, and each that replaces it has the next one: whoever has
    read a document that was removed and made anew since does not overwrite the new one. Raises
    ``Unserialisable`` or ``TooLarge`` when the body cannot be stored, ``Contention`` when it expects no
    version and others change the document all the time.
    """
    if isinstance(expect, Expect) and expect is not Expect.ABSENT:
        return (yield from _over(partition, collection, name, body, now, expect, fresh))
    version = expect + 1 if isinstance(expect, int) else fresh
    stored = encode(dict(body), "document")
    write = Put(DOCUMENT, (collection, name), {"updated_at": now}, stored, expect, version)
    outcome = yield from ask(Commit(partition, (write,)))
    # What is answered is what the next reader is told, not what was handed in.
    return Document(name, json.loads(stored), now, version) if isinstance(outcome, Committed) else None


def _over(
    partition: Partition,
    collection: str,
    name: str,
    body: Mapping[str, Any],
    now: int,
    expect: Expect,
    fresh: int,
) -> Program[Document | None]:
    """Set a document over whatever is there, readable or not: only its version is read."""

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
        after = yield from put(partition, collection, name, body, now, seen, fresh)
        return None if after is None else (after,)

    (document,) = yield from retrying(partition, None, load, attempt)
    return document


def change(
    partition: Partition, collection: str, name: str, change: Change, now: int, fresh: int
) -> Program[Document | None]:
    """Read, compute and set, again when somebody else was faster; the document as it stands afterwards.

    Raises what ``put`` raises and ``Contention`` when others change it all the time.
    """

    def load() -> Program[tuple[Document | None]]:
        return ((yield from get(partition, collection, name)),)

    def attempt(view: tuple[Document | None]) -> Program[tuple[Document | None] | None]:
        (before,) = view
        body = change(before)
        if body is None:
            return view
        expect: Expectation = before.version if before is not None else Expect.ABSENT
        after = yield from put(partition, collection, name, body, now, expect, fresh)
        return None if after is None else (after,)

    (document,) = yield from retrying(partition, None, load, attempt)
    return document


def remove(
    partition: Partition, collection: str, name: str, expect: Expectation = Expect.PRESENT
) -> Program[bool]:
    """Take a document away; whether there was one, and the one that was expected."""
    outcome = yield from ask(Commit(partition, (Delete(DOCUMENT, (collection, name), expect),)))
    return isinstance(outcome, Committed)


def newest(
    partition: Partition, collection: str, limit: int, before: int | None = None
) -> Program[tuple[Document, ...]]:
    """The documents of a collection, at most ``limit``, those that were changed last first.

    ``before`` goes on at that time and includes it, as several may have been changed in one microsecond: the
    caller passes over those that it has seen, and asks for more than it saw of that one moment. Documents of
    one moment are in no particular order. One that cannot be read has an empty body and a ``fault``.
    """
    after = None if before is None else before + 1
    item = Range(DOCUMENT, (collection,), "updated_at", reverse=True, after=after, limit=limit)
    try:
        (found,) = yield from ask(Fetch(partition, (item,)))
    except Corrupt:
        # One record that does not open fails the whole answer: read each by itself.
        (stubs,) = yield from ask(Fetch(partition, (item._replace(bodies=False),)))
        return (yield from _each(partition, stubs))
    return tuple(map(_readable, found))


def several(partition: Partition, collection: str, names: Sequence[str]) -> Program[tuple[Document, ...]]:
    """The documents of names, those that there are. One that cannot be read has an empty body and a
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
