"""The versions of channels: integers in a new thread, the previous type in a thread from another saver.

LangGraph compares the versions of one thread with each other, so a thread keeps the type that it has: every
version is greater than the one before it by that type's own order.
"""

from __future__ import annotations

import math
import random
import re

from perdure.errors import Unserialisable
from perdure.model.checkpoint import Version

_STOCK = re.compile(r"(\d{32})\.\d.*", re.ASCII)
_LAST_DIGITS = re.compile(r"(.*?)(\d+)\D*", re.ASCII | re.DOTALL)


def make_next_version(current: Version | None) -> Version:
    """Return a version greater than ``current``, of its type; the first is 1. ``Unserialisable`` is raised
    for a number that has no successor."""
    if current is None:
        return 1
    if isinstance(current, str):
        return _make_next_text(current)
    if isinstance(current, float):
        after = max(current + 1, math.nextafter(current, math.inf))
        if not after > current or math.isinf(after):
            raise Unserialisable(f"the channel version {current!r} has no next one: the thread cannot go on")
        return after
    return current + 1


def _make_next_text(current: str) -> str:
    if (stock := _STOCK.fullmatch(current)) and (raised := _increment(stock[1])):
        # As the stock savers write them: the number, and noise that distinguishes branches of a thread.
        return f"{raised}.{random.random():016}"  # noqa: S311 - no secret
    if (other := _LAST_DIGITS.fullmatch(current)) and (raised := _increment(other[2])):
        return other[1] + raised
    return f"{current}.{1:032}"


def _increment(digits: str) -> str | None:
    """Return the next number in as many digits, so that it is greater as text; ``None`` if it needs more."""
    raised = f"{int(digits) + 1:0{len(digits)}}"
    if len(raised) == len(digits):
        return raised
    return None
