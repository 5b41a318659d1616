"""Shortening of a text to a number of tokens, by a rule: its oldest parts leave first."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Sequence

_MARK = "…"
_SENTENCES = re.compile("(?<=[.!?\u3002\uff01\uff1f\n])\\s*")


def cut(text: str, fits: Callable[[str], bool]) -> str:
    """Return the longest end of a text that fits: in whole sentences, or else words, or else characters.

    The end of a running summary is what it learned last. An ellipsis marks removed text.

    Args:
        text: The text, which does not fit.
        fits: Returns True for a text that is short enough; if a text fits, each end of it has to fit, too.

    Returns:
        The end of the text; empty if nothing of it fits.
    """
    for parts, joint in ((_SENTENCES.split(text), " "), (text.split(), " "), (list(text), "")):
        end = _find_longest([part for part in parts if part.strip() or joint == ""], joint, fits)
        if end:
            return end
    return ""


def _find_longest(parts: Sequence[str], joint: str, fits: Callable[[str], bool]) -> str:
    def end_from(start: int) -> str:
        return f"{_MARK} {joint.join(part.strip() if joint else part for part in parts[start:])}"

    starts = range(1, len(parts))
    number = bisect_left(starts, True, key=lambda start: fits(end_from(start)))
    if number < len(starts):
        return end_from(starts[number])
    return ""
