"""Times of checkpoints: LangGraph's ids are version 6 UUIDs, beside which a text is stored."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

_UUID_EPOCH = 12_219_292_800_000_000
"""Microseconds from the start of a UUID's calendar to 1970."""


def time_of(checkpoint_id: str) -> int | None:
    """Return the time at which a checkpoint was created in microseconds since 1970, or None if its id
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
    """Return a time in ISO 8601 in microseconds since 1970. One without a zone is in UTC on every host.

    Raises:
        OverflowError: it is outside of the years 1 to 9999.
        TypeError: it is not text.
        ValueError: it is not a time.
    """
    at = datetime.fromisoformat(text)
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    return round(at.timestamp() * 1_000_000)
