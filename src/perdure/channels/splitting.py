"""Division of long texts into parts of a provider's length, at the best place for a reader."""

from __future__ import annotations

from collections.abc import Callable

_BREAKS = ("\n\n", "\n", ". ", " ")


def count_utf16(text: str) -> int:
    """Return the length of a text in UTF-16 code units, in which Telegram counts."""
    return len(text) + sum(ord(character) > 0xFFFF for character in text)


def split_text(text: str, most: int, length: Callable[[str], int] = len) -> list[str]:
    """Divide a text into parts of at most ``most`` units, after a paragraph, line, sentence or word if the
    part stays at least half full. Together the parts are the text, except for blanks between them.

    Args:
        text: The text.
        most: The maximum length of a part, at least that of any character.
        length: The length of a text in the provider's units, at least 1 for each character.
    """
    parts: list[str] = []
    text, start = text.strip(), 0
    # Only as much as one part can hold is examined: the whole text may be long.
    while length(rest := text[start : start + most + 1]) > most:
        end = _count_fitting(rest, most, length)
        for mark in _BREAKS:
            break_start = rest.rfind(mark, end // 2, end)
            if break_start > 0:
                end = break_start + len(mark)
                break
        parts.append(rest[:end].rstrip())
        start += end
        while text[start : start + 1].isspace():
            start += 1
    return [part for part in (*parts, rest) if part]


def _count_fitting(text: str, most: int, length: Callable[[str], int]) -> int:
    """Return the number of characters at the start that fit."""
    low, high = 1, min(len(text), most)
    while low < high:
        middle = (low + high + 1) // 2
        if length(text[:middle]) <= most:
            low, high = (middle, high)
        else:
            low, high = (low, middle - 1)
    return low
