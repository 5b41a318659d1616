"""Documents with a history: every version stays under its number, and one of them is current.

A change creates a version with a number never used before and makes it current, in one commit with the
compare-and-set of the document. An older version may be made current again. The content belongs to the
caller; times are microseconds since the epoch, and ``fresh`` is as in ``documents``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from perdure.engine.complete_reads import read_all
from perdure.engine.requests import commit_for, first_of, read_record, try_commit
from perdure.engine.transact import retry_attempt
from perdure.model.ops import Delete, Expect, Expectation, Fetch, Get, Put, Range
from perdure.model.program import Program, ask
from perdure.model.record_versions import successor
from perdure.model.records import DOCUMENT, Partition, Record
from perdure.model.runs.messages import encode

_DIGITS = 10


class Versioned(NamedTuple):
    """A document at one of its versions.

    ``number`` is the number of that version, ``last`` the highest one ever assigned. ``revision`` is the
    version of the stored record that a change expects, ``None`` for a document that is not stored.
    """

    name: str
    body: Mapping[str, Any]
    number: int
    last: int
    created_at: int
    updated_at: int
    revision: int | None = None


Change = Callable[[Versioned], Mapping[str, Any]]
"""Function from a document to its new body. It may be called more than once."""


def get(partition: Partition, collection: str, name: str) -> Program[Versioned | None]:
    """Return the current version of a document, ``None`` if there is none."""
    record = yield from read_record(partition, DOCUMENT, (collection, name))
    return record and _read(record)


def read_all_current(partition: Partition, collection: str) -> Program[list[Versioned]]:
    """Return the current versions of all documents of a collection, by name."""
    (found,) = yield from read_all(partition, Range(DOCUMENT, (collection,)))
    return list(map(_read, found))


def create(
    partition: Partition, collection: str, name: str, body: Mapping[str, Any], now: int, fresh: int
) -> Program[Versioned | None]:
    """Store the first version; ``None`` if the document exists. Raises as ``documents.put`` does."""
    first = Versioned(name, body, 1, 1, now, now)
    return (yield from _store(partition, collection, first, (first,), now, fresh))


def revise(
    partition: Partition,
    collection: str,
    name: str,
    change: Change,
    now: int,
    fresh: int,
    *,
    before: Versioned | None = None,
) -> Program[Versioned | None]:
    """Add a new version and make it current.

    Args:
        before: first version of a document that is not stored.

    Returns:
        ``None`` if there is neither a document nor ``before``.
    """

    def load() -> Program[tuple[Versioned | None]]:
        return ((yield from get(partition, collection, name)),)

    def attempt(view: tuple[Versioned | None]) -> Program[tuple[Versioned | None] | None]:
        current = view[0] or before
        if current is None:
            return view
        number = current.last + 1
        after = current._replace(body=change(current), number=number, last=number, updated_at=now)
        versions = [after]
        if current.revision is None:
            versions.append(current)
        stored = yield from _store(partition, collection, after, versions, now, fresh)
        return stored and (stored,)

    (found,) = yield from retry_attempt(partition, None, load, attempt)
    return found


def choose(
    partition: Partition, collection: str, name: str, number: int, now: int, fresh: int
) -> Program[Versioned | None]:
    """Make an earlier version the current one; ``None`` if there is no such version."""

    def load() -> Program[tuple[Versioned | None, Versioned | None]]:
        keys = ((collection, name), _make_past_key(collection, name, number))
        answers = yield from ask(Fetch(partition, tuple(Get(DOCUMENT, key) for key in keys)))
        current, older = map(first_of, answers)
        return current and _read(current), older and _read_older(name, older)

    def attempt(view: tuple[Versioned | None, Versioned | None]) -> Program[tuple[Versioned | None] | None]:
        now_current, older = view
        if now_current is None or older is None or number > now_current.last:
            return (None,)
        after = now_current._replace(body=older.body, number=number, updated_at=now)
        stored = yield from _store(partition, collection, after, (), now, fresh)
        return stored and (stored,)

    (found,) = yield from retry_attempt(partition, None, load, attempt)
    return found


def list_versions(partition: Partition, collection: str, name: str) -> Program[list[Versioned]]:
    """Return every version of a document, newest first; empty if the document does not exist."""
    current = yield from get(partition, collection, name)
    if current is None:
        return []
    (found,) = yield from read_all(partition, Range(DOCUMENT, (_folder(collection, name),)))
    versions = [_read_older(name, record) for record in found]
    return [version for version in reversed(versions) if version.number <= current.last]


def remove(partition: Partition, collection: str, name: str) -> Program[bool]:
    """Remove a document with its history; ``False`` if there was none.

    After an interruption a history without a document may be left. It is never returned, and the next
    document of the name replaces it.
    """
    (older,) = yield from read_all(partition, Range(DOCUMENT, (_folder(collection, name),), bodies=False))
    is_removed = yield from try_commit(partition, (Delete(DOCUMENT, (collection, name), Expect.PRESENT),))
    for record in older:
        # One commit each: a document that was created meanwhile keeps its history, which has other versions.
        yield from try_commit(partition, (Delete(DOCUMENT, record.key, record.version),))
    return is_removed


def _store(
    partition: Partition,
    collection: str,
    after: Versioned,
    versions: Sequence[Versioned],
    now: int,
    fresh: int,
) -> Program[Versioned | None]:
    """Store the document, and those of its ``versions`` that were never stored.

    Returns:
        The document as the next reader gets it.
    """
    key = (collection, after.name)
    expect: Expectation = Expect.ABSENT
    revision = fresh
    if after.revision is not None:
        expect, revision = after.revision, successor(after.revision, fresh, now)
    head = {
        "said": dict(after.body),
        "number": after.number,
        "last": after.last,
        "created_at": after.created_at,
    }
    body = encode(head, "document")
    puts = [Put(DOCUMENT, key, {"updated_at": now}, body, expect, revision)]
    for version in versions:
        content = encode({"said": dict(version.body), "created_at": version.updated_at}, "document")
        place = _make_past_key(collection, version.name, version.number)
        puts.append(Put(DOCUMENT, place, {"updated_at": now}, content, Expect.ANY, fresh))
    stored = after._replace(body=json.loads(body)["said"], revision=revision)
    return (yield from commit_for(partition, puts, stored))


def _folder(collection: str, name: str) -> str:
    return f"{collection}/{name}"


def _make_past_key(collection: str, name: str, number: int) -> tuple[str, str]:
    return _folder(collection, name), f"{number:0{_DIGITS}}"


def _read(record: Record) -> Versioned:
    fields = json.loads(record.body)
    return Versioned(
        record.key[1],
        fields["said"],
        fields["number"],
        fields["last"],
        fields["created_at"],
        record.fields["updated_at"],
        record.version,
    )


def _read_older(name: str, record: Record) -> Versioned:
    fields = json.loads(record.body)
    number, created_at = int(record.key[1]), fields["created_at"]
    return Versioned(name, fields["said"], number, number, created_at, created_at, record.version)
