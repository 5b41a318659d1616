"""Permits of a rate that a process was given, each with its moment on the process's own clock."""

from __future__ import annotations

import math
from collections import deque


class Permits:
    """Permits in order of their moments; all times are seconds of the event loop's clock.

    A permit may be used from its moment on, until it lapses.

    Args:
        interval: Time between two permits.
        lasts: Time for which a permit lasts.
    """

    def __init__(self, interval: float, lasts: float) -> None:
        self._interval = interval
        self._lasts = lasts
        self._spans: deque[tuple[float, int]] = deque()

    def add(self, first: float, count: int) -> None:
        """Add permits, the first with this moment."""
        if count:
            self._spans.append((first, count))

    def put_back(self, moment: float) -> None:
        """Add a permit again whose call did not begin."""
        self._spans.appendleft((moment, 1))

    def lapse(self, now: float) -> None:
        """Remove lapsed permits."""
        while self._spans:
            first, count = self._spans[0]
            lapsed = min(count, math.ceil((now - self._lasts - first) / self._interval))
            if lapsed <= 0:
                return
            self._spans.popleft()
            if lapsed < count:
                self._spans.appendleft((first + lapsed * self._interval, count - lapsed))
                return

    def __len__(self) -> int:
        return sum(count for _, count in self._spans)

    def count_ready(self, now: float) -> int:
        """Return the number of permits that can be used now."""
        return sum(
            max(0, min(count, math.floor((now - first) / self._interval) + 1)) for first, count in self._spans
        )

    def find_moment(self, number: int = 1) -> float | None:
        """Return the moment from which so many permits can be used, ``None`` if there are fewer."""
        for first, count in self._spans:
            if number <= count:
                return first + (number - 1) * self._interval
            number -= count
        return None

    @property
    def ends(self) -> float:
        """Moment of the last permit, minus infinity if there is none."""
        if not self._spans:
            return -math.inf
        first, count = self._spans[-1]
        return first + (count - 1) * self._interval

    def use(self, number: int = 1) -> None:
        """Remove the first ``number`` permits; there have to be at least as many."""
        while number:
            first, count = self._spans.popleft()
            used = min(number, count)
            number -= used
            if used < count:
                self._spans.appendleft((first + used * self._interval, count - used))
