"""How numbers and tables look on the page."""

from __future__ import annotations

from collections.abc import Sequence

from bench.savers import CANDIDATES

Row = Sequence[str]

NONE = "–"


def table(header: Row, rows: Sequence[Row]) -> str:
    """Text in the first column, numbers to the right in the others."""
    lines = ["| " + " | ".join(header) + " |", "|---" + "|--:" * (len(header) - 1) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def number(value: float | None) -> str:
    """Three significant digits, never an exponent."""
    if value is None:
        return NONE
    if value == 0 or abs(value) < 0.0005:
        return "0"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    digits = 1 if abs(value) >= 10 else 2 if abs(value) >= 0.1 else 3
    return f"{value:,.{digits}f}"


def times(value: float | None) -> str:
    return NONE if value is None else f"{number(value)} ×"


def label(name: str) -> str:
    candidate = CANDIDATES[name]
    return f"**{candidate.label}**" if candidate.ours else candidate.label
