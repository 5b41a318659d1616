"""Texts, costs and times in requests for views."""

from __future__ import annotations

import math
from collections.abc import Mapping

from perdure.errors import BadSetting
from perdure.inspector.access import Access
from perdure.model.ops import Now
from perdure.model.program import ask
from perdure.model.retention_policy import parse_duration

TEXT_MAX = 300
"""Maximum length of a text to search for, in characters."""

_SPAN_DIGITS_MAX = 12
_LATEST = 2**62


def read_text(asked: Mapping[str, str], name: str) -> str | None:
    """Return a text in a request, ``None`` without one; raise ``BadSetting`` if it is too long."""
    value = asked.get(name) or None
    if value is not None and len(value) > TEXT_MAX:
        raise BadSetting(f"{name} has at most {TEXT_MAX} characters")
    return value


def read_flag(asked: Mapping[str, str], name: str) -> bool:
    """Return True for ``1`` in a request, False for ``0`` or without it; raise ``BadSetting`` for anything
    else."""
    text = asked.get(name) or "0"
    if text not in ("0", "1"):
        raise BadSetting(f"{name} is 1 or 0, not {text[:40]!r}")
    return text == "1"


def read_cost(asked: Mapping[str, str]) -> float | None:
    """Return a cost in a request, ``None`` without one; raise ``BadSetting`` for anything except a
    non-negative number."""
    text = read_text(asked, "cost")
    if text is None:
        return None
    try:
        cost = float(text)
    except ValueError:
        cost = math.nan
    if not 0 <= cost < math.inf:
        raise BadSetting(f"cost is a number from 0 on, such as 0.5, not {text[:40]!r}")
    return cost


async def read_time(access: Access, asked: Mapping[str, str], name: str) -> int | None:
    """Return a time in a request in microseconds since 1970, ``None`` without one. The request has the time
    itself, or a span before now, such as ``1h``; raise ``BadSetting`` for anything else."""
    text = read_text(asked, name)
    if text is None:
        return None
    if text.isascii() and text.isdigit() and len(text) > _SPAN_DIGITS_MAX:
        return min(int(text), _LATEST)
    try:
        span = parse_duration(text)
    except ValueError as error:
        raise BadSetting(f"{name}: {error}") from None
    return max(0, await access.handle.arun(ask(Now())) - span)
