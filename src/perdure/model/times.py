"""Conversion of times, which are stored as microseconds since 1970, to and from dates and text.

The time of a LangGraph checkpoint is in its id, a UUID of version 6. Only integers are used: a float would
round the last microsecond of the year 9999.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

_UUID_EPOCH = 12_219_292_800_000_000
"""Microseconds from the start of a UUID's calendar to 1970."""


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def to_datetime(micros: int) -> datetime:
    """Return a time as a date in UTC; raises ``OverflowError`` outside of the years 1 to 9999."""
    return _EPOCH + micros * _MICROSECOND


def to_micros(time: datetime) -> int:
    """Return the time of a date. A date without a zone is taken as UTC on every host."""
    return ((time if time.tzinfo is not None else time.replace(tzinfo=UTC)) - _EPOCH) // _MICROSECOND


def time_of(checkpoint_id: str) -> int | None:
    """Return the time at which a checkpoint was created in microseconds since 1970, or ``None`` if its id
    is not a UUID of version 6."""
    try:
        uuid = UUID(checkpoint_id)
    except ValueError:
        return None
    if uuid.version != 6:
        return None
    value = uuid.int
    ticks = (value >> 96) << 28 | ((value >> 80) & 0xFFFF) << 12 | ((value >> 64) & 0xFFF)
    return ticks // 10 - _UUID_EPOCH


def read_time(text: str) -> int:
    """Convert a time in ISO 8601. A time without a zone is taken as UTC on every host.

    Raises:
        OverflowError: it is outside of the years 1 to 9999.
        TypeError: it is not text.
        ValueError: it is not a time.
    """
    return to_micros(datetime.fromisoformat(text))
