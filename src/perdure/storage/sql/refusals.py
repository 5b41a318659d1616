"""Meaning of SQLite's messages about statements, which D1 passes on."""

from __future__ import annotations

import re

_LIMITS = re.compile(
    r"too many|too (?:large|long|big|complex)|maximum depth|recursion limit|parser stack overflow"
    r"|at most \d+ tables|variable number must be",
    re.IGNORECASE,
)


def exceeds_limit(message: str) -> bool:
    """Return True if a statement was refused because it has more parts than the database takes."""
    return _LIMITS.search(message) is not None


def describe_refusal(name: str, reason: str) -> str:
    """Return the message for a statement of Perdure's that a database refused, for another reason than
    damage or an outage.

    Args:
        name: The database's name.
        reason: The database's message.
    """
    return (
        f"{name}: the database refused a statement of Perdure ({reason}); nothing of it was stored. Remove "
        "what was added to Perdure's tables, such as a trigger or a constraint; if nothing was, report this"
    )
