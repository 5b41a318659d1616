"""Histories of sessions: messages as plain JSON, extended by compare-and-set, without checkpoints.

A session is a partition with one *head* item: the latest messages, the budget of the task, the keys of the
latest turns, and the names of the segments that hold earlier messages. A turn reads the head and replaces it:
one read and one conditional write while the messages fit ``TAIL`` bytes. After that the head's messages are
sealed in a segment, an item of its own that no later turn writes, in the same commit; a turn then makes two
reads and one write, and writes no more than before however long the history is.

A segment is never changed: the commit of a head decides which segments the session has, and nothing that
precedes that commit is seen by anyone else. A segment has twice the time to live of a head; when a head would
outlive a segment, or only one of the two expires at all, the turn stores a copy of the segment under another
key, and names that. Segments that a turn has stored and no head names are removed by the turn itself if it is
refused, and by ``sweep`` if it died. Times are microseconds since the epoch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from perdure.engine.complete_reads import read_all
from perdure.engine.requests import expect_unchanged, read_record, try_commit
from perdure.engine.transact import ATTEMPTS, Budget, split_into_batches
from perdure.errors import Contention, Corrupt, OverMaximum, Unserialisable
from perdure.model.ops import (
    Check,
    Committed,
    Delete,
    Drop,
    Expect,
    Expectation,
    Fetch,
    FindThreads,
    Get,
    Op,
    Put,
    Range,
)
from perdure.model.program import Program, ask
from perdure.model.record_versions import successor
from perdure.model.records import ITEM, SESSIONS, Key, Partition, Record
from perdure.model.runs.messages import MESSAGE_MAX, decode_object, dedupe_digest
from perdure.model.store_items import LAST, expiry, is_over

TAIL = 128 * 1024
"""Bytes of JSON up to which messages are in the head of a session."""

KEYS = 64
"""Number of turns whose keys a session keeps, latest last."""

HEAD: Key = ("",)
"""Key of a session's head."""

_PAGE = 200

LEASE_US = 24 * 3_600_000_000
"""Microseconds after which a segment that no head names counts as left by a dead turn."""


class Segment(NamedTuple):
    """Sealed messages: the item's key, the number of messages, and the time at which it expires."""

    key: str
    messages: int
    expires_at: int | None


class Session(NamedTuple):
    """A session as it was read. ``version`` is the version that a change expects, 0 for a session without
    messages."""

    messages: list[dict[str, Any]]
    budget: Mapping[str, Any]
    keys: tuple[str, ...]
    version: int
    created_at: int
    updated_at: int
    segments: tuple[Segment, ...] = ()


@dataclass(frozen=True, slots=True)
class Turn:
    """An addition to a session. ``budget`` replaces the stored one unless it is ``None``; ``key`` is the
    sender's key of the turn, or empty. With ``replaces`` the turn takes the place of all that the session
    has."""

    messages: Sequence[Mapping[str, Any]]
    budget: Mapping[str, Any] | None = None
    key: str = ""
    replaces: bool = False


@dataclass(frozen=True, slots=True)
class Terms:
    """Circumstances of a write.

    Attributes:
        now: the time.
        ttl: time to live from the latest turn on, ``None`` for no end.
        fresh: a number never used before, from which the versions of a new session start, and on which the
            version of each turn depends.
        limits: those of one commit.
    """

    now: int
    ttl: int | None
    fresh: int
    limits: Budget


NOTHING = Session([], {}, (), 0, 0, 0)
"""A session that is not stored, or has expired."""


def digest_of(key: str) -> str:
    """Return the form in which the key of a turn is stored."""
    return dedupe_digest(key).hex()


def load(partition: Partition, now: int) -> Program[Session]:
    """Return a session, ``NOTHING`` if it is not stored or has expired; raises as ``read_records`` does."""
    found = yield from read_records(partition, now)
    if not found:
        return NOTHING
    head = _read(found[-1])
    return head._replace(
        messages=[m for record in found[:-1] for m in _read_messages(record)] + head.messages
    )


def read_records(partition: Partition, now: int) -> Program[list[Record]]:
    """Return the records of a session as of one moment: its segments, then its head; none if it is not stored
    or has expired.

    Raises:
        Corrupt: a segment is missing, or is not what was stored.
        Contention: the session keeps being reset or renewed.
    """
    for _ in range(ATTEMPTS):
        found = yield from _read_head(partition)
        if found is None or is_over(found, now):
            return []
        segments = _read(found).segments
        if not segments:
            return [found]
        answers = yield from ask(Fetch(partition, tuple(Get(ITEM, (s.key,)) for s in segments)))
        if all(answers):
            return [*(answer[0] for answer in answers), found]
        # The session was reset or renewed between the two reads, or is damaged. In the last case its head is
        # the same.
        again = yield from _read_head(partition)
        if again is not None and again.version == found.version:
            raise Corrupt(
                f"session {partition.thread!r}: a part of its history is missing; restore it from a backup"
            )
    raise Contention(f"session {partition.thread!r} keeps being written to; read it later")


def append(partition: Partition, held: Session, turn: Turn, terms: Terms) -> Program[Session | None]:
    """Add a turn to a session, unless that was changed since it was read.

    Returns:
        The session with the turn, ``None`` if it was changed since it was read.

    Raises:
        OverMaximum: a message, or the budget, exceeds the limit.
        Unserialisable: the budget is not plain JSON.
    """
    added = [dict(message) for message in turn.messages]
    former: tuple[Segment, ...] = ()
    if turn.replaces:
        former, held = held.segments, NOTHING._replace(version=held.version, created_at=held.created_at)
    sealed = sum(segment.messages for segment in held.segments)
    groups = _group_by_size(held.messages[sealed:], added)
    after = held._replace(
        messages=held.messages + added,
        version=terms.fresh,
        created_at=held.created_at or terms.now,
        updated_at=terms.now,
    )
    if held.version:
        after = after._replace(version=successor(held.version, terms.fresh))
    if turn.key:
        after = after._replace(keys=(*held.keys, digest_of(turn.key))[-KEYS:])
    if turn.budget is not None:
        after = after._replace(budget=dict(turn.budget))
    puts, replaced, segments = yield from _renew_expiring(partition, held, terms)
    for number, group in enumerate(groups[:-1], len(segments)):
        put = _make_segment(number, _encode({"messages": group}), terms)
        puts.append(put)
        segments += (Segment(put.key[0], len(group), put.fields["expires_at"]),)
    after = after._replace(segments=segments)
    body = {
        "messages": groups[-1],
        "budget": after.budget,
        "keys": after.keys,
        "segments": after.segments,
        "created_at": after.created_at,
    }
    expect: Expectation = held.version or Expect.ABSENT
    head = _make_put(HEAD[0], _encode(body), terms, expect, after.version)
    replaced += [segment.key for segment in former]
    removals: list[Op] = [Delete(ITEM, (key,)) for key in replaced]
    staged: list[Put] = []
    ops: tuple[Op, ...] = (*puts, *removals, head)
    if not terms.limits.holds(ops):
        # The commit checks the first staged segment. That suffices: a removal of the session, or of what dead
        # turns left, removes that one first.
        staged = puts
        room = terms.limits.ops - 1 - bool(staged)
        ops = (*(Check(ITEM, put.key, put.version) for put in staged[:1]), *removals[:room], head)
        removals = removals[room:]
        for batch in split_into_batches(staged, terms.limits):
            if not (yield from try_commit(partition, batch)):
                return None
    else:
        removals = []
    if (yield from _commit_head(partition, ops, head, terms.now)):
        # Only under this head: one that was stored since, by a copy from another database, may name them
        # again.
        own_head = Check(ITEM, HEAD, after.version)
        for removal_batch in split_into_batches(removals, terms.limits, reserve=1):
            yield from try_commit(partition, (own_head, *removal_batch))
        return after
    for unused in split_into_batches([Delete(ITEM, put.key, put.version) for put in staged], terms.limits):
        yield from try_commit(partition, unused)
    return None


def _commit_head(partition: Partition, ops: tuple[Op, ...], head: Put, now: int) -> Program[bool]:
    """Commit a turn, its head last, in place of the head that was read. If the session was read as absent, an
    expired head may still be stored, which is then replaced."""
    if (yield from try_commit(partition, ops)):
        return True
    if head.expect is not Expect.ABSENT:
        return False
    found = yield from _read_head(partition)
    if found is None or not is_over(found, now):
        return False
    return (yield from try_commit(partition, (*ops[:-1], head._replace(expect=found.version))))


def remove(partition: Partition, version: int | None = None) -> Program[bool]:
    """Remove a session; ``False`` if it is not at the given version."""
    drop = Drop(partition)
    if version is not None:
        drop = Drop(partition, (Check(ITEM, HEAD, version or Expect.ABSENT),))
    return isinstance((yield from ask(drop)), Committed)


def sweep(partition: Partition, now: int, limits: Budget) -> Program[int]:
    """Remove what dead turns and copies left of a session more than ``LEASE_US`` ago; return the number of
    items. A session with a damaged head is left as it is, for ``fsck`` to report."""
    (stored,) = yield from read_all(partition, Range(ITEM, bodies=False))
    if all(record.key == HEAD for record in stored):
        return 0
    try:
        found = yield from _read_head(partition)
        head = None
        if found is not None and not is_over(found, now):
            head = _read(found)
    except Corrupt:
        return 0
    named = {(segment.key,) for segment in (head or NOTHING).segments}
    unnamed = [record for record in stored if record.key != HEAD and record.key not in named]
    abandoned = [record for record in unnamed if record.fields["created_at"] + LEASE_US <= now]
    unchanged = Check(ITEM, HEAD, expect_unchanged(found))
    if head is None and abandoned and len(abandoned) == len(unnamed):
        if isinstance((yield from ask(Drop(partition, (unchanged,)))), Committed):
            return len(abandoned) + (found is not None)
        return 0
    removed = 0
    # In the order of their keys: a turn that is still alive checks its first segment, and is refused.
    removals = [Delete(ITEM, record.key, record.version) for record in abandoned]
    for some in split_into_batches(removals, limits, reserve=1):
        if not (yield from try_commit(partition, (unchanged, *some))):
            break
        removed += len(some)
    return removed


def read_names(
    tenant: str, after: Partition | None, now: int
) -> Program[tuple[list[Partition], Partition | None]]:
    """Return the sessions of a page in order of their ids, and where the next page starts, if any."""
    page = yield from ask(FindThreads(tenant, after=after, limit=_PAGE, space=SESSIONS))
    out: list[Partition] = []
    for hit in page:
        head = yield from _read_head(hit.partition)
        if head is not None and not is_over(head, now):
            out.append(hit.partition)
    if len(page) < _PAGE:
        return out, None
    return out, page[-1].partition


def _read_head(partition: Partition) -> Program[Record | None]:
    return (yield from read_record(partition, ITEM, HEAD))


def _renew_expiring(
    partition: Partition, session: Session, terms: Terms
) -> Program[tuple[list[Put], list[str], tuple[Segment, ...]]]:
    """Return copies of those segments whose expiry does not fit that of the head: they would expire before
    it, which happens once in a time to live, or only one of the two expires at all. Return also the keys of
    the segments that the copies replace, and all segments afterwards."""
    until = expiry(terms.ttl, terms.now)
    to_copy = {
        number: s
        for number, s in enumerate(session.segments)
        if (s.expires_at is None) != (until is None) or (s.expires_at or LAST) < (until or 0)
    }
    if not to_copy:
        return [], [], session.segments
    answers = yield from ask(Fetch(partition, tuple(Get(ITEM, (s.key,)) for s in to_copy.values())))
    puts: list[Put] = []
    segments = list(session.segments)
    for (number, old), answer in zip(to_copy.items(), answers, strict=True):
        # If one is gone the session has changed since it was read, and the head is refused.
        for record in answer:
            put = _make_segment(number, record.body, terms)
            puts.append(put)
            segments[number] = Segment(put.key[0], old.messages, put.fields["expires_at"])
    return puts, [old.key for old in to_copy.values()], tuple(segments)


def _make_segment(number: int, body: bytes, terms: Terms) -> Put:
    """Return a turn's segment at a place in the history; the keys of one turn are in ascending order."""
    key = f"{number:06d}.{terms.fresh:x}"
    return _make_put(key, body, terms, Expect.ABSENT, terms.fresh, lives=2)


def _group_by_size(tail: list[dict[str, Any]], added: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Return the messages in groups of at most ``TAIL`` bytes; the last is for the head, the others are to be
    sealed, and the first begins with the old tail."""
    groups = [list(tail)]
    group_bytes = sum(map(_size, tail))
    for message in added:
        size = _size(message)
        if size > MESSAGE_MAX:
            raise OverMaximum(
                f"a message has {size} bytes of JSON, at most {MESSAGE_MAX} are taken; nothing of the turn "
                "was stored. Put large content elsewhere and send a reference to it"
            )
        if groups[-1] and group_bytes + size > TAIL:
            groups.append([])
            group_bytes = 0
        groups[-1].append(message)
        group_bytes += size
    return groups


def _size(value: Any) -> int:
    return len(_encode(value))


def _encode(value: Any) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError) as error:
        raise Unserialisable(f"a history has to be plain JSON data ({type(error).__name__})") from error


def _make_put(
    key: str, body: bytes, terms: Terms, expect: Expectation, version: int, *, lives: int = 1
) -> Put:
    ttl = terms.ttl
    if ttl is not None:
        ttl *= lives
    fields = {
        "created_at": terms.now,
        "updated_at": terms.now,
        "ttl": ttl,
        "expires_at": expiry(ttl, terms.now),
    }
    return Put(ITEM, (key,), fields, body, expect, version)


def _read(record: Record) -> Session:
    body = decode_object(record, messages=list, budget=dict, keys=list, segments=list, created_at=int)
    return Session(
        body["messages"],
        body["budget"],
        tuple(body["keys"]),
        record.version,
        body["created_at"],
        record.fields["updated_at"],
        tuple(Segment(*segment) for segment in body["segments"]),
    )


def _read_messages(record: Record) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = decode_object(record, messages=list)["messages"]
    return found
