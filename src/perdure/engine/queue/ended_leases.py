"""Ends the leases of processes that have ended, so that other workers need not wait until these expire."""

from __future__ import annotations

from collections.abc import Collection

from perdure.engine.queue.due_pages import DuePages
from perdure.engine.requests import read_lane, try_commit
from perdure.engine.transact import ATTEMPTS
from perdure.model.ops import Now
from perdure.model.program import Program, ask
from perdure.model.records import Partition


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
    pages = DuePages(tenant, since=now, until=now + 2 * ttl)
    ended = 0
    while not pages.is_last:
        for partition, name, _ in (yield from pages.read_next()):
            ended += yield from _end(partition, name, owners, now)
    return ended


def _end(partition: Partition, name: str, owners: Collection[str], now: int) -> Program[bool]:
    for _ in range(ATTEMPTS):
        lane = yield from read_lane(partition, name)
        if lane.owner not in owners or lane.lease_until is None or lane.lease_until <= now:
            return False
        # The argument is the version of a new record, and is not used: the record exists.
        ending = lane._replace(lease_until=now).put(lane.version)
        if (yield from try_commit(partition, (ending,))):
            return True
    return False
