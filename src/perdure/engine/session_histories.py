"""Histories of sessions: messages as plain JSON, extended by compare-and-set, without checkpoints.

A session is a partition with one *head* item: the latest messages, the budget of the task, the keys of the
latest turns, and the names of the segments that hold earlier messages. A turn reads the head and replaces it:
one read and one conditional write while the messages fit ``TAIL`` bytes. After that the head's messages are
sealed in a segment, an item of its own that no later turn writes, in the same commit; a turn then makes two
reads and one write, and writes no more than before however long the history is.

All items expire together. A segment is stored with twice the time to live and renewed when the head would
outlive it. Times are microseconds since the epoch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from perdure.engine.transact import Budget, batches
from perdure.errors import Corrupt, TooLarge, Unserialisable
from perdure.model.messages import MESSAGE_MAX, decode_object, dedupe_digest
from perdure.model.ops import (
    Check,
    Commit,
    Committed,
    Delete,
    Drop,
    Expect,
    Expectation,
    Fetch,
    Find,
    Get,
    Op,
    Put,
)
from perdure.model.program import Program, ask
from perdure.model.records import ITEM, SESSIONS, Partition, Record
from perdure.model.store_items import LAST, expiry, is_over

TAIL = 128 * 1024
"""Bytes of JSON up to which messages are in the head of a session."""

KEYS = 64
"""Turns of which a session keeps the keys, latest last."""

_HEAD = ("",)
_PAGE = 200
_RELOADS = 4


class Segment(NamedTuple):
    """Sealed messages: the item's key, the number of messages, and the time at which it expires."""

    key: str
    messages: int
    expires_at: int | None


class Session(NamedTuple):
    """A session as it was read. ``version`` is the expectation of a change, 0 for one without messages."""

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
    sender's, or empty."""

    messages: Sequence[Mapping[str, Any]]
    budget: Mapping[str, Any] | None = None
    key: str = ""


@dataclass(frozen=True, slots=True)
class Terms:
    """Circumstances of a write.

    Attributes:
        now: the time.
        ttl: time to live from the latest turn on, ``None`` for no end.
        fresh: a number never used before, from which the versions of a new session start.
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
    """Return a session, ``NOTHING`` if it is not stored or has expired.

    Raises:
        Corrupt: a segment is missing, or is not what was stored.
    """
    for _ in range(_RELOADS):
        (found,) = yield from ask(Fetch(partition, (Get(ITEM, _HEAD),)))
        if not found or is_over(found[0], now):
            return NOTHING
        head = _read(found[0])
        if not head.segments:
            return head
        answers = yield from ask(Fetch(partition, tuple(Get(ITEM, (s.key,)) for s in head.segments)))
        if all(answers):
            earlier = [m for answer in answers for m in _messages(answer[0])]
            return head._replace(messages=earlier + head.messages)
        # The session was reset between the two reads, or it is damaged: only the first changes its head.
        (again,) = yield from ask(Fetch(partition, (Get(ITEM, _HEAD),)))
        if again and again[0].version == found[0].version:
            break
    raise Corrupt(f"session {partition.thread!r}: a part of its history is missing; restore it from a backup")


def append(partition: Partition, held: Session, turn: Turn, terms: Terms) -> Program[Session | None]:
    """Add a turn to a session that is as it was read.

    Returns:
        The session with the turn, ``None`` if it was changed since it was read.

    Raises:
        TooLarge: a message, or the budget, exceeds the limit.
        Unserialisable: the budget is not plain JSON.
    """
    added = [dict(message) for message in turn.messages]
    sealed = sum(segment.messages for segment in held.segments)
    tail = held.messages[sealed:]
    groups = _grouped(tail, added)
    keys = (*held.keys, digest_of(turn.key))[-KEYS:] if turn.key else held.keys
    after = Session(
        held.messages + added,
        held.budget if turn.budget is None else dict(turn.budget),
        keys,
        terms.fresh if held.version == 0 else held.version + 1,
        held.created_at or terms.now,
        terms.now,
        held.segments,
    )
    puts: list[Put] = []
    for number, group in enumerate(groups[:-1]):
        key = f"{len(held.segments) + number:06d}.{terms.fresh:x}"
        put = _put(key, {"messages": group}, terms, Expect.ANY, terms.fresh, lives=2)
        puts.append(put)
        segment = Segment(key, len(group), put.fields["expires_at"])
        after = after._replace(segments=(*after.segments, segment))
    after = yield from _renewed(partition, after, terms)
    body = {
        "messages": groups[-1],
        "budget": after.budget,
        "keys": after.keys,
        "segments": after.segments,
        "created_at": after.created_at,
    }
    expect: Expectation = held.version or Expect.ABSENT
    head = _put(_HEAD[0], body, terms, expect, after.version)
    staged: list[Put] = []
    ops: tuple[Op, ...] = (*puts, head)
    if not terms.limits.holds(ops):
        # Nothing refers to a segment before the head does. A removal takes all or none of them.
        staged = puts
        ops = (Check(ITEM, staged[0].key, staged[0].version), head)
        for batch in batches(staged, terms.limits):
            yield from ask(Commit(partition, tuple(batch)))
    if isinstance((yield from ask(Commit(partition, ops))), Committed):
        return after
    if held.version == 0:
        gone = yield from _expired(partition, terms.now)
        over = None if gone is None else Commit(partition, (*ops[:-1], head._replace(expect=gone)))
        if over is not None and isinstance((yield from ask(over)), Committed):
            return after
    for unused in batches([Delete(ITEM, put.key) for put in staged], terms.limits):
        yield from ask(Commit(partition, tuple(unused)))
    return None


def remove(partition: Partition, version: int | None = None) -> Program[bool]:
    """Remove a session; ``False`` if it is not at the given version."""
    checks = () if version is None else (Check(ITEM, _HEAD, version or Expect.ABSENT),)
    return isinstance((yield from ask(Drop(partition, checks))), Committed)


def names(
    tenant: str, after: Partition | None, now: int
) -> Program[tuple[list[Partition], Partition | None]]:
    """Return the sessions of a page in order of their ids, and where the next page starts, if any."""
    page = yield from ask(Find("threads", tenant, after=after, limit=_PAGE, space=SESSIONS))
    out: list[Partition] = []
    for hit in page:
        head = yield from _read_head(hit.partition)
        if head is not None and not is_over(head, now):
            out.append(hit.partition)
    return out, page[-1].partition if len(page) == _PAGE else None


def _read_head(partition: Partition) -> Program[Record | None]:
    (found,) = yield from ask(Fetch(partition, (Get(ITEM, _HEAD),)))
    return found[0] if found else None


def _expired(partition: Partition, now: int) -> Program[int | None]:
    """Return the version of a head that is still stored although it has expired."""
    found = yield from _read_head(partition)
    return found.version if found is not None and is_over(found, now) else None


def _renewed(partition: Partition, session: Session, terms: Terms) -> Program[Session]:
    """Store those segments again that would expire before the head, which happens once in a time to live, or
    never while the head does: nothing would remove them then."""
    until = expiry(terms.ttl, terms.now)
    late = {
        s.key
        for s in session.segments
        if (s.expires_at is None) != (until is None) or (s.expires_at or LAST) < (until or 0)
    }
    if not late:
        return session
    answers = yield from ask(Fetch(partition, tuple(Get(ITEM, (key,)) for key in sorted(late))))
    life = None if terms.ttl is None else 2 * terms.ttl
    expires_at = expiry(life, terms.now)
    puts = [
        Put(
            ITEM,
            record.key,
            {**record.fields, "ttl": life, "expires_at": expires_at},
            record.body,
            record.version,
            record.version + 1,
        )
        for answer in answers
        for record in answer
    ]
    for batch in batches(puts, terms.limits):
        # Refused if another turn renewed them first; the head's own expectation decides between the two.
        yield from ask(Commit(partition, tuple(batch)))
    segments = tuple(s._replace(expires_at=expires_at) if s.key in late else s for s in session.segments)
    return session._replace(segments=segments)


def _grouped(tail: list[dict[str, Any]], added: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Return the messages in groups of at most ``TAIL`` bytes; the last is for the head, and the first is the
    whole old tail if that has to be sealed."""
    groups = [list(tail)]
    held = sum(map(_size, tail))
    for message in added:
        size = _size(message)
        if size > MESSAGE_MAX:
            raise TooLarge(
                f"a message has {size} bytes of JSON, at most {MESSAGE_MAX} are taken; nothing of the turn "
                "was stored. Put large content elsewhere and send a reference to it"
            )
        if groups[-1] and held + size > TAIL:
            groups.append([])
            held = 0
        groups[-1].append(message)
        held += size
    return groups


def _size(value: Any) -> int:
    return len(_encode(value))


def _encode(value: Any) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError) as error:
        raise Unserialisable(f"a history has to be plain JSON data ({type(error).__name__})") from error


def _put(
    key: str, body: Mapping[str, Any], terms: Terms, expect: Expectation, version: int, *, lives: int = 1
) -> Put:
    ttl = None if terms.ttl is None else lives * terms.ttl
    fields = {
        "created_at": terms.now,
        "updated_at": terms.now,
        "ttl": ttl,
        "expires_at": expiry(ttl, terms.now),
    }
    return Put(ITEM, (key,), fields, _encode(body), expect, version)


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


def _messages(record: Record) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = decode_object(record, messages=list)["messages"]
    return found
