"""The section of databases that grow."""

from __future__ import annotations

from typing import Any

from bench.figures import median
from bench.tables import Row, number, table, times

Results = dict[str, Any]

OURS, MEMORY = "perdure", "memory"


def scale(results: Results) -> list[str]:
    found = results.get("scale")
    if not found:
        return []
    sections = [
        "## As a database grows",
        "Perdure on SQLite, one process for each table, and no other saver: the last part of the work beside "
        "the first. Memory is what the process holds after a full garbage collection.",
    ]
    if "skipped" in found:
        return [*sections, f"Not measured: {found['skipped']}."]
    steps = found["steps"]
    messages, turns, threads = found["messages"], found["turns"], found["threads"]
    tables = (
        (
            f"### {messages:,} messages through one worker, on {_TALKERS} threads",
            steps["messages"],
            (("messages a second", lambda step: messages / len(steps["messages"]) / step["messages_s"]),),
        ),
        (
            f"### {turns:,} turns of one thread, with the last 200 messages in its state",
            steps["turns"],
            (("a turn, ms", lambda step: 1e3 * step["turn_s"]),),
        ),
        (
            f"### {threads:,} threads of {found['tenants']:,} tenants",
            steps["threads"],
            (
                ("a page of 50 of a tenant's threads, ms", lambda step: 1e3 * step["page_s"]),
                ("loading one thread, ms", lambda step: 1e3 * step["load_s"]),
            ),
        ),
    )
    for title, measured, more in tables:
        rows = [_row(name, measured, value) for name, value in (*more, *_RESOURCES)]
        sections += [title, table(["", "first tenth", "fifth", "last", "last relative to first"], rows)]
    sends = {name: median([one["run_s"] for one in steps["sends"][name]]) for name in (OURS, MEMORY)}
    sections += [
        f"### {found['sends']:,} parallel tasks in one step",
        table(
            ["", "InMemorySaver", "**Perdure**", "of InMemorySaver's"],
            [["a run, s", number(sends[MEMORY]), number(sends[OURS]), times(sends[OURS] / sends[MEMORY])]],
        ),
    ]
    return sections


_TALKERS = 64
_RESOURCES = (
    ("memory, MB", lambda step: step["memory_kb"] / 1e3),
    ("open descriptors", lambda step: step["descriptors"]),
)


def _row(name: str, steps: list[Results], value: Any) -> Row:
    first, middle, last = (float(value(steps[place])) for place in (0, len(steps) // 2 - 1, -1))
    return [name, number(first), number(middle), number(last), times(last / first)]
