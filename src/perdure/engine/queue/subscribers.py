"""Record that a thread is followed, for the process that works on the thread's runs.

A follower in another process reads a run's events from the log, so they have to be stored. The record expires
unless it is renewed, so that a process that ended leaves no lasting claim.
"""

from __future__ import annotations

from perdure.engine.requests import read_lane, try_commit
from perdure.model.ops import Check, Delete, Expect, Get, Op, Put
from perdure.model.program import Program
from perdure.model.records import DOCUMENT, LANE, OF_THREAD, Key, Kind, Partition
from perdure.model.runs.queue import FOLLOWED, IN, Lane

GET = Get(LANE, (FOLLOWED,))
"""Get of the record; ``Lane.read(FOLLOWED, answer)`` decodes the answer."""

_OF_THREAD: tuple[tuple[Kind, Key], ...] = ((LANE, (IN,)), (DOCUMENT, OF_THREAD))
"""Records of which every thread with runs, and every one that a client created, has one."""


def note(partition: Partition, until: int, fresh: int) -> Program[None]:
    """Record that a thread is followed up to a time, in place of an earlier record. The thread need not exist
    yet."""
    yield from try_commit(partition, (_make_put(until, fresh, Expect.ANY),))


def renew(partition: Partition, until: int, fresh: int) -> Program[bool]:
    """Record as ``note`` does that a thread is still followed, unless the thread was deleted, and the record
    with it. If a thread of its name exists since, that is followed.

    Returns:
        False if nothing was stored.
    """
    ways: tuple[tuple[Op, ...], ...] = (
        (_make_put(until, fresh, Expect.PRESENT),),
        *((Check(*shown, Expect.PRESENT), _make_put(until, fresh, Expect.ANY)) for shown in _OF_THREAD),
    )
    for ops in ways:
        if (yield from try_commit(partition, ops)):
            return True
    return False


def _make_put(until: int, fresh: int, expect: Expect) -> Put:
    return Lane(FOLLOWED).at_time(until).put(fresh)._replace(expect=expect)


def is_followed(lane: Lane, now: int) -> bool:
    """Return True if the record shows that the thread is followed at ``now``."""
    return lane.due_at is not None and lane.due_at > now


def check_unchanged(lane: Lane | None) -> Check:
    """Return the check that the record is as it was read, or still absent."""
    return Check(LANE, (FOLLOWED,), (lane or Lane(FOLLOWED)).version or Expect.ABSENT)


def forget(partition: Partition, now: int) -> Program[bool]:
    """Remove the record if it has expired. Return ``False``, as there is never more to remove."""
    lane = yield from read_lane(partition, FOLLOWED)
    if lane.version and not is_followed(lane, now):
        # This is refused if the record was renewed meanwhile.
        yield from try_commit(partition, (Delete(LANE, (FOLLOWED,), lane.version),))
    return False
