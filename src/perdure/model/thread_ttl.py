"""Time to live of a thread: when it expires, and what happens to it then."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class ThreadTtl:
    """Removal of threads without activity for ``default_ttl`` minutes, or of all but their latest state. A
    sweep removes at most ``sweep_limit`` of them."""

    default_ttl: float
    strategy: Literal["delete", "keep_latest"] = "delete"
    sweep_interval_minutes: float = 5.0
    sweep_limit: int = 1000

    @property
    def client_form(self) -> dict[str, Any]:
        """The time to live in the form in which clients send one."""
        return {"ttl": self.default_ttl, "strategy": self.strategy}


def stored_ttl(ttl: Mapping[str, Any] | None, now: int) -> dict[str, Any] | None:
    """Return a time to live as it is stored, counted from now.

    Args:
        ttl: the minutes under "ttl", or under "ttl_minutes" if it was stored before; None for none.
        now: current time in microseconds.
    """
    if ttl is None:
        return None
    minutes = float(ttl.get("ttl_minutes", ttl.get("ttl", 0)))
    return {
        "strategy": ttl.get("strategy", "delete"),
        "ttl_minutes": minutes,
        "expires_at": now + round(minutes * 60_000_000),
    }
