"""The section "Figures" of docs/guarantees.md, from what the batteries have come to.

Reads the lines of JSON that the tests of a run append to the file which PERDURE_FIGURES names, keeps them in
docs/figures.jsonl with their day and size, and rewrites what stands between the page's markers. A battery's
lines take the place of those of its last run, unless that one was larger; so a run of some batteries changes
their rows alone. Nothing is written, and the exit code is 1, when a line tells of a broken promise.
"""

import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE, KEPT = DOCS / "guarantees.md", DOCS / "figures.jsonl"
BEGIN, END = "<!-- figures:begin -->", "<!-- figures:end -->"

BROKEN = ("violations", "lost", "forks", "twice", "stuck", "stale", "idling")
"""What has to be 0 in every line that has it."""

Line = Mapping[str, Any]
Lines = Sequence[Line]
Battery = tuple[str, str]
"""What was done, and on which backend where that is said."""


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


def batteries(lines: Lines) -> dict[Battery, list[Line]]:
    """Lines by the battery that they are of."""
    found: dict[Battery, list[Line]] = {}
    for line in lines:
        found.setdefault((line["what"], line.get("backend", "")), []).append(line)
    return found


def merge(kept: Lines, new: Lines) -> list[Line]:
    """What is to be kept, now that there are new lines."""
    found = batteries(kept)
    for battery, lines in batteries(new).items():
        before = found.get(battery, [])
        if _extent(lines) >= _extent(before):
            found[battery] = lines
    return [line for battery in sorted(found) for line in found[battery]]


def _extent(lines: Lines) -> tuple[bool, int]:
    """How much a battery's run tried: at full size more than at any other, then by its parts."""
    return any(line["size"] == "full" for line in lines), _sum(lines)["parts"] or len(lines)


def section(lines: Lines) -> str:
    """The section, from the lines that are kept."""
    rows = "\n".join(f"| {' | '.join(row)} |" for row in _rows(batteries(lines)))
    return f"| what was done | how much | what came of it | when |\n|---|---|---|---|\n{rows}\n"


def replace_figures(page: str, figures: str) -> str:
    """The page with new figures between its markers."""
    if page.count(BEGIN) != 1 or page.count(END) != 1 or page.index(END) < page.index(BEGIN):
        raise ValueError(f"the page needs {BEGIN} and {END} once each, in this order")
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n{figures}{END}{rest.split(END)[1]}"


Row = tuple[str, str, str]


def _rows(found: Mapping[Battery, Lines]) -> Iterator[tuple[str, str, str, str]]:
    for (what, backend), lines in sorted(
        found.items(), key=lambda one: (list(_ROW).index(one[0][0]), one[0])
    ):
        days = sorted({line["day"] for line in lines})
        short = "" if all(line["size"] == "full" for line in lines) else ", short"
        yield *_ROW[what](lines, backend), f"{days[-1]}{short}"


def _simulation(lines: Lines, _: str) -> Row:
    total = _sum(lines)
    return (
        "whole deployments, simulated from seeds",
        f"{_n(total['seeds'], 'history', 'histories')}, {total['requests']:,} requests: "
        f"{total['kills']:,} kills, {total['pauses']:,} pauses, {total['lost answers']:,} lost answers",
        f"{_n(total['violations'], 'violation')}, {total['stale writes refused']:,} stale writes refused",
    )


def _kill_points(lines: Lines, _: str) -> Row:
    total = _sum(lines)
    return (
        "a kill at every request of a simulated history, before it and after it",
        _n(total["points"], "point"),
        _n(total["violations"], "violation"),
    )


def _battery(lines: Lines, backend: str) -> Row:
    total = _sum(lines)
    return (
        f"processes killed and paused at random moments, {backend}",
        f"{total['messages']:,} messages on {total['threads']:,} threads in {total['runs']:,} runs: "
        f"{total['kills']:,} kills, {total['pauses']:,} pauses, {total['losses']:,} leases lost, "
        f"{total['redeliveries']:,} messages accepted before, "
        f"{_n(total['resent'], 'reply', 'replies')} sent again",
        f"{total['lost']:,} lost, {total['forks']:,} forks, {total['twice']:,} twice, "
        f"{total['stuck']:,} stuck; {_n(total['refused'], 'stale write')} refused, {total['stale']:,} not",
    )


def _steering_row(lines: Lines, _: str) -> Row:
    total = _sum(lines)
    return (
        "whole deployments in which messages join open runs, simulated from seeds",
        f"{_n(total['seeds'], 'history', 'histories')}, {_n(total['messages'], 'message')}, of which "
        f"{total['taken up']:,} joined a run: {total['kills']:,} kills, {total['pauses']:,} pauses, "
        f"{total['lost answers']:,} lost answers",
        f"{_n(total['violations'], 'violation')}, {total['stale writes refused']:,} stale writes refused",
    )


def _steering_battery_row(lines: Lines, backend: str) -> Row:
    what, much, came = _battery(lines, backend)
    return f"{what}, messages join open runs", much, came


def _crons(lines: Lines, _: str) -> Row:
    total = _sum(lines)
    return (
        "servers killed while schedules fall due, over changes of the clocks",
        f"{_n(total['schedules'], 'schedule')}, {_n(total['times'], 'time')}: {_n(total['kills'], 'kill')}",
        "one run each time",
    )


def _points(lines: Lines, backend: str) -> Row:
    total = _sum(lines)
    return (
        f"a process killed before or after a storage effect, {backend}",
        f"{_n(total['killed'], 'kill')} in {_n(total['parts'], 'scenario')}",
        _n(total["violations"], "violation"),
    )


def _models(lines: Lines, _: str) -> Row:
    (line,) = lines
    return (
        f"a model that thinks for {line['thinks']:g} s, on {_n(line['threads'], 'thread')} at once, "
        "PostgreSQL with a pool of 5",
        f"{line['many']:g} s in all, one thread alone {line['one']:g} s",
        f"at most {_n(line['connections'], 'connection')}, {_n(line['idling'], 'idle transaction')} seen",
    )


def _kill_row(lines: Lines, _: str) -> Row:
    total = _sum(lines)
    return (
        "two servers and two workers on PostgreSQL, a process killed in each turn of a conversation",
        f"{_n(total['turns'], 'turn')}: {_n(total['kills'], 'kill')}, "
        f"{_n(total['attempts'], 'attempt')} at runs, {_n(total['resumed'], 'stream')} resumed, "
        f"{_n(total['repeats'], 'message')} sent again under the same key",
        f"{total['lost']:,} lost, {total['twice']:,} twice",
    )


def _away(lines: Lines, _: str) -> Row:
    total, gap = _sum(lines), max(line["seconds"] for line in lines)
    return (
        f"two servers and two workers while their PostgreSQL is stopped hard, {gap:g} s and many times for a "
        "moment",
        f"{_n(total['requests'], 'request')}, {total['unavailable']:,} answered with 503, "
        f"{_n(total['runs'], 'run')} acknowledged",
        f"{total['lost']:,} lost, {total['twice']:,} twice",
    )


def _restart_row(lines: Lines, _: str) -> Row:
    total = _sum(lines)
    return (
        "two servers and two workers while each process is restarted in order",
        f"{_n(total['restarts'], 'restart')}: {_n(total['requests'], 'request')}, "
        f"{_n(total['streams'], 'stream')}, {total['resumed']:,} of them resumed",
        f"{total['lost']:,} lost, {total['twice']:,} twice",
    )


def _breaks(lines: Lines, _: str) -> Row:
    seeds = {line["name"]: line["seed"] for line in lines}
    return (
        "guards taken away, one at a time, in simulated deployments",
        ", ".join(sorted(seeds)),
        f"all {len(seeds)} noticed, the latest by seed {max(seeds.values())}",
    )


def _no_fence(lines: Lines, _: str) -> Row:
    total = _sum(lines)
    return (
        "the fence taken away from real processes",
        f"{total['kills']:,} kills, {total['pauses']:,} pauses",
        f"noticed: {_n(total['stale'], 'stale write')} stored, {_n(total['wrong'], 'violation')} found",
    )


_ROW: dict[str, Callable[[Lines, str], Row]] = {
    "simulation": _simulation,
    "kill points": _kill_points,
    "battery": _battery,
    "steering": _steering_row,
    "steering battery": _steering_battery_row,
    "points": _points,
    "models": _models,
    "server killed": _kill_row,
    "server without database": _away,
    "server restarted": _restart_row,
    "crons": _crons,
    "break": _breaks,
    "no fence": _no_fence,
}
"""The batteries, in the page's order, and what is said of each."""


def _sum(lines: Lines) -> Counter[str]:
    total: Counter[str] = Counter()
    for line in lines:
        total.update({name: value for name, value in line.items() if isinstance(value, int)})
    return total


def _n(count: int, one: str, many: str = "") -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def main(figures: Path, page: Path = PAGE, kept: Path = KEPT, today: date | None = None) -> int:
    try:
        lines = read(figures.read_text(encoding="utf-8"))
    except BrokenPromise as broken:
        print(f"{page.name} stays as it is, a promise was broken: {broken}")
        return 1
    day = (today or datetime.now(UTC).date()).isoformat()
    size = "full" if os.environ.get("PERDURE_CHAOS") == "full" else "short"
    before = read(kept.read_text(encoding="utf-8")) if kept.exists() else []
    after = merge(before, [{**line, "day": day, "size": size} for line in lines])
    written = replace_figures(page.read_text(encoding="utf-8"), section(after))
    kept.write_text("".join(json.dumps(line) + "\n" for line in after), encoding="utf-8")
    page.write_text(written, encoding="utf-8")
    print(f"{page.name} has the figures of {len(after)} lines; {len(lines)} are new")
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python tools/write_figures.py FILE, which PERDURE_FIGURES named")
    sys.exit(main(Path(sys.argv[1])))
