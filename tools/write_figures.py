"""The section "Figures" of docs/guarantees.md, from what the batteries of a run have come to.

Reads the lines of JSON that the tests append to the file which PERDURE_FIGURES names, and rewrites what
stands between the page's markers. Nothing is written, and the exit code is 1, when a line tells of a broken
promise. Where a kind of battery is missing, as only some of the tests were run, the page stays as it is.
"""

import json
import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parent.parent / "docs" / "guarantees.md"
BEGIN, END = "<!-- figures:begin -->", "<!-- figures:end -->"

SERVER = ("server killed", "server without database", "server restarted")
NEEDED = ("simulation", "kill points", "break", "battery", "points", "models", *SERVER)
"""The kinds of line without which the figures would tell of a part of the tests."""

BROKEN = ("violations", "lost", "forks", "twice", "stuck", "stale")
"""What has to be 0 in every line that has it."""

Line = Mapping[str, Any]


class BrokenPromise(Exception):
    """A line tells of one; its message has the line."""


def read(text: str) -> list[Line]:
    """The lines of a figures file. ``BrokenPromise`` if there is one."""
    lines: list[Line] = [json.loads(line) for line in text.splitlines() if line.strip()]
    for line in lines:
        # A check of the checks takes a guard away, and has to find something.
        if line["what"] != "no fence" and any(line.get(what) for what in BROKEN):
            raise BrokenPromise(json.dumps(line))
    return lines


def missing(lines: Sequence[Line]) -> list[str]:
    """The kinds of line that are not there."""
    there = {line["what"] for line in lines}
    return [what for what in NEEDED if what not in there]


def section(lines: Sequence[Line], today: date, size: str) -> str:
    """The section, from the lines of a run."""
    rows = "\n".join(f"| {what} | {much} | {came} |" for what, much, came in _rows(lines))
    return (
        f"Written on {today.isoformat()} by a run of {size} size.\n\n"
        f"| what was done | how much | what came of it |\n|---|---|---|\n{rows}\n"
    )


def replaced(page: str, figures: str) -> str:
    """The page with new figures between its markers."""
    if page.count(BEGIN) != 1 or page.count(END) != 1 or page.index(END) < page.index(BEGIN):
        raise ValueError(f"the page needs {BEGIN} and {END} once each, in this order")
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n{figures}{END}{rest.split(END)[1]}"


def _rows(lines: Sequence[Line]) -> Iterator[tuple[str, str, str]]:
    total = _sum(line for line in lines if line["what"] == "simulation")
    yield (
        "whole deployments, simulated from seeds",
        f"{_n(total['seeds'], 'history', 'histories')}, {total['requests']:,} requests: "
        f"{total['kills']:,} kills, {total['pauses']:,} pauses, {total['lost answers']:,} lost answers",
        f"{_n(total['violations'], 'violation')}, {total['stale writes refused']:,} stale writes refused",
    )
    total = _sum(line for line in lines if line["what"] == "kill points")
    yield (
        "a kill at every request of a simulated history, before it and after it",
        _n(total["points"], "point"),
        _n(total["violations"], "violation"),
    )
    for backend in _backends(lines, "battery"):
        total = _sum(_of(lines, "battery", backend))
        yield (
            f"processes killed and paused at random moments, {backend}",
            f"{total['messages']:,} messages on {total['threads']:,} threads in {total['runs']:,} runs: "
            f"{total['kills']:,} kills, {total['pauses']:,} pauses, {total['losses']:,} leases lost, "
            f"{total['redeliveries']:,} messages accepted before, {total['resent']:,} replies sent again",
            f"{total['lost']:,} lost, {total['forks']:,} forks, {total['twice']:,} twice, "
            f"{total['stuck']:,} stuck; {total['refused']:,} stale writes refused, {total['stale']:,} not",
        )
    for backend in _backends(lines, "points"):
        own = list(_of(lines, "points", backend))
        yield (
            f"a process killed before or after a storage effect, {backend}",
            f"{_n(_sum(own)['killed'], 'kill')} in {_n(len({line['scenario'] for line in own}), 'scenario')}",
            _n(_sum(own)["violations"], "violation"),
        )
    for line in lines:
        if line["what"] == "models":
            yield (
                f"a model that thinks for {line['thinks']:g} s, on {_n(line['threads'], 'thread')} at once, "
                "PostgreSQL with a pool of 5",
                f"{line['many']:g} s in all, one thread alone {line['one']:g} s",
                f"at most {_n(line['connections'], 'connection')}, "
                f"{_n(line['idling'], 'idle transaction')} seen",
            )
    yield from _server_rows(lines)
    breaks = {line["name"]: line["seed"] for line in lines if line["what"] == "break"}
    yield (
        "guards taken away, one at a time, in simulated deployments",
        ", ".join(sorted(breaks)),
        f"all {len(breaks)} noticed, the latest by seed {max(breaks.values())}",
    )
    if found := [line for line in lines if line["what"] == "no fence"]:
        total = _sum(found)
        yield (
            "the fence taken away from real processes",
            f"{total['kills']:,} kills, {total['pauses']:,} pauses",
            f"noticed: {_n(total['stale'], 'stale write')} stored, {_n(total['wrong'], 'violation')} found",
        )


def _server_rows(lines: Sequence[Line]) -> Iterator[tuple[str, str, str]]:
    killed, away, restarted = (_sum(line for line in lines if line["what"] == what) for what in SERVER)
    gap = max(line["seconds"] for line in lines if line["what"] == "server without database")
    yield (
        "two servers and two workers on PostgreSQL, a process killed in each turn of a conversation",
        f"{_n(killed['turns'], 'turn')}: {_n(killed['kills'], 'kill')}, "
        f"{_n(killed['attempts'], 'attempt')} at runs, {_n(killed['resumed'], 'stream')} resumed, "
        f"{_n(killed['repeats'], 'message')} said again under the same key",
        f"{killed['lost']:,} lost, {killed['twice']:,} twice",
    )
    yield (
        f"the same while their PostgreSQL is stopped hard, {gap:g} s and many times for a moment",
        f"{_n(away['requests'], 'request')}, {away['unavailable']:,} answered with 503, "
        f"{_n(away['runs'], 'run')} acknowledged",
        f"{away['lost']:,} lost, {away['twice']:,} twice",
    )
    yield (
        "the same while each process is restarted in order",
        f"{_n(restarted['restarts'], 'restart')}: {_n(restarted['requests'], 'request')}, "
        f"{_n(restarted['streams'], 'stream')}, {restarted['resumed']:,} of them resumed",
        f"{restarted['lost']:,} lost, {restarted['twice']:,} twice",
    )


def _backends(lines: Sequence[Line], what: str) -> list[str]:
    return list(dict.fromkeys(sorted(line["backend"] for line in lines if line["what"] == what)))


def _of(lines: Sequence[Line], what: str, backend: str) -> Iterator[Line]:
    return (line for line in lines if line["what"] == what and line["backend"] == backend)


def _sum(lines: Iterator[Line] | Sequence[Line]) -> Counter[str]:
    total: Counter[str] = Counter()
    for line in lines:
        total.update({name: value for name, value in line.items() if isinstance(value, int)})
    return total


def _n(count: int, one: str, many: str = "") -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def main(figures: Path, page: Path = PAGE, today: date | None = None) -> int:
    try:
        lines = read(figures.read_text(encoding="utf-8"))
    except BrokenPromise as broken:
        print(f"{page.name} stays as it is, a promise was broken: {broken}")
        return 1
    if left := missing(lines):
        print(f"{page.name} stays as it is, as there is no line of: {', '.join(left)}")
        return 0
    size = "full" if os.environ.get("PERDURE_CHAOS") == "full" else "short"
    written = section(lines, today or datetime.now(UTC).date(), size)
    page.write_text(replaced(page.read_text(encoding="utf-8"), written), encoding="utf-8")
    print(f"{page.name} has the figures of {len(lines)} lines")
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python tools/write_figures.py FILE, which PERDURE_FIGURES named")
    sys.exit(main(Path(sys.argv[1])))
