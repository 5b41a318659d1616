"""The section of Perdure's runtime."""

from __future__ import annotations

from typing import Any

from bench.figures import median, median_ratio
from bench.tables import Row, number, table, times
from bench.ways import BARE, WAYS

Results = dict[str, Any]

TARGET = 0.6
"""Of the bare loop's throughput, on PostgreSQL."""


def runtime(results: Results) -> list[str]:
    found = results.get("runtime")
    if not found:
        return []
    sections = [
        "## From a message to its run's end",
        "A message to Perdure's runtime is durable before it is acknowledged, its thread is claimed under a "
        "lease, every step is stored before the next one begins, and the run's end is stored with its "
        "replies. A loop of `ainvoke` over the same saver only stores checkpoints. The cost of the rest, for "
        "a graph of two nodes that do almost nothing:",
    ]
    for title, measured in found["backends"].items():
        sections += [f"### {title}", *_backend(title, found, measured)]
    return [*sections, _conditions(found)]


def _backend(title: str, found: Results, measured: Results) -> list[str]:
    if "skipped" in measured:
        return [f"Not measured: {measured['skipped']}."]
    crowd, lone, counts = measured["crowd"], measured["lone"], measured["counts"]
    rates: list[Row] = [
        [
            WAYS[way],
            number(seen["messages_per_s"]),
            times(median_ratio(crowd[BARE]["rounds"], seen["rounds"])),
        ]
        for way, seen in crowd.items()
    ]
    said = f"{found['threads']} threads of {found['messages_a_thread']} messages at once"
    aim = f"; the goal is at least {number(TARGET)} ×" if title == "PostgreSQL" else ""
    spent = [what for what in ("commits", "reads", "round_trips") if what in counts[BARE]]
    header = ["", "a message, ms", "of the loop's", "more, ms", *(what.replace("_", " ") for what in spent)]
    costs: list[Row] = [
        [
            WAYS[way],
            number(median(took)),
            times(median_ratio(lone[BARE], took)),
            number(median([mine - bare for mine, bare in zip(took, lone[BARE], strict=True)])),
            *(number(counts[way][what]) for what in spent),
        ]
        for way, took in lone.items()
    ]
    return [
        *([f"Server: {measured['settings']}."] if measured["settings"] else []),
        f"{said}, each completed before the next one of its thread{aim}:",
        table(["", "messages a second", "of the loop's"], rates),
        "A single message, and its requests to the database:",
        table(header, costs),
    ]


def _conditions(found: Results) -> str:
    return (
        f"Settings are the defaults, but for {found['threads']} runs at once; workers look for due work "
        f"every {number(found['poll_s'])} s, which is left out of the counts. Latencies are medians of "
        f"{found['lone_messages']} messages each way in turn, ratios and differences those of neighbours. "
        "All ways of a backend take turns in one process. "
        "Callers, workers and, where there is one, the server share one machine and no network, and no model "
        "is waited for: this is the runtime's own cost, of which an agent that thinks for a second shows "
        "little."
    )
