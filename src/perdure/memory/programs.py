"""Steps of each operation on a user's memory: batches of operations of LangGraph's store, and their results.

A step that changes facts is one commit in one namespace that requires what was read, so that a correction is
stored as a whole or not at all, and is planned again when others have changed its facts meanwhile.
``perdure.memory.memory`` runs the steps, waiting or not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any
from uuid import uuid4

from langgraph.store.base import GetOp, Item, ListNamespacesOp, MatchCondition, PutOp, SearchOp

from perdure.errors import Conflict, Corrupt, Forgotten, NotFound
from perdure.memory.facts import (
    SUMMARY_MAX,
    TEXT_MAX,
    Fact,
    NewFact,
    Remembered,
    ThreadSummary,
    clean_text,
    convert_if_given,
    is_mark,
    make_fact_id,
    make_mark,
    normalise_text,
    read_mark_time,
)
from perdure.memory.steps import TRIES, FactChange, Place, Steps, contention_error, make_fence, value_of
from perdure.memory.users import FACTS, REMOVALS, SUMMARIES

_PAGE = 500
_PASSES_MAX = 20
"""Maximum number of attempts to read a namespace that keeps changing."""
_AHEAD = 8
"""Number of versions of a fact that are looked up at once."""
_TOGETHER = 8
"""Number of ended facts of one text that are removed at once: a commit of DynamoDB takes a hundred
operations."""
_TEXT = ["text"]


def remember(place: Place, new: NewFact) -> Steps[Fact]:
    """Store a fact, and close those that it supersedes; return it, or the current one with an equal text.

    If a superseded fact had a successor already, the current successor is closed, so that of two corrections
    of a fact the later one is current. A fact that was extracted from the same source before is returned as
    it is.
    """
    text = clean_text(new.text, TEXT_MAX)
    valid_from = convert_if_given(new.valid_from, "valid_from")
    heard_at = convert_if_given(new.heard_at, "heard_at")
    for _ in range(TRIES):
        existing, number, values = yield from _find_latest(place, text)
        first_id = make_fact_id(text, 0)
        required: Mapping[str, Any] = {}
        if heard_at is not None:
            _refuse_forgotten(first_id, values[first_id], heard_at)
            if existing is not None and (existing.thread, existing.message) == (
                new.thread,
                new.message or "",
            ):
                return existing
            required = yield from make_fence(place, place.facts, heard_at)
        to_close = dict((yield from _find_chain_ends(place, new.supersedes)))
        if existing is not None and existing.is_current:
            # A fact does not supersede itself.
            to_close.pop(existing.id, None)
        now = place.now()
        if existing is not None and existing.is_current:
            # Facts that it corrects now are added to it, so that an undo of it finds them.
            corrected = tuple(dict.fromkeys([*existing.supersedes, *to_close]))
            fact = replace(existing, supersedes=corrected)
            puts = [fact] if to_close else []
        else:
            fact = Fact(
                id=make_fact_id(text, number),
                text=text,
                thread=new.thread,
                message=new.message,
                valid_from=valid_from,
                known_from=now,
                supersedes=tuple(to_close),
            )
            puts = [fact]
        superseded = [Fact.read(key, value) for key, value in to_close.items()]
        puts += [
            replace(each, known_until=each.known_until or now, superseded_by=fact.id) for each in superseded
        ]
        seen = _merge_readings({first_id: values[first_id], fact.id: values.get(fact.id)}, to_close, required)
        if (yield from _put_facts(place, puts, seen)):
            return fact
    raise contention_error()


def retract(place: Place, key: str) -> Steps[Fact]:
    """Close a current fact without a successor; return it as it is stored."""
    for _ in range(TRIES):
        values = yield from _require_facts(place, [key])
        fact = Fact.read(key, values[key])
        if not fact.is_current:
            return fact
        fact = replace(fact, known_until=place.now())
        if (yield from _put_facts(place, [fact], values)):
            return fact
    raise contention_error()


def undo(place: Place, key: str) -> Steps[list[Fact]]:
    """Take back the latest change of a fact; return the facts that are current again."""
    for _ in range(TRIES):
        seen: dict[str, Mapping[str, Any] | None] = dict((yield from _require_facts(place, [key])))
        fact = Fact.read(key, seen[key] or {})
        if fact.is_current:
            predecessors = yield from _read_values(place, fact.supersedes)
            seen = _merge_readings(seen, predecessors)
            closed = [
                each
                for each in _read_facts(predecessors)
                # A fact that was retracted before it was corrected does not become current again.
                if each.superseded_by == fact.id and (each.known_until or fact.known_from) >= fact.known_from
            ]
            # Of several equal facts, the one that was closed last.
            to_restore = list({normalise_text(each.text): each for each in closed}.values())
        elif fact.superseded_by is None:
            to_restore = [fact]
        else:
            existing, _, _ = yield from _find_latest(place, fact.text)
            if existing is not None and existing.is_current:
                return [existing]
            if (yield from _require_facts(place, [key])) != seen:
                continue
            raise Conflict(
                f"fact {key!r} was superseded by {fact.superseded_by!r}; undo that one to have this one again"
            )
        now = place.now()
        restored: list[Fact] = []
        for each in to_restore:
            existing, number, values = yield from _find_latest(place, each.text)
            first_id = make_fact_id(each.text, 0)
            if existing is not None and existing.is_current:
                seen = _merge_readings(seen, {first_id: values[first_id], existing.id: values[existing.id]})
                restored.append(existing)
                continue
            copy = replace(each, id=make_fact_id(each.text, number), known_from=now, known_until=None)
            seen = _merge_readings(seen, {first_id: values[first_id], copy.id: None})
            restored.append(replace(copy, superseded_by=None, supersedes=(fact.id,)))
        puts = list(restored)
        successor = restored[0].id if restored else None
        puts.append(replace(fact, known_until=fact.known_until or now, superseded_by=successor))
        if (yield from _put_facts(place, puts, seen)):
            return restored
    raise contention_error()


def read_facts(place: Place) -> Steps[list[Fact]]:
    """Return all facts, current or not, in the order in which they were remembered."""
    return sorted(_read_facts((yield from _read_all_values(place))), key=_get_order)


def read_summaries(place: Place) -> Steps[list[ThreadSummary]]:
    """Return the summaries of the user's threads, oldest first."""
    items = yield from _read_all(place.summaries)
    stored = [item for item in items if read_mark_time(item.key, item.value) is None]
    return sorted((ThreadSummary.read(item.key, item.value) for item in stored), key=_get_order)


def summarise(place: Place, thread: str, text: str, heard_at: datetime | None = None) -> Steps[ThreadSummary]:
    """Store the summary of a thread in place of its earlier one; an equal one is left as it is."""
    text = clean_text(text, SUMMARY_MAX)
    heard_at = convert_if_given(heard_at, "heard_at")
    for _ in range(TRIES):
        (item,) = yield [GetOp(place.summaries, thread, refresh_ttl=False)]
        value = value_of(item)
        required: Mapping[str, Any] = {}
        if heard_at is not None:
            _refuse_forgotten(thread, value, heard_at)
            required = yield from make_fence(place, place.summaries, heard_at)
        if value is not None and read_mark_time(thread, value) is None:
            existing = ThreadSummary.read(thread, value)
            if existing.text == text:
                return existing
        summary = ThreadSummary(thread=thread, text=text, at=place.now())
        put = PutOp(place.summaries, thread, summary.dump(), index=_TEXT)
        if (yield FactChange([put], {thread: value, **required})):
            return summary
    raise contention_error()


def recall(
    place: Place, query: str | None, most: int, offset: int, fields: Mapping[str, Any] | None
) -> Steps[list[Remembered]]:
    """Return current facts and summaries, filtered by fields: with a query, on a store that can compare it,
    the nearest first; otherwise the newest.

    Other items of the namespace are left out: one foreign item must not make the whole recall fail.
    """
    if query is not None and not query.strip():
        query = None
    fields = {**(fields or {}), "current": True}
    (items,) = yield [SearchOp(place.namespace, fields, most, offset, query, True)]
    entries = [each for each in map(_read_entry, items) if each is not None]
    if any(item.score is not None for item in items):
        return entries
    return sorted(entries, key=_get_order, reverse=True)


def forget(place: Place, key: str) -> Steps[int]:
    """Remove a fact with all facts of an equal text, or the summary of a thread; return their number.

    A mark without the text takes their place, so that an extraction from earlier messages does not bring them
    back.
    """
    for _ in range(TRIES):
        items = yield [GetOp(at, key, refresh_ttl=False) for at in (place.facts, place.summaries)]
        fact, summary = (_unmarked_value(key, item) for item in items)
        if fact is None and summary is None:
            raise _unknown_error(key)
        removed = 0
        if summary is not None:
            put = PutOp(place.summaries, key, make_mark(place.now()), index=False)
            removed += yield FactChange([put], {key: summary})
        if fact is not None:
            removed += yield from _forget_fact(place, key, normalise_text(Fact.read(key, fact).text))
        if removed:
            return removed
    raise contention_error()


def _forget_fact(place: Place, key: str, text: str) -> Steps[int]:
    """Remove all facts of a text, and store a mark in their place; return their number, 0 if one was changed
    meanwhile."""
    found = yield from _read_all_values(place)
    to_remove = [each for each in _read_facts(found) if normalise_text(each.text) == text]
    _, number, values = yield from _find_latest(place, text)
    if any(value is not None and each not in found for each, value in values.items()):
        return 0
    first_id, next_id = make_fact_id(text, 0), make_fact_id(text, number)
    # Ended facts are removed first. If this process dies before the rest, the fact that the caller named and
    # the current one are still there, so that the call can be repeated.
    removed_first = [each.id for each in to_remove if not each.is_current and each.id not in (first_id, key)]
    for start in range(0, len(removed_first) - _TOGETHER, _TOGETHER):
        change = _plan_removal(place, found, removed_first[start : start + _TOGETHER])
        if not (yield change):
            return 0
        for put in change.puts:
            if put.value is None:
                del found[put.key]
            else:
                found[put.key] = put.value
    rest = [each.id for each in to_remove if each.id in found]
    change = _plan_removal(place, found, rest)
    puts = [put for put in change.puts if put.key != first_id]
    puts.append(PutOp(place.facts, first_id, make_mark(place.now()), index=False))
    seen = _merge_readings(change.seen, {first_id: values[first_id], next_id: None})
    if (yield FactChange(puts, seen)):
        return len(to_remove)
    return 0


def _plan_removal(place: Place, found: Mapping[str, Mapping[str, Any]], keys: Sequence[str]) -> FactChange:
    """Return the change that removes some of the found facts and links their neighbours with each other."""
    puts = [PutOp(place.facts, key, None) for key in keys]
    puts += [_put_fact(place, fact) for fact in relink(_read_facts(found), set(keys))]
    return FactChange(puts, {put.key: found[put.key] for put in puts})


def relink(facts: Sequence[Fact], removed: set[str]) -> list[Fact]:
    """Return the facts that stay and whose links change by a removal, with their new links.

    Args:
        facts: All facts.
        removed: The ids of the facts that are removed.
    """
    by_id = {fact.id: fact for fact in facts}
    return [
        replace(
            fact,
            superseded_by=_find_kept_successor(by_id, removed, fact.superseded_by),
            supersedes=_find_kept_predecessors(by_id, removed, fact.supersedes),
        )
        for fact in facts
        if fact.id not in removed and {fact.superseded_by, *fact.supersedes} & removed
    ]


def _find_kept_successor(by_id: Mapping[str, Fact], removed: set[str], key: str | None) -> str | None:
    """Return the id of the first successor that is not removed, if there is one."""
    visited: set[str] = set()
    while key in removed:
        if key in visited or key not in by_id:
            return None
        visited.add(key)
        key = by_id[key].superseded_by
    return key


def _find_kept_predecessors(
    by_id: Mapping[str, Fact], removed: set[str], keys: Sequence[str]
) -> tuple[str, ...]:
    """Return the ids of corrected facts; in place of a removed one, of those that it corrected itself."""
    kept: dict[str, None] = {}
    visited: set[str] = set()
    to_visit = list(reversed(keys))
    while to_visit:
        key = to_visit.pop()
        if key not in removed:
            kept[key] = None
        elif key not in visited and key in by_id:
            visited.add(key)
            to_visit += reversed(by_id[key].supersedes)
    return tuple(kept)


def forget_source(place: Place, thread: str, message: str) -> Steps[int]:
    """Remove the facts of a message and the summary of its thread, without marks; return their number."""
    for _ in range(TRIES):
        found = yield from _read_all_values(place)
        to_remove = [
            each.id for each in _read_facts(found) if (each.thread, each.message) == (thread, message)
        ]
        if not to_remove or (yield _plan_removal(place, found, to_remove)):
            break
    else:
        raise contention_error()
    for _ in range(TRIES):
        (item,) = yield [GetOp(place.summaries, thread, refresh_ttl=False)]
        summary = _unmarked_value(thread, item)
        if summary is None:
            return len(to_remove)
        if (yield FactChange([PutOp(place.summaries, thread, None)], {thread: summary})):
            return len(to_remove) + 1
    raise contention_error()


def forget_all(place: Place) -> Steps[int]:
    """Remove all facts and summaries; return their number.

    The time of the removal is stored first, so that nothing that began before it brings them back: an
    extraction that has not seen this time requires a fence (``steps.make_fence``) that is removed with the
    rest.
    """
    key, namespace_of_removals = place.removal
    yield [
        PutOp(
            namespace_of_removals, key, {"at": place.now().isoformat(), "removal": uuid4().hex}, index=False
        )
    ]
    removed = 0
    # The two inner namespaces first: a search of the user's whole namespace may miss a new one.
    for namespace in (place.facts, place.summaries, place.namespace):
        while True:
            (found,) = yield [SearchOp(namespace, None, _PAGE, 0, None, refresh_ttl=False)]
            if not found:
                break
            yield [PutOp(item.namespace, item.key, None) for item in found]
            removed += sum(not is_mark(item.value) for item in found)
    return removed


def read_namespaces(root: Sequence[str]) -> Steps[list[tuple[str, ...]]]:
    """Return the namespaces of all users, in order."""
    depth = len(root) + 1
    found = yield from _list_namespaces(MatchCondition("prefix", tuple(root)), depth)
    return sorted(each for each in found if len(each) == depth and each[-1] != REMOVALS)


def roots(label: str) -> Steps[list[tuple[str, ...]]]:
    """Return the namespaces that contain a namespace of facts or summaries under a user's label, in order."""
    out: set[tuple[str, ...]] = set()
    for kind in (FACTS, SUMMARIES):
        found = yield from _list_namespaces(MatchCondition("suffix", (label, kind)))
        out.update(each[:-2] for each in found)
    # Without a root above it, a namespace of this form is an application's own.
    return sorted(filter(None, out))


def _list_namespaces(condition: MatchCondition, depth: int | None = None) -> Steps[set[tuple[str, ...]]]:
    out: set[tuple[str, ...]] = set()
    offset = 0
    while True:
        (found,) = yield [ListNamespacesOp((condition,), depth, _PAGE, offset)]
        out.update(map(tuple, found))
        if len(found) < _PAGE:
            return out
        offset += len(found)


def _find_latest(
    place: Place, text: str
) -> Steps[tuple[Fact | None, int, dict[str, Mapping[str, Any] | None]]]:
    """Return the newest fact with an equal text, if any, the number that the next such fact gets, and the
    items that were read, by key. A forgotten text has a mark in place of its first fact."""
    latest: Fact | None = None
    number = 0
    values: dict[str, Mapping[str, Any] | None] = {}
    while True:
        # Several at once: a store with a time to live may have removed earlier ones, which leaves gaps.
        keys = [make_fact_id(text, number + ahead) for ahead in range(_AHEAD)]
        found = yield from _read_values(place, keys)
        values |= found
        found_keys = [key for key in keys if found[key] is not None]
        if not found_keys:
            return latest, number, values
        facts = _read_facts(found)
        latest = next((fact for fact in facts if fact.is_current), facts[-1] if facts else latest)
        number += keys.index(found_keys[-1]) + 1
        if latest is not None and latest.is_current:
            return latest, number, values


def _find_chain_ends(place: Place, keys: Sequence[str]) -> Steps[dict[str, Mapping[str, Any]]]:
    """Follow the corrections of facts to the ends of their chains, and return the values of the facts there,
    which are current or retracted."""
    found = yield from _require_facts(place, list(dict.fromkeys(keys)))
    ends: dict[str, Mapping[str, Any]] = {}
    visited = set(found)
    while found:
        facts = _read_facts(found)
        ends |= {fact.id: found[fact.id] for fact in facts if fact.is_current or not fact.superseded_by}
        successors = [fact.superseded_by for fact in facts if not fact.is_current and fact.superseded_by]
        following = yield from _read_values(
            place, [key for key in dict.fromkeys(successors) if key not in visited]
        )
        missing = {key for key, value in following.items() if value is None or is_mark(value)}
        # A missing successor was removed since, or has expired, so its predecessor is an end.
        ends |= {fact.id: found[fact.id] for fact in facts if fact.superseded_by in missing}
        found = {key: value for key, value in following.items() if value is not None and key not in missing}
        visited |= set(found)
    return ends


def _merge_readings(
    *read: Mapping[str, Mapping[str, Any] | None],
) -> dict[str, Mapping[str, Any] | None]:
    """Merge several readings. An item that was read twice has the earlier value: if others have changed it in
    between, the decision based on it is not stored."""
    seen: dict[str, Mapping[str, Any] | None] = {}
    for values in reversed(read):
        seen |= values
    return seen


def _require_facts(place: Place, keys: Sequence[str]) -> Steps[dict[str, Mapping[str, Any]]]:
    """Return the values of facts; raise ``NotFound`` if there is no such fact, or it was forgotten."""
    found = yield from _read_values(place, keys)
    out: dict[str, Mapping[str, Any]] = {}
    for key, value in found.items():
        if value is None or read_mark_time(key, value) is not None:
            raise _unknown_error(key)
        out[key] = value
    return out


def _read_values(place: Place, keys: Sequence[str]) -> Steps[dict[str, Mapping[str, Any] | None]]:
    if not keys:
        return {}
    items: list[Item | None] = yield [GetOp(place.facts, key, refresh_ttl=False) for key in keys]
    return dict(zip(keys, map(value_of, items), strict=True))


def _unmarked_value(key: str, item: Item | None) -> Mapping[str, Any] | None:
    """Return the value of an item, ``None`` if there is none, or a mark in its place."""
    if item is None or read_mark_time(key, item.value) is not None:
        return None
    return item.value


def _read_facts(values: Mapping[str, Mapping[str, Any] | None]) -> list[Fact]:
    """Return the facts among the values of items, without marks."""
    return [
        Fact.read(key, value)
        for key, value in values.items()
        if value is not None and read_mark_time(key, value) is None
    ]


def _refuse_forgotten(key: str, value: Mapping[str, Any] | None, heard_at: datetime) -> None:
    at = read_mark_time(key, value)
    if at is not None and heard_at <= at:
        raise Forgotten(
            f"the memory {key!r} was forgotten after the messages that it is taken from; it was not stored"
        )


def _put_facts(
    place: Place, changed: Sequence[Fact], seen: Mapping[str, Mapping[str, Any] | None]
) -> Steps[bool]:
    """Store facts, unless others have changed what was read; return True if they were stored."""
    if not changed:
        return True
    # A fact that is twice in ``changed`` was changed between two readings, so the store refuses the puts.
    puts = {fact.id: _put_fact(place, fact) for fact in changed}
    is_stored: bool = yield FactChange(list(puts.values()), seen)
    return is_stored


def _put_fact(place: Place, fact: Fact) -> PutOp:
    """Return the operation that stores a fact. Closed facts are not found by their text."""
    return PutOp(place.facts, fact.id, fact.dump(), index=_TEXT if fact.is_current else False)


def _read_all_values(place: Place) -> Steps[dict[str, Mapping[str, Any]]]:
    """Return the values of all facts and their marks, by key."""
    return {item.key: item.value for item in (yield from _read_all(place.facts))}


def _read_all(namespace: tuple[str, ...]) -> Steps[list[Any]]:
    """Return all items of a namespace, each once.

    Items written or removed between two pages move others across the border of the pages. So a namespace of
    more than one page is read again until two passes agree.
    """
    earlier_times: dict[str, Any] | None = None
    for _ in range(_PASSES_MAX):
        items: dict[str, Any] = {}
        offset = 0
        while True:
            (found,) = yield [SearchOp(namespace, None, _PAGE, offset, None, refresh_ttl=False)]
            items.update((item.key, item) for item in found)
            offset += len(found)
            if len(found) < _PAGE:
                break
        times = {key: item.updated_at for key, item in items.items()}
        if offset < _PAGE or times == earlier_times:
            return list(items.values())
        earlier_times = times
    raise Conflict("this memory keeps being changed, so it could not be read as a whole; try again")


def _read_entry(item: Any) -> Remembered | None:
    kind = Fact if item.namespace[-1] == FACTS else ThreadSummary
    try:
        return kind.read(item.key, item.value)
    except Corrupt:
        return None


def _get_order(entry: Remembered) -> tuple[datetime, str]:
    return entry.at, entry.id


def _unknown_error(key: str) -> NotFound:
    return NotFound(f"this user has no memory {key!r}; list them with facts(), or `perdure memory ls`")
