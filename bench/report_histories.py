"""The section of histories."""

from __future__ import annotations

from typing import Any

from bench.figures import median
from bench.tables import Row, number, table, times

Results = dict[str, Any]

PLAIN, OURS = "plain", "perdure"


def histories(results: Results) -> list[str]:
    found = results.get("histories")
    if not found:
        return []
    rounds, turns = found["rounds"], found["turns"]

    def milliseconds(name: str, window: str, part: int) -> float:
        seconds: list[float] = [each[part] for one in rounds[name] for each in one[window]]
        return 1e3 * median(seconds)

    rows: list[Row] = []
    for window, said in (("start", "first"), ("end", "last")):
        for part, what in enumerate(("reading the session", "writing a turn")):
            values = [milliseconds(name, window, part) for name in (PLAIN, OURS)]
            rows.append([f"{what}, {said} turns, ms", *map(number, values), times(values[1] / values[0])])
    stored = [median([one["stored"] for one in rounds[name]]) / 1e3 for name in (PLAIN, OURS)]
    rows.append([f"stored after {turns} turns, kB", *map(number, stored), times(stored[1] / stored[0])])
    return [
        "## Histories",
        "A turn of `db.history()` on SQLite beside two plain tables with a row a message: the session "
        "is read, and two messages are written on condition that no other process has changed it.",
        table(["", "own tables", "**Perdure**", "of the own tables'"], rows),
    ]
