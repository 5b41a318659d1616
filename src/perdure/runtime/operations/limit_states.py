"""Limits over all processes as operators see them: what is used now, what waits, and when each of them is
reset.

The states are those that the processes stored last, at most about a second ago. Reading them changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from perdure.database.handle import DatabaseHandle
from perdure.engine import limits as stored
from perdure.engine.limits import KeyState
from perdure.errors import BadSetting, NotFound
from perdure.model.budget_days import day_of
from perdure.model.limits import MONEY, SharedLimit, drop_expired, find_earliest, find_next_token
from perdure.model.ops import Now
from perdure.model.program import ask
from perdure.model.records import Partition

SETTABLE = ("concurrency", "rate", "burst", "tokens", "budget", "at_end", "wait")
"""Fields of a limit that can be set while processes run."""

_PAGE = 200


async def read_entries(
    handle: DatabaseHandle, tenant: str, limit: str | None, most: int, after: str | None = None
) -> tuple[list[dict[str, Any]], str | None]:
    """Return what is used and what is left of limits, for each key, as JSON data.

    Args:
        handle: The database.
        tenant: The tenant.
        limit: Name of a limit, ``None`` for all limits.
        most: The number of keys to examine.
        after: Where to continue.

    Returns:
        An entry for each key, and where to continue, ``None`` at the end.
    """
    now = await handle.arun(ask(Now()))
    prefix = stored.PREFIX
    if limit is not None:
        prefix = stored.prefix_of(handle.alias, limit)
    place = None
    if after is not None:
        place = stored.partition_of(tenant, after)
    found, last = await handle.arun(stored.read_states(tenant, most, prefix=prefix, after=place))
    return [entry_of(each, now) for each in found], None if last is None else last.thread


async def read_largest(
    handle: DatabaseHandle, tenant: str, limit: str | None, most: int | None = None
) -> tuple[list[dict[str, Any]], int]:
    """Return the entries of the keys of which the largest part is used, that part first, and the number of
    all keys. Each key is read.

    Args:
        handle: The database.
        tenant: The tenant.
        limit: Name of a limit, ``None`` for all limits.
        most: The number of keys to return, by default all.
    """
    found: list[dict[str, Any]] = []
    after: str | None = None
    while True:
        entries, after = await read_entries(handle, tenant, limit, _PAGE, after)
        found += entries
        if after is None:
            break
    found.sort(key=lambda entry: (-entry["share"], entry["limit"], sorted(entry["key"].items())))
    return found[:most], len(found)


async def find_of_user(handle: DatabaseHandle, tenant: str, user: str) -> list[dict[str, Any]]:
    """Return the entries of the keys that have a user as a part. Each key is read."""
    found, _ = await read_largest(handle, tenant, None)
    shown = stored.place(tenant, handle.alias, "", {"user": user}).key["user"]
    return [entry for entry in found if entry["key"].get("user") == shown]


def entry_of(found: KeyState, now: int) -> dict[str, Any]:
    """Return the state of a key as JSON data; times are microseconds since 1970.

    Returns:
        ``limit`` and ``key``; ``of``, the kind of calls that it limits; ``waiting``, the number of calls or
        runs that wait; ``processes``, those that have a share; ``share``, the used part of the amount of
        which most is used, from 0 on; and for each amount of the limit an entry with the ``most`` that it
        allows:

        - ``concurrency``: also the places that are ``used``.
        - ``rate`` and ``tokens``: the most in a minute; also the ``burst`` that may begin at once, how much
          of it is ``left`` now, and ``next_at``, the time at which there is more.
        - ``budget``: also the money that is ``spent``, the money that processes have set aside for calls
          (``held``), and the time at which the budget is reset (``resets_at``).
    """
    limit = SharedLimit(**found.amounts)
    state = drop_expired(limit, found.state, now)
    parts = sorted(state.parts.items())
    entry: dict[str, Any] = {
        "limit": found.place.limit,
        "key": dict(found.place.key),
        "of": limit.of,
        "waiting": sum(part.waiting for _, part in parts),
    }
    shares = [0.0]
    if limit.concurrency is not None:
        used = sum(part.places for _, part in parts)
        entry["concurrency"] = {"most": limit.concurrency, "used": used}
        shares.append(used / limit.concurrency)
    if limit.rate is not None:
        left = _describe_left(state.next_call, limit.interval_us, limit.burst_size, now)
        entry["rate"] = {"most": limit.rate, **left}
        shares.append(1 - left["left"] / limit.burst_size)
    if limit.tokens is not None:
        moment = find_next_token(limit, state)
        left = _describe_left(moment, limit.token_interval_us, limit.token_burst, now)
        entry["tokens"] = {"most": limit.tokens, **left}
        shares.append(1 - left["left"] / limit.token_burst)
    if limit.budget is not None:
        spent, held = state.spent / MONEY, sum(part.money for _, part in parts) / MONEY
        entry["budget"] = {
            "most": limit.budget,
            "spent": spent,
            "held": held,
            "resets_at": day_of(limit.timezone, now)[1],
        }
        shares.append((spent + held) / limit.budget)
    entry["share"] = max(shares)
    entry["processes"] = [
        {"name": name, "places": part.places, "waiting": part.waiting, "lease_until": part.until}
        for name, part in parts
    ]
    return entry


def _describe_left(moment: int, interval: float, burst: int, now: int) -> dict[str, Any]:
    """Describe the rest of a rate whose next permit has the moment ``moment``."""
    start = max(moment, find_earliest(now, interval, burst))
    if start > now:
        return {"burst": burst, "left": 0, "next_at": start}
    return {"burst": burst, "left": math.floor((now - start) / interval) + 1, "next_at": None}


async def set_amounts(
    handle: DatabaseHandle, tenant: str, limit: str, amounts: Mapping[str, Any]
) -> dict[str, Any]:
    """Set amounts of a limit for a tenant, beside those that were set before. Processes follow them within
    about 10 seconds.

    Returns:
        All amounts that are set for the limit now.

    Raises:
        BadSetting: An amount is out of range.
    """
    if unknown := sorted(set(amounts) - set(SETTABLE)):
        raise BadSetting(f"limit {limit!r}: {unknown[0]} cannot be set; there are {', '.join(SETTABLE)}")
    before = (await handle.arun(stored.read_amounts(tenant))).get(limit, {})
    merged = {**before, **amounts}
    try:
        # The declared amounts are not known here; each amount is checked by itself.
        fields: dict[str, Any] = {"rate": 1, **merged}
        SharedLimit(**fields)
    except ValueError as error:
        raise BadSetting(f"limit {limit!r}: {error}; nothing was set") from None
    now = await handle.arun(ask(Now()))
    await handle.arun(stored.set_amounts(tenant, limit, merged, now, handle.draw_version()))
    return merged


async def read_amounts(handle: DatabaseHandle, tenant: str) -> dict[str, Mapping[str, Any]]:
    """Return the amounts set for a tenant's limits, by the limits' names."""
    return await handle.arun(stored.read_amounts(tenant))


async def clear_amounts(handle: DatabaseHandle, tenant: str, limit: str) -> None:
    """Let the amounts of the configuration count again."""
    await handle.arun(
        stored.set_amounts(tenant, limit, {}, await handle.arun(ask(Now())), handle.draw_version())
    )


async def read_entry(
    handle: DatabaseHandle, tenant: str, limit: str, key: Mapping[str, str]
) -> dict[str, Any]:
    """Return what is used and what is left of a limit for a key, as ``entry_of`` does.

    Raises:
        NotFound: The limit is not in use for this key.
    """
    found = await handle.arun(stored.read_state(_place(handle, tenant, limit, key)))
    if found is None:
        raise _not_found_error(limit, key)
    return entry_of(found, await handle.arun(ask(Now())))


async def reset(handle: DatabaseHandle, tenant: str, limit: str, key: Mapping[str, str]) -> None:
    """Reset the rate, the tokens and the budget of a key; what is under way keeps its place.

    Raises:
        NotFound: The limit is not in use for this key.
    """
    now = await handle.arun(ask(Now()))
    if not await handle.arun(stored.reset(_place(handle, tenant, limit, key), now, handle.draw_version())):
        raise _not_found_error(limit, key)


def _place(handle: DatabaseHandle, tenant: str, limit: str, key: Mapping[str, str]) -> Partition:
    return stored.place(tenant, handle.alias, limit, key).partition


def _not_found_error(limit: str, key: Mapping[str, str]) -> NotFound:
    of = "".join(f" of {what} {name!r}" for what, name in key.items())
    return NotFound(
        f"limit {limit!r}{of}: nothing of it is in use; `perdure limits ls` has the keys that are"
    )
