"""Days of a budget in a time zone, and how long the spending of a day counts."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime, timedelta
from zoneinfo import ZoneInfo

_SET_BACK_US = 3600 * 1_000_000
"""Time after the end of a day for which its spending is kept, as a clock may be set back over midnight."""
_AHEAD_US = 2 * 86_400 * 1_000_000
"""A day that ends later than this ahead of now was begun by a wrong clock."""


def day_of(timezone: str, now: int) -> tuple[str, int]:
    """Return the name of the day in a time zone, and the time at which it ends."""
    day = datetime.fromtimestamp(now / 1_000_000, ZoneInfo(timezone)).date().isoformat()
    return day, _find_day_end(timezone, day)


def find_spending_ends(timezone: str, spent: Mapping[str, int], now: int) -> list[int]:
    """Return the times until which the amounts ``spent`` on days count, only those in the future."""
    ends = (_find_day_end(timezone, day) for day, amount in spent.items() if day and amount > 0)
    return [end + _SET_BACK_US for end in ends if now < end + _SET_BACK_US and end <= now + _AHEAD_US]


def _find_day_end(timezone: str, day: str) -> int:
    following = date.fromisoformat(day) + timedelta(days=1)
    ends = datetime(following.year, following.month, following.day, tzinfo=ZoneInfo(timezone))
    return round(ends.timestamp() * 1_000_000)
