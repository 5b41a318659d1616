"""The section of searches in the store."""

from __future__ import annotations

from typing import Any

from bench.figures import median, percentile
from bench.tables import NONE, Row, number, table, times

Results = dict[str, Any]

SCAN, STOCK, OURS = "scan", "stock", "perdure"
TITLES = {SCAN: "bare sqlite-vec", STOCK: "stock store", OURS: "**Perdure**"}
AIMS = {
    "SQLite": "The goal is at most 1.3 × the bare scan.",
    "PostgreSQL": "The goal is at most 10 ms at a recall of 0.95.",
}
OTHERS = "The goal is at most 100 ms."


def search(results: Results) -> list[str]:
    found = results.get("search")
    if not found:
        return []
    items, dims = found["items"], found["dims"]
    sections = [
        "## Search in the store",
        f"The ten items nearest to a query among {items:,} in 100 namespaces, by vectors of {dims} numbers; "
        "the time of the embedding is excluded everywhere. The bare table of sqlite-vec has the vectors and "
        "nothing else; PostgreSQL has an HNSW index. Elsewhere vectors are compared in the process, which "
        "holds them after the first search: at most 200,000 in one search.",
    ]
    for title, measured in found["backends"].items():
        sections.append(f"### Search on {title}")
        if "skipped" in measured:
            sections.append(f"Not measured: {measured['skipped']}.")
            continue
        seen = measured["seen"]
        sections += [AIMS.get(title, OTHERS), _searches(seen), *_puts(found, seen)]
    return sections


def _searches(seen: Results) -> str:
    names = [name for name in TITLES if name in seen]
    rival = next((name for name in names if name != OURS), None)

    def row(what: str, cells: dict[str, float | None]) -> Row:
        ours, theirs = cells.get(OURS), None if rival is None else cells.get(rival)
        ratio = times(ours / theirs) if ours and theirs else NONE
        return [what, *(number(cells.get(name)) for name in names), *([ratio] if rival else [])]

    rows = [
        row("median, ms", {name: 1e3 * median(seen[name]["seconds"]) for name in names}),
        row("95th percentile, ms", {name: 1e3 * percentile(seen[name]["seconds"], 0.95) for name in names}),
        row(
            "median after a put, ms",
            {
                name: 1e3 * median(seen[name]["after_puts"]) if "after_puts" in seen[name] else None
                for name in names
            },
        ),
        row("first search of a process, ms", {name: 1e3 * seen[name]["first"] for name in names}),
    ]
    recall = [f"{seen[name]['recall']:.3f}" for name in names]
    rows.append(["recall of the best ten", *recall, *([NONE] if rival else [])])
    return table(["", *(TITLES[name] for name in names), *(["of the other's"] if rival else [])], rows)


def _puts(found: Results, seen: Results) -> list[str]:
    rows: list[Row] = []
    for name in (name for name in (STOCK, OURS) if name in seen):
        for at_once, took in seen[name]["puts"].items():
            what = "one" if at_once == "1" else f"{at_once} at once"
            rows.append(
                [
                    f"{TITLES[name]}, {what}",
                    number(1e3 * took["plain"]),
                    number(1e3 * took["indexed"]),
                    times(took["indexed"] / took["plain"]),
                ]
            )
    if not rows:
        return []
    return [
        "Puts into namespaces of their own, before the items are stored. The goal is at most 1.5 ×.",
        table(["puts", "without an index, ms", "with it, ms", "times"], rows),
    ]
