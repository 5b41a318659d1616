"""The section about many streams that begin at one server at once."""

from __future__ import annotations

from typing import Any

from bench.figures import median, median_ratio
from bench.report_server import client_share, present, write_missing
from bench.served.hosts import HOSTS, LANGGRAPH
from bench.tables import NONE, Row, number, table, times
from bench.workloads.crowd import SHARE, WEIGHINGS

Results = dict[str, Any]


def crowd(results: Results) -> list[str]:
    found = results.get("crowd")
    if not found:
        return []
    crowds = present(found["crowds"]["hosts"])
    weights = present(found["weights"])
    levels = [str(level) for level in found["levels"]]
    shares = [visit["share"] for seen in crowds.values() for level in levels for visit in seen[level]]
    return [
        "## Many streams that begin at once",
        f"Streams that all begin at once, each of a run without a thread: {found['tokens']} tokens, "
        f"{number(found['pause_ms'])} ms apart. One process a server, {found['concurrency']} runs at once. A "
        "server may refuse what is too much for it (503, or 429); a stream that breaks off, or is not done "
        f"after {number(found['patience_s'])} s, has failed. Processor time is of the server for a stream "
        f"that was done, the first token is that of the {SHARE * 100:.0f}th percentile, and the next request "
        f"creates a thread when all streams have ended. Medians of {found['repeats']} rounds; ratios are "
        f"those of neighbours.{client_share(shares)}",
        *write_missing(found["crowds"]["hosts"]),
        *([_crowds(found, crowds)] if crowds else []),
        "### What requests leave behind",
        f"{found['requests']:,} runs without a thread from {found['clients']} clients, each waited for, on a "
        "server that has just started. Memory of its processes after the first eighth and at the end, and "
        "what a request of the second half added:",
        *write_missing(found["weights"]),
        *([_weights(found, weights)] if weights else []),
    ]


def _crowds(found: Results, hosts: Results) -> str:
    rows: list[Row] = []
    for level in map(str, found["levels"]):
        theirs = hosts.get(LANGGRAPH, {}).get(level, [])
        for name, seen in hosts.items():
            visits = seen[level]
            row = [level, HOSTS[name].label]
            row += [_median(visits, "done_per_s"), _ratio(theirs, visits, "done_per_s")]
            row += [_median(visits, "cpu_ms")]
            row += [_median(visits, "first_ms"), _ratio(theirs, visits, "first_ms")]
            row += [f"{median(_values(visits, count)):,.0f}" for count in ("refused", "failed")]
            row += [_median(visits, "next_ms")]
            rows.append(row)
    of = "of `langgraph dev`'s"
    header = ["streams", "", "done a second", of, "processor, ms", "first token, ms", of]
    return table([*header, "refused", "failed", "next request, ms"], rows)


def _values(visits: list[Results], figure: str) -> list[float]:
    return [visit[figure] for visit in visits if visit[figure] is not None]


def _median(visits: list[Results], figure: str) -> str:
    values = _values(visits, figure)
    return number(median(values)) if values else NONE


def _ratio(theirs: list[Results], ours: list[Results], figure: str) -> str:
    below, above = _values(theirs, figure), _values(ours, figure)
    return times(median_ratio(below, above)) if below and len(below) == len(above) else NONE


def _weights(found: Results, hosts: Results) -> str:
    rows: list[Row] = []
    half = WEIGHINGS // 2
    for name, seen in hosts.items():
        weights = seen["weights"]
        added = (weights[-1] - weights[half - 1]) / (found["requests"] / 2)
        rows.append(
            [
                HOSTS[name].label,
                number(weights[0] / 1e6),
                number(weights[-1] / 1e6),
                number(added / 1e3),
                number(median(seen["cpu_ms"])),
            ]
        )
    header = ["", "after an eighth, MB", "at the end, MB", "a request, kB", "processor a request, ms"]
    return table(header, rows)
