"""Users, as configs, metadata, authenticators and arguments name them."""

from __future__ import annotations

from uuid import UUID


def name_user(value: object) -> str | None:
    """Return a user's id as text, ``None`` if a value names no user: text, or a whole number or a UUID, as
    applications use them, in its usual form."""
    if isinstance(value, UUID) or (isinstance(value, int) and not isinstance(value, bool)):
        return str(value)
    if isinstance(value, str) and value:
        return value
    return None
