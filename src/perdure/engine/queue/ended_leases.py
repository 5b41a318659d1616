"""Leases of processes that have ended: they end at once, so that other workers need not wait for them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from perdure.engine.transact import ATTEMPTS
from perdure.model.ops import Commit, Committed, Fetch, FindDue, Get, Now
from perdure.model.program import Program, ask
from perdure.model.records import LANE, Partition
from perdure.model.runs.queue import Lane

_PAGE = 1000


def end(owners: Collection[str], tenant: str | None, ttl: int) -> Program[int]:
    """End the leases of some owners, and return their number. Their runs are due for other workers then, as
    they would be after the leases had expired.

    Args:
        owners: Names of processes that do nothing any more. A process that is alive would lose its work.
        tenant: The tenant, ``None`` for all.
        ttl: The duration of a lease, in microseconds.
    """
    now = yield from ask(Now())
    # A process knows the database's time to half the time of an answer: its lease may end a little later.
    find = FindDue(tenant, since=now, until=now + 2 * ttl, limit=_PAGE)
    seen: set[tuple[Partition, str]] = set()
    ended = 0
    while True:
        page = yield from ask(find)
        last: int | None = None
        for hit in page:
            if hit.record is None:
                continue
            (name,), last = hit.record.key, hit.record.fields["due_at"]
            if (hit.partition, name) not in seen:
                seen.add((hit.partition, name))
                ended += yield from _end(hit.partition, name, owners, now)
        if len(page) < find.limit or last is None:
            return ended
        # The next page begins at the time at which this one ended, and has to go beyond it.
        find = replace(find, since=last, limit=find.limit * 4 if last == find.since else _PAGE)


def _end(partition: Partition, name: str, owners: Collection[str], now: int) -> Program[bool]:
    for _ in range(ATTEMPTS):
        (found,) = yield from ask(Fetch(partition, (Get(LANE, (name,)),)))
        lane = Lane.read(name, found)
        if lane.owner not in owners or lane.lease_until is None or lane.lease_until <= now:
            return False
        # The version of a new record is not needed: there is one.
        ending = Commit(partition, (lane._replace(lease_until=now).put(lane.version),))
        if isinstance((yield from ask(ending)), Committed):
            return True
    return False
