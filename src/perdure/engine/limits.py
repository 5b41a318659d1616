"""Limits that processes share: the stored state of each key of a limit, changed by compare-and-set.

Each key has a partition of its own: a document with its state, and a queue record that is due when the state
may be obsolete, so that workers remove the keys of users who are gone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from perdure.engine import documents
from perdure.engine.documents import Document
from perdure.engine.requests import commit_for, try_commit
from perdure.engine.transact import retry_attempt
from perdure.model.limits import Demand, LimitState, Share, SharedLimit, find_blank_time, is_blank, take
from perdure.model.ops import Delete, Expect, Fetch, FindThreads, Get, Op
from perdure.model.program import Program, ask
from perdure.model.records import DOCUMENT, LANE, SERVER, Partition
from perdure.model.runs.queue import LIMITS, Lane

PREFIX = "limit:"
"""Beginning of the names of the partitions of all keys."""
_STATE = ("limit", "state")
_AMOUNTS = "limit_amounts"
_PAGE = 200
_IDLE_US = 600_000_000
"""Time after which a possibly idle key is checked, at the latest after twice as long."""
_SHOWN_MAX = 200
"""Characters of a part of a key that are stored, to be shown."""


class LimitPlace(NamedTuple):
    """Where the state of a limit for one key is stored.

    Attributes:
        partition: Its own partition, so that no key waits for another.
        limit: Name of the limit.
        key: The parts of the key, e.g. the user, for display: long names are cut.
    """

    partition: Partition
    limit: str
    key: Mapping[str, str]


class Taken(NamedTuple):
    """Share of a process, with the state that it was taken from.

    Attributes:
        share: The granted share.
        before: Time of the last change before this one, 0 if there was none.
        document: The state as it is stored now, ``None`` if it is not.
        is_first: True if no other writer came in between.
    """

    share: Share
    before: int
    document: Document | None
    is_first: bool


class KeyState(NamedTuple):
    """State of a key as it is stored.

    Attributes:
        place: Where it is stored, with its key.
        amounts: The limit's amounts, as known to the process that wrote the state last.
        state: The state.
    """

    place: LimitPlace
    amounts: Mapping[str, Any]
    state: LimitState


Alias = Callable[..., str]
"""Returns a short name that stands for names, such as ``DatabaseHandle.alias``."""


def prefix_of(alias: Alias, limit: str) -> str:
    """Return the beginning of the names of the partitions of a limit's keys."""
    return f"{PREFIX}{alias('limit', limit)}:"


def partition_of(tenant: str, name: str) -> Partition:
    """Return the partition of a key by its name, as a cursor."""
    return Partition(tenant, name, SERVER)


def place(tenant: str, alias: Alias, limit: str, key: Mapping[str, str]) -> LimitPlace:
    """Return the place of a limit's state for a key."""
    of_key = alias("limit key", *(part for pair in sorted(key.items()) for part in pair))
    # The names are stored to be shown, so cut and escape them: users choose any length and content.
    shown = {what: _cut(name).encode(errors="backslashreplace").decode() for what, name in key.items()}
    return LimitPlace(Partition(tenant, prefix_of(alias, limit) + of_key, SERVER), limit, shown)


def _cut(name: str) -> str:
    if len(name) <= _SHOWN_MAX:
        return name
    return f"{name[:_SHOWN_MAX]}…"


def take_share(
    at: LimitPlace,
    limit: SharedLimit,
    demand: Demand,
    now: int,
    fresh: int,
    known: tuple[Document | None] | None,
) -> Program[Taken]:
    """Take what a process may have of a limit.

    Args:
        at: Where its state is stored.
        limit: The limit.
        demand: The demand of the process.
        now: Time of the database.
        fresh: A number that was never used before.
        known: The state as it was stored the last time, ``None`` to read it.

    Raises:
        Contention: others keep changing it.
    """
    tries = 0

    def load() -> Program[tuple[Document | None]]:
        return ((yield from documents.get(at.partition, *_STATE)),)

    def attempt(view: tuple[Document | None]) -> Program[Taken | None]:
        nonlocal tries
        tries += 1
        (document,) = view
        before = LimitState()
        if document is not None:
            before = LimitState.of_body(document.body["state"])
        after, share = take(limit, before, demand, now)
        if after == before:
            # Nothing was granted, and the process's lease need not be renewed yet.
            return Taken(share, before.at, document, tries == 1)
        if document is not None and is_blank(limit, after, now):
            taken = Taken(share, before.at, None, tries == 1)
            return (yield from commit_for(at.partition, _plan_removal(document), taken))
        stored = yield from _store(at, limit, after, now, document, fresh)
        return stored and Taken(share, before.at, stored, tries == 1)

    return (yield from retry_attempt(at.partition, known, load, attempt))


def _store(
    at: LimitPlace, limit: SharedLimit, state: LimitState, now: int, before: Document | None, fresh: int
) -> Program[Document | None]:
    body = {"limit": at.limit, "key": dict(at.key), "amounts": limit.amounts, "state": state.to_body()}
    if before is not None:
        return (yield from documents.put(at.partition, *_STATE, body, now, before.version, fresh=fresh))
    write, stored = documents.plan_create(*_STATE, body, now, fresh)
    # Spread the checks of keys that were made at the same time.
    lane = Lane(LIMITS).at_time(now + _IDLE_US + fresh % _IDLE_US).put(fresh)._replace(expect=Expect.ANY)
    return (yield from commit_for(at.partition, (write, lane), stored))


def _plan_removal(document: Document) -> tuple[Op, ...]:
    return Delete(DOCUMENT, _STATE, document.version), Delete(LANE, (LIMITS,))


def forget(partition: Partition, now: int) -> Program[bool]:
    """Remove the state of a key if it limits nothing any more; otherwise schedule the next look. Return
    ``False``: there is never more to do."""
    lanes, found = yield from ask(Fetch(partition, (Get(LANE, (LIMITS,)), Get(DOCUMENT, _STATE))))
    lane = Lane.read(LIMITS, lanes)
    if not lane.version:
        return False
    if not found:
        yield from try_commit(partition, (Delete(LANE, (LIMITS,), lane.version),))
        return False
    document = Document.read(found[0])
    kept = _read(partition, document)
    blank = find_blank_time(SharedLimit(**kept.amounts), kept.state, now)
    if blank <= now:
        yield from try_commit(partition, _plan_removal(document))
        return False
    again = max(blank, now + _IDLE_US) + lane.version % _IDLE_US
    yield from try_commit(partition, (lane.at_time(again).put(0),))
    return False


def _read(partition: Partition, document: Document) -> KeyState:
    body = document.body
    at = LimitPlace(partition, body["limit"], body["key"])
    return KeyState(at, body["amounts"], LimitState.of_body(body["state"]))


def read_states(
    tenant: str | None, most: int, *, prefix: str = PREFIX, after: Partition | None = None
) -> Program[tuple[list[KeyState], Partition | None]]:
    """Return states that are stored, of a tenant or all, in order of their places.

    Args:
        tenant: The tenant.
        most: Maximum number of places to check.
        prefix: ``prefix_of`` a limit, to return only its states.
        after: Place to go on from.

    Returns:
        The states, and the place to go on from; ``None`` at the end.
    """
    states: list[KeyState] = []
    page = yield from ask(FindThreads(tenant, space=SERVER, after=after, limit=most, prefix=prefix))
    for hit in page:
        if (state := (yield from read_state(hit.partition))) is not None:
            states.append(state)  # noqa: PERF401 - it yields
    if len(page) < most:
        return states, None
    return states, page[-1].partition


def read_state(partition: Partition) -> Program[KeyState | None]:
    """Return the state of a key, ``None`` if none is stored."""
    document = yield from documents.get(partition, *_STATE)
    return document and _read(partition, document)


def reset(partition: Partition, now: int, fresh: int) -> Program[bool]:
    """Reset the rate, the tokens and the budget of a key, as if nothing was used; a call that is under way
    keeps its place. ``False`` if no state is stored."""

    def reset_state(document: Document | None) -> Mapping[str, Any] | None:
        if document is None:
            return None
        state = LimitState.of_body(document.body["state"])
        state = state._replace(next_call=0, next_token=0, owed_tokens=0, spent=0, other_spent=0)
        return {**document.body, "state": state.to_body()}

    return (yield from documents.change(partition, *_STATE, reset_state, now, fresh)) is not None


def _amounts(tenant: str) -> Partition:
    return Partition(tenant, "limits", SERVER)


def read_amounts(tenant: str) -> Program[dict[str, Mapping[str, Any]]]:
    """Return the amounts that were set for a tenant's limits, by their names. They take precedence over those
    of the configuration."""
    found = yield from documents.list_newest(_amounts(tenant), _AMOUNTS, _PAGE)
    return {each.name: each.body for each in found if each.fault is None}


def set_amounts(tenant: str, limit: str, amounts: Mapping[str, Any], now: int, fresh: int) -> Program[None]:
    """Set amounts of a limit for a tenant; without any, those of the configuration count again."""
    if not amounts:
        yield from documents.remove(_amounts(tenant), _AMOUNTS, limit)
        return
    body = dict(amounts)
    yield from documents.change(_amounts(tenant), _AMOUNTS, limit, lambda _: body, now, fresh)
