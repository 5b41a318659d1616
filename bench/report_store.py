"""The section of the store."""

from __future__ import annotations

from typing import Any

from bench.figures import median, median_ratio
from bench.tables import Row, number, table, times

Results = dict[str, Any]

TARGET = 1.5
"""Of the stock store's time."""
STOCK, OURS = "stock", "perdure"


def store(results: Results) -> list[str]:
    found = results.get("store")
    if not found:
        return []
    items, operations, searches = found["items"], found["operations"], found["searches"]
    tasks = {
        "search": (f"`search(limit=10)` over {items:,} items, ms", 1e3 / searches),
        "rare": ("the same, for what one in a thousand has, ms", 1e3 / searches),
        "puts": (f"{operations:,} puts, in batches of 8,000, s", 1.0),
        "batch": (f"`abatch` of {operations:,} operations, most of them gets, s", 1.0),
    }
    sections = [
        "## The store",
        "Perdure's store beside `AsyncSqliteStore` and `AsyncPostgresStore`. Batches go over a hundred "
        f"namespaces. The goal is at most {number(TARGET)} ×.",
    ]
    for title, measured in found["backends"].items():
        sections.append(f"### The store on {title}")
        if "skipped" in measured:
            sections.append(f"Not measured: {measured['skipped']}.")
            continue
        rows: list[Row] = []
        for task, (name, scale) in tasks.items():
            seen = measured["seconds"][task]
            cells = [number(median(seen[which]) * scale) for which in (STOCK, OURS)]
            rows.append([name, *cells, times(median_ratio(seen[STOCK], seen[OURS]))])
        peak = measured["peak_kb"]
        rows.append(
            ["memory at most, MB", *(number(peak[which] / 1e3) for which in (STOCK, OURS)), times(None)]
        )
        sections.append(table(["", "stock store", "**Perdure**", "of the stock store's"], rows))
    return sections
