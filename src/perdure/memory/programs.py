"""Steps of each operation on a user's memory: batches of operations of LangGraph's store, and their results.

A step that changes facts is one batch in one namespace, so that a correction is stored as a whole or not at
all. ``perdure.memory.memory`` runs the steps, waiting or not.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from hashlib import sha256
from typing import Any, TypeVar
from uuid import uuid4

from langgraph.store.base import GetOp, Item, ListNamespacesOp, MatchCondition, Op, PutOp, SearchOp

from perdure.errors import Conflict, Corrupt, NotFound
from perdure.memory.facts import (
    SUMMARY_MAX,
    TEXT_MAX,
    Fact,
    Remembered,
    ThreadSummary,
    aware,
    checked_text,
    fact_id,
    read_time,
    same_text,
)
from perdure.memory.users import FACTS, REMOVALS, SUMMARIES

R = TypeVar("R")
Steps = Generator[list[Op], list[Any], R]
"""Batches for a store; each is answered by its results."""

_PAGE = 500
_PASSES_MAX = 20
"""Most readings of a namespace that is being changed."""
_AHEAD = 8
"""Number of versions of a fact that are looked up at once."""
_TEXT = ["text"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFact:
    """A fact to remember; the fields are those of ``Fact``."""

    text: str
    thread: str | None = None
    message: str | None = None
    valid_from: datetime | None = None
    supersedes: Sequence[str] = ()

    def __post_init__(self) -> None:
        if isinstance(self.supersedes, str):
            raise TypeError("supersedes is a list of ids, not one text")


@dataclass(frozen=True, slots=True)
class Place:
    """Namespace of a user, and the clock."""

    namespace: tuple[str, ...]
    now: Callable[[], datetime]

    @property
    def facts(self) -> tuple[str, ...]:
        return (*self.namespace, FACTS)

    @property
    def summaries(self) -> tuple[str, ...]:
        return (*self.namespace, SUMMARIES)

    @property
    def removal(self) -> tuple[str, tuple[str, ...]]:
        """Key and namespace of the time at which the user was forgotten; the key does not show the user."""
        return sha256(self.namespace[-1].encode("utf-8", "surrogatepass")).hexdigest(), (
            *self.namespace[:-1],
            REMOVALS,
        )


def remember(place: Place, new: NewFact) -> Steps[Fact]:
    """Store a fact, and close those that it supersedes; return it, or the current one with an equal text."""
    text = checked_text(new.text, TEXT_MAX)
    valid_from = None if new.valid_from is None else aware(new.valid_from, "valid_from")
    removal = (yield from _removal(place)) if new.supersedes else None
    known, number = yield from _latest(place, text)
    others = [each for each in dict.fromkeys(new.supersedes) if known is None or each != known.id]
    closed = [fact for fact in (yield from _found(place, others)) if fact.is_current]
    now = place.now()
    if known is not None and known.is_current:
        # What it corrects is added, so that an undo of it finds these.
        corrected = tuple(dict.fromkeys([*known.supersedes, *(each.id for each in closed)]))
        fact = replace(known, supersedes=corrected)
        puts = [fact] if closed else []
    else:
        fact = Fact(
            id=fact_id(text, number),
            text=text,
            thread=new.thread,
            message=new.message,
            valid_from=valid_from,
            known_from=now,
            supersedes=tuple(each.id for each in closed),
        )
        puts = [fact]
    puts += [replace(each, known_until=now, superseded_by=fact.id) for each in closed]
    yield from _put(place, puts)
    if closed:
        yield from _refuse_forgotten(place, removal, puts)
    return fact


def retract(place: Place, key: str) -> Steps[Fact]:
    """Close a current fact without a successor; return it as it is stored."""
    removal = yield from _removal(place)
    (fact,) = yield from _found(place, [key])
    if not fact.is_current:
        return fact
    fact = replace(fact, known_until=place.now())
    yield from _put(place, [fact])
    yield from _refuse_forgotten(place, removal, [fact])
    return fact


def undo(place: Place, key: str) -> Steps[list[Fact]]:
    """Take back the latest change of a fact; return the facts that are current again."""
    removal = yield from _removal(place)
    (fact,) = yield from _found(place, [key])
    if fact.is_current:
        before = [
            each for each in (yield from _there(place, fact.supersedes)) if each.superseded_by == fact.id
        ]
    elif fact.superseded_by is None:
        before = [fact]
    else:
        raise Conflict(
            f"fact {key!r} was superseded by {fact.superseded_by!r}; undo that one to have this one again"
        )
    now = place.now()
    again: list[Fact] = []
    for each in before:
        known, number = yield from _latest(place, each.text)
        if known is not None and known.is_current:
            again.append(known)
            continue
        replaced = (fact.id,) if fact.is_current else ()
        once_more = replace(each, id=fact_id(each.text, number), known_from=now, known_until=None)
        again.append(replace(once_more, superseded_by=None, supersedes=replaced))
    puts = list(again)
    if fact.is_current:
        successor = again[0].id if again else None
        puts.append(replace(fact, known_until=now, superseded_by=successor))
    yield from _put(place, puts)
    yield from _refuse_forgotten(place, removal, puts)
    return again


def facts(place: Place) -> Steps[list[Fact]]:
    """Return all facts, current or not, in the order in which they were remembered."""
    found = yield from _all(place.facts)
    return sorted((Fact.read(item.key, item.value) for item in found), key=_by_time)


def summaries(place: Place) -> Steps[list[ThreadSummary]]:
    """Return the summaries of the user's threads, oldest first."""
    found = yield from _all(place.summaries)
    return sorted((ThreadSummary.read(item.key, item.value) for item in found), key=_by_time)


def summarise(place: Place, thread: str, text: str) -> Steps[ThreadSummary]:
    """Store the summary of a thread in place of its earlier one; an equal one is left as it is."""
    text = checked_text(text, SUMMARY_MAX)
    (item,) = yield [GetOp(place.summaries, thread, refresh_ttl=False)]
    if item is not None and (known := ThreadSummary.read(thread, item.value)).text == text:
        return known
    summary = ThreadSummary(thread=thread, text=text, at=place.now())
    yield [PutOp(place.summaries, thread, summary.stored(), index=_TEXT)]
    return summary


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is recalled: the nearest to a query, or without one the newest, of the items with some fields."""

    query: str | None
    most: int
    offset: int = 0
    fields: Mapping[str, Any] | None = None


def recall(place: Place, question: Question) -> Steps[list[Remembered]]:
    """Return current facts and summaries: the nearest to a query first, or without one the newest.

    What else lies in the namespace is left out: one foreign item must not hide all that is known.
    """
    query = question.query
    if query is not None and not query.strip():
        query = None
    only = {**(question.fields or {}), "current": True}
    (found,) = yield [SearchOp(place.namespace, only, question.most, question.offset, query, True)]
    read = [each for each in map(_read, found) if each is not None]
    return read if query is not None else sorted(read, key=_by_time, reverse=True)


def forget(place: Place, key: str) -> Steps[int]:
    """Remove a fact with all facts of an equal text, or the summary of a thread; return their number."""
    items = yield [GetOp(place.facts, key, refresh_ttl=False), GetOp(place.summaries, key, refresh_ttl=False)]
    fact, summary = items
    puts: list[Op] = [] if summary is None else [PutOp(place.summaries, key, None)]
    if fact is not None:
        text = same_text(Fact.read(key, fact.value).text)
        every = yield from facts(place)
        puts += [PutOp(place.facts, each.id, None) for each in every if same_text(each.text) == text]
    if not puts:
        raise _unknown(key)
    yield puts
    return len(puts)


def forget_all(place: Place) -> Steps[int]:
    """Remove all facts and summaries; return their number.

    The time of the removal is stored first, so that nothing that began before it brings them back.
    """
    key, at = place.removal
    yield [PutOp(at, key, {"at": place.now().isoformat(), "removal": uuid4().hex}, index=False)]
    removed = 0
    while True:
        (found,) = yield [SearchOp(place.namespace, None, _PAGE, 0, None, refresh_ttl=False)]
        if not found:
            return removed
        yield [PutOp(item.namespace, item.key, None) for item in found]
        removed += len(found)


def forgotten_at(place: Place) -> Steps[datetime | None]:
    """Return the time of the latest removal of all that was known of the user, if there was one."""
    removal = yield from _removal(place)
    return None if removal is None else read_time(removal["at"])


def namespaces(root: Sequence[str]) -> Steps[list[tuple[str, ...]]]:
    """Return the namespaces of all users, in order."""
    out: dict[tuple[str, ...], None] = {}
    offset, depth = 0, len(root) + 1
    while True:
        condition = MatchCondition("prefix", tuple(root))
        (found,) = yield [ListNamespacesOp((condition,), depth, _PAGE, offset)]
        out.update((tuple(each), None) for each in found if len(each) == depth and each[-1] != REMOVALS)
        if len(found) < _PAGE:
            return sorted(out)
        offset += len(found)


def _latest(place: Place, text: str) -> Steps[tuple[Fact | None, int]]:
    """Return the newest fact with an equal text, if any, and the number that the next one has."""
    known, number = None, 0
    while True:
        # Several at once, as a store with a time to live may have removed earlier ones.
        keys = [fact_id(text, number + ahead) for ahead in range(_AHEAD)]
        found = yield from _there(place, keys)
        if not found:
            return known, number
        known = next((fact for fact in found if fact.is_current), found[-1])
        number += keys.index(known.id) + 1
        if known.is_current:
            return known, number


def _found(place: Place, keys: Sequence[str]) -> Steps[list[Fact]]:
    found = yield from _there(place, keys)
    if len(found) < len(keys):
        there = {fact.id for fact in found}
        raise _unknown(next(key for key in keys if key not in there))
    return found


def _there(place: Place, keys: Sequence[str]) -> Steps[list[Fact]]:
    if not keys:
        return []
    items: list[Item | None] = yield [GetOp(place.facts, key, refresh_ttl=False) for key in keys]
    found = zip(keys, items, strict=True)
    return [Fact.read(key, item.value) for key, item in found if item is not None]


def _removal(place: Place) -> Steps[Mapping[str, Any] | None]:
    key, namespace = place.removal
    (item,) = yield [GetOp(namespace, key, refresh_ttl=False)]
    return None if item is None else item.value


def _refuse_forgotten(
    place: Place, removal: Mapping[str, Any] | None, written: Sequence[Fact]
) -> Steps[None]:
    """Remove what was written, and raise ``Conflict``, if the user was forgotten since ``removal`` was read:
    a change writes whole facts, also such as were removed meanwhile."""
    if (yield from _removal(place)) != removal:
        yield [PutOp(place.facts, fact.id, None) for fact in written]
        raise Conflict("all that was known of this user was removed meanwhile; nothing was changed")


def _put(place: Place, changed: Sequence[Fact]) -> Steps[None]:
    if changed:
        # Closed facts are no longer found by their text.
        yield [
            PutOp(place.facts, fact.id, fact.stored(), index=_TEXT if fact.is_current else False)
            for fact in changed
        ]


def _all(namespace: tuple[str, ...]) -> Steps[list[Any]]:
    """Return all items of a namespace, each once.

    What is written or removed between two pages moves others across their border, so more than one page is
    read until two passes agree.
    """
    before: dict[str, Any] | None = None
    for _ in range(_PASSES_MAX):
        out: dict[str, Any] = {}
        offset = 0
        while True:
            (found,) = yield [SearchOp(namespace, None, _PAGE, offset, None, refresh_ttl=False)]
            out.update((item.key, item) for item in found)
            offset += len(found)
            if len(found) < _PAGE:
                break
        times = {key: item.updated_at for key, item in out.items()}
        if offset < _PAGE or times == before:
            return list(out.values())
        before = times
    raise Conflict("this memory is being changed all the time, so it could not be read as a whole; try again")


def _read(item: Any) -> Remembered | None:
    kind = Fact if item.namespace[-1] == FACTS else ThreadSummary
    try:
        return kind.read(item.key, item.value)
    except Corrupt:
        return None


def _by_time(entry: Remembered) -> tuple[datetime, str]:
    return entry.at, entry.id


def _unknown(key: str) -> NotFound:
    return NotFound(f"this user has no memory {key!r}; list them with facts(), or `perdure memory ls`")
