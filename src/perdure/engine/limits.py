"""Limits that processes share: the stored state of each key of a limit, changed by compare-and-set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from perdure.engine import documents
from perdure.engine.documents import Document
from perdure.engine.transact import retry_attempt
from perdure.model.limits import Demand, LimitState, Share, SharedLimit, is_blank, take
from perdure.model.ops import Expect, Fetch, FindThreads, Get
from perdure.model.program import Program, ask
from perdure.model.records import DOCUMENT, SERVER, Partition

_PREFIX = "limit:"
_STATE = ("limit", "state")
_AMOUNTS = "limit_amounts"
_PAGE = 200


class LimitPlace(NamedTuple):
    """Where the state of a limit for one key is stored.

    Attributes:
        partition: Its own partition, so that no key waits for another.
        limit: Name of the limit.
        key: What the key is made of, e.g. the user.
    """

    partition: Partition
    limit: str
    key: Mapping[str, str]


class Taken(NamedTuple):
    """Share of a process, with the state that it was taken from.

    Attributes:
        share: What it was given.
        before: Time of the last change before, 0 if there was none.
        document: The state as it is stored now, ``None`` if it is not.
        is_first: True if no other writer came in between.
    """

    share: Share
    before: int
    document: Document | None
    is_first: bool


def place(tenant: str, alias: str, limit: str, key: Mapping[str, str]) -> LimitPlace:
    """Return the place of a limit's state for a key, of which ``alias`` is the name of its partition."""
    return LimitPlace(Partition(tenant, f"{_PREFIX}{alias}", SERVER), limit, key)


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
        demand: What the process asks for.
        now: Time of the database.
        fresh: A number that was never used before.
        known: The state as it was stored the last time, ``None`` to read it.

    Raises:
        Contention: others change it all the time.
    """
    tries = 0

    def load() -> Program[tuple[Document | None]]:
        return ((yield from documents.get(at.partition, *_STATE)),)

    def attempt(view: tuple[Document | None]) -> Program[Taken | None]:
        nonlocal tries
        tries += 1
        (document,) = view
        before = LimitState() if document is None else LimitState.of_body(document.body["state"])
        after, share = take(limit, before, demand, now)
        if after == before:
            # Nothing was given, and what it holds need not be renewed yet.
            return Taken(share, before.at, document, tries == 1)
        if document is not None and is_blank(limit, after, now):
            removed = yield from documents.remove(at.partition, *_STATE, document.version)
            return Taken(share, before.at, None, tries == 1) if removed else None
        body = {"limit": at.limit, "key": dict(at.key), "state": after.to_body()}
        expect = Expect.ABSENT if document is None else document.version
        stored = yield from documents.put(at.partition, *_STATE, body, now, expect, fresh=fresh)
        return None if stored is None else Taken(share, before.at, stored, tries == 1)

    return (yield from retry_attempt(at.partition, known, load, attempt))


def read_states(
    tenant: str | None, limit: str | None, most: int
) -> Program[list[tuple[LimitPlace, LimitState]]]:
    """Return the states that are stored, of a tenant or all, of one limit or all, at most ``most``."""
    out: list[tuple[LimitPlace, LimitState]] = []
    after: Partition | None = None
    while len(out) < most:
        find = FindThreads(tenant, space=SERVER, after=after, limit=_PAGE, prefix=_PREFIX)
        page = yield from ask(find)
        for hit in page:
            (found,) = yield from ask(Fetch(hit.partition, (Get(DOCUMENT, _STATE),)))
            for record in found:
                body = Document.read(record).body
                if limit in (None, body["limit"]):
                    out.append(
                        (
                            LimitPlace(hit.partition, body["limit"], body["key"]),
                            LimitState.of_body(body["state"]),
                        )
                    )
        if len(page) < _PAGE:
            break
        after = page[-1].partition
    return out[:most]


def _amounts(tenant: str) -> Partition:
    return Partition(tenant, "limits", SERVER)


def read_amounts(tenant: str) -> Program[dict[str, Mapping[str, Any]]]:
    """Return the amounts that were set for a tenant's limits, by their names. They count instead of those of
    the configuration."""
    found = yield from documents.newest(_amounts(tenant), _AMOUNTS, _PAGE)
    return {each.name: each.body for each in found if each.fault is None}


def set_amounts(tenant: str, limit: str, amounts: Mapping[str, Any], now: int, fresh: int) -> Program[None]:
    """Set amounts of a limit for a tenant; without any, those of the configuration count again."""
    if not amounts:
        yield from documents.remove(_amounts(tenant), _AMOUNTS, limit)
        return
    body = dict(amounts)
    yield from documents.change(_amounts(tenant), _AMOUNTS, limit, lambda _: body, now, fresh)
