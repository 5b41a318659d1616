"""Limits how long callers wait for an unavailable server: all of them together, not one after another.

A server is unavailable if it refuses connections, and also if it accepts them but does not answer, as a
paused one. The same patience applies to both.
"""

from __future__ import annotations

import re
import time
from math import inf

from perdure.errors import BadUrl

PATIENCE_S = 5.0
"""Seconds for which a server is waited for, unless its URL names another number."""

_FAILURE_COUNTS_S = 0.5
_LONGEST_S = 3600
_LEAST_SILENCE_S = 2.0


class Outage:
    """The state of an unavailable server, shared by the connections of a driver.

    The server is waited for from the first failed attempt on, for ``patience_s`` seconds in all. After them a
    call makes one attempt only, and its failure counts for all calls of the next half second, which make
    none. If an attempt begins later than the patience after the last failure, its failure begins another
    outage.
    """

    def __init__(self, patience_s: float) -> None:
        self.patience_s = patience_s
        self._began_at = self._failed_at = -inf
        self._error: Exception | None = None

    @property
    def silence_s(self) -> float:
        """The seconds after which a server that says nothing is unavailable: the patience, and at least
        two."""
        return max(_LEAST_SILENCE_S, self.patience_s)

    def note(self, error: Exception, began: float) -> float:
        """Note a failed attempt that began at ``began``; return the time until which the server is waited
        for. Both are by ``time.monotonic``."""
        if self._error is None or began - self._failed_at > max(self.patience_s, _FAILURE_COUNTS_S):
            self._began_at = began
        self._failed_at, self._error = time.monotonic(), error
        return self._began_at + self.patience_s

    def end(self) -> None:
        """Note that the server was reached."""
        self._error = None

    def get_current_failure(self) -> Exception | None:
        """Return the last failure if it counts for a call that is made now: the patience is over, and an
        attempt failed less than half a second ago."""
        now = time.monotonic()
        is_over = now > self._began_at + self.patience_s and now - self._failed_at < _FAILURE_COUNTS_S
        if is_over:
            return self._error
        return None


def patience_of(shown: str, value: str | None) -> float:
    """Return the seconds of a URL's parameter ``patience``; ``BadUrl`` names a value that is not a number of
    seconds."""
    if value is None:
        return PATIENCE_S
    if not re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,6})?", value) or float(value) > _LONGEST_S:
        raise BadUrl(f"{shown}: patience={value!r} must be seconds from 0 to {_LONGEST_S}")
    return float(value)
