"""The time of a service without a request for it: each of its answers carries a ``Date``.

That date is truncated to the second, and it was written at some moment between the request and the end of the
answer: so it bounds the difference between the service's clock and this host's. The bounds of several answers
together are narrower than those of one. Pure: the host's clocks are parameters, and no request is made here.
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
"""The age of an answer up to which the service's time is known."""

LOOSE = 50_000
"""The greatest difference between the clocks of the machines behind one service."""

DRIFT = 500
"""The greatest error of a host's steady clock in millionths. The bounds of an answer are widened by it with
the answer's age, until they mean little after half an hour."""


def _read_wall() -> int:
    return time.time_ns() // 1000


def _read_steady() -> int:
    return time.monotonic_ns() // 1000


class ServiceClock:
    """The service's clock, from its answers and two clocks of the host: ``steady`` never jumps while the host
    runs, ``wall`` is the host's date and time. Calls may come from many OS threads.

    The host's wall clock is used as it is while it is within the known bounds: hosts whose clocks are right
    agree to the millisecond. Outside of them it is replaced by the middle of the bounds, which is wrong by
    half a second at most after one quick answer, and by less after several. Time never goes back; a time that
    was too far ahead is repeated until it is reached.
    """

    def __init__(
        self, wall: Callable[[], int] = _read_wall, steady: Callable[[], int] = _read_steady
    ) -> None:
        self._read_wall = wall
        self._read_steady = steady
        self._lock = Lock()
        # Bounds of the service's clock minus the steady one, valid at the time of the last answer.
        self._bounds: tuple[int, int] | None = None
        self._answered_at = 0
        # The host's wall clock minus the steady one at that time.
        self._wall_lead = 0
        self._last_time = 0

    def start_request(self) -> int:
        """Return the start of a request, for ``note_answer``."""
        return self._read_steady()

    def note_answer(self, asked: int, date: str | None) -> None:
        """Narrow the bounds by an answer that has just arrived.

        Args:
            asked: The start of its request, from ``start_request``.
            date: Its ``Date``. An unreadable date is ignored. A date that contradicts earlier ones, as after
                the host was suspended, replaces them.
        """
        now = self._read_steady()
        second = _parse_date(date or "")
        if second is None:
            return
        doubt = LOOSE + _find_drift(now - asked)
        low, high = second * SECOND - now - doubt, (second + 1) * SECOND - asked + doubt
        with self._lock:
            if (known := self._widen_bounds(now)) is not None:
                narrowed = max(low, known[0]), min(high, known[1])
                if narrowed[0] <= narrowed[1]:
                    low, high = narrowed
            self._bounds, self._answered_at, self._wall_lead = (low, high), now, self._read_wall() - now

    @property
    def is_fresh(self) -> bool:
        """True if there was an answer lately and neither of the host's clocks has jumped since."""
        with self._lock:
            now = self._read_steady()
            has_jumped = abs(self._read_wall() - now - self._wall_lead) > SECOND
            return self._bounds is not None and now - self._answered_at <= FRESH and not has_jumped

    def now(self) -> int:
        """Return microseconds since 1970, never less than at an earlier call. Until the first answer this is
        the host's wall clock."""
        with self._lock:
            steady = self._read_steady()
            wall = self._read_wall()
            bounds = self._widen_bounds(steady)
            if bounds is not None and not bounds[0] <= wall - steady <= bounds[1]:
                wall = steady + sum(bounds) // 2
            self._last_time = max(self._last_time, wall)
            return self._last_time

    def _widen_bounds(self, now: int) -> tuple[int, int] | None:
        """Return the bounds, widened by the drift since the last answer."""
        if self._bounds is None:
            return None
        drift = _find_drift(now - self._answered_at)
        return self._bounds[0] - drift, self._bounds[1] + drift


def _find_drift(span: int) -> int:
    """Return the greatest error of the steady clock over a span of it, in microseconds."""
    return 1 + max(0, span) * DRIFT // SECOND


@lru_cache(maxsize=8)
def _parse_date(date: str) -> int | None:
    """Return the seconds since 1970 of an HTTP date, ``None`` if it is unreadable or has no time zone."""
    try:
        found = parsedate_to_datetime(date)
    except (ValueError, OverflowError):
        return None
    if found.tzinfo is None:
        return None
    return int(found.timestamp())
