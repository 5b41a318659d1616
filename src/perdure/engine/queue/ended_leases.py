"""Ends the leases of processes that have ended, so that other workers need not wait until these expire."""

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
    """End the leases of some owners, and return their number. The runs under these leases are then due for
    other workers, as if the leases had expired.

    Args:
        owners: Names of processes that do nothing any more. A process that is alive would lose its work.
        tenant: The tenant, ``None`` for all.
        ttl: The duration of a lease, in microseconds.
    """
    now = yield from ask(Now())
    # A process estimates the database's time with an error of up to half a round trip, so its lease may end a
    # little later than ``ttl`` from now.
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
        # The next page begins at the time at which this one ended. If all of this page has that time, the
        # next one is larger, to go beyond it.
        find = replace(find, since=last, limit=find.limit * 4 if last == find.since else _PAGE)


def _end(partition: Partition, name: str, owners: Collection[str], now: int) -> Program[bool]:
    for _ in range(ATTEMPTS):
        (found,) = yield from ask(Fetch(partition, (Get(LANE, (name,)),)))
        lane = Lane.read(name, found)
        if lane.owner not in owners or lane.lease_until is None or lane.lease_until <= now:
            return False
        # The argument is the version of a new record, and is not used: the record exists.
        ending = Commit(partition, (lane._replace(lease_until=now).put(lane.version),))
        if isinstance((yield from ask(ending)), Committed):
            return True
    return False
