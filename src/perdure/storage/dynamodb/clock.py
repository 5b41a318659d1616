"""What time it is for a service that cannot be asked for it: each of its answers carries a ``Date``.

That date is cut to the second, and it was written at some moment between the request and the end of the
answer: so it bounds how far the service's clock can be from one of this host. The bounds of several answers
together are narrower than those of one. Pure: the host's clocks are given, and nobody is asked here.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from functools import lru_cache
from threading import Lock

SECOND = 1_000_000
"""In microseconds, as all times here."""

FRESH = 60 * SECOND
"""How long after an answer the service's time is still known."""

LOOSE = 50_000
"""By how much the machines behind one service may disagree."""

DRIFT = 500
"""By how many millionths a host's steady clock may be too fast or too slow; what an answer said is worth less
with age, and about nothing after half an hour."""


def _wall() -> int:
    return time.time_ns() // 1000


def _steady() -> int:
    return time.monotonic_ns() // 1000


class ServiceClock:
    """The service's clock, from its answers and two clocks of the host: ``steady`` never jumps while the host
    runs, ``wall`` is what the host believes. Calls may come from many threads.

    Where nothing that was heard speaks against the host's wall clock, it is used as it is: hosts whose clocks
    are right agree to the millisecond. One that cannot be right is replaced by the middle of what can be: off
    by half a second at most after one quick answer, and by less after several. Time never goes back; where it
    ran ahead it stands until it is true again.
    """

    def __init__(self, wall: Callable[[], int] = _wall, steady: Callable[[], int] = _steady) -> None:
        self._wall = wall
        self._steady = steady
        self._lock = Lock()
        # Between these lies the service's clock less the steady one, as it was known ``at`` the last answer.
        self._bounds: tuple[int, int] | None = None
        self._at = 0
        self._lead = 0
        self._last = 0

    def asking(self) -> int:
        """The moment of a request that is about to be made, for ``heard``."""
        return self._steady()

    def heard(self, asked: int, date: str | None) -> None:
        """Learn from an answer that has just come: when it was asked for, and its ``Date``. One that cannot
        be read teaches nothing; one that contradicts those before, as after a sleep, replaces them."""
        now = self._steady()
        second = _seconds(date) if date else None
        if second is None:
            return
        doubt = LOOSE + _drift(now - asked)
        low, high = second * SECOND - now - doubt, (second + 1) * SECOND - asked + doubt
        with self._lock:
            if (before := self._known(now)) is not None:
                both = max(low, before[0]), min(high, before[1])
                low, high = both if both[0] <= both[1] else (low, high)
            self._bounds, self._at, self._lead = (low, high), now, self._wall() - now

    @property
    def is_fresh(self) -> bool:
        """Whether there was an answer lately and neither of the host's clocks has jumped since."""
        with self._lock:
            now = self._steady()
            jumped = abs(self._wall() - now - self._lead) > SECOND
            return self._bounds is not None and now - self._at <= FRESH and not jumped

    def now(self) -> int:
        """Microseconds since 1970, never less than before. Without any answer the host's wall clock is all
        there is."""
        with self._lock:
            steady = self._steady()
            found = self._wall()
            bounds = self._known(steady)
            if bounds is not None and not bounds[0] <= found - steady <= bounds[1]:
                found = steady + sum(bounds) // 2
            self._last = max(self._last, found)
            return self._last

    def _known(self, now: int) -> tuple[int, int] | None:
        """The bounds as far as they still hold."""
        if self._bounds is None:
            return None
        drift = _drift(now - self._at)
        return self._bounds[0] - drift, self._bounds[1] + drift


def _drift(span: int) -> int:
    """By how much the steady clock may be off at the end of a span of it."""
    return 1 + max(0, span) * DRIFT // SECOND


@lru_cache(maxsize=8)
def _seconds(date: str) -> int | None:
    """Seconds since 1970 of an HTTP date."""
    try:
        found = parsedate_to_datetime(date)
    except (ValueError, OverflowError):
        return None
    return None if found.tzinfo is None else int(found.timestamp())
