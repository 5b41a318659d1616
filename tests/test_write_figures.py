"""The figures of a run are summed, written between the markers, and only where every promise was kept."""

import importlib.util
import json
import re
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest

TOOL = Path(__file__).resolve().parent.parent / "tools" / "write_figures.py"
spec = importlib.util.spec_from_file_location("write_figures", TOOL)
assert spec is not None
assert spec.loader is not None
tool = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tool)

Line = dict[str, Any]
TODAY = date(2026, 3, 1)
PAGE = f"above\n\n{tool.BEGIN}\nold figures\n{tool.END}\n\nbelow\n"

SIMULATION: Line = {
    "what": "simulation",
    "seeds": 500,
    "requests": 70_000,
    "kills": 300,
    "pauses": 400,
    "lost answers": 200,
    "stale writes refused": 9,
    "violations": 0,
}
BATTERY: Line = {
    "what": "battery",
    "backend": "sqlite",
    "seed": 7,
    "messages": 3001,
    "threads": 150,
    "runs": 2000,
    "kills": 500,
    "pauses": 400,
    "redeliveries": 30,
    "losses": 20,
    "refused": 10,
    "stale": 0,
    "resent": 5,
    "lost": 0,
    "forks": 0,
    "twice": 0,
    "stuck": 0,
    "seconds": 61.5,
}
SERVER: list[Line] = [
    {
        "what": "server killed",
        "turns": 50,
        "kills": 50,
        "attempts": 62,
        "resumed": 14,
        "repeats": 1,
        "lost": 0,
        "twice": 0,
    },
    {
        "what": "server without database",
        "seconds": 10.0,
        "requests": 1200,
        "unavailable": 300,
        "runs": 400,
        "lost": 0,
        "twice": 0,
    },
    {
        "what": "server restarted",
        "restarts": 4,
        "requests": 200,
        "streams": 30,
        "resumed": 3,
        "lost": 0,
        "twice": 0,
    },
]
LINES: list[Line] = [
    SIMULATION,
    SIMULATION,
    {"what": "kill points", "points": 90, "violations": 0},
    {"what": "kill points", "points": 91, "violations": 0},
    {"what": "break", "name": "no fence", "seed": 3},
    {"what": "break", "name": "no dedupe", "seed": 0},
    {**BATTERY, "backend": "redis", "messages": 300},
    BATTERY,
    {"what": "points", "backend": "sqlite", "scenario": "plain", "killed": 104, "parts": 1, "violations": 0},
    {
        "what": "points",
        "backend": "sqlite",
        "scenario": "interrupt",
        "killed": 105,
        "parts": 1,
        "violations": 0,
    },
    {**BATTERY, "what": "no fence", "stale": 1, "wrong": 2},
    {
        "what": "models",
        "threads": 200,
        "thinks": 10.0,
        "one": 10.1,
        "many": 10.8,
        "connections": 6,
        "idling": 0,
    },
    *SERVER,
]

Written = Callable[..., tuple[int, str]]


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Written:
    """What the tool makes of lines, and of those that it kept: its exit code, and the page."""
    monkeypatch.setenv("PERDURE_CHAOS", "full")
    figures, page, kept = tmp_path / "figures", tmp_path / "page.md", tmp_path / "figures.jsonl"
    page.write_text(PAGE)

    def write(lines: list[Line], today: date = TODAY) -> tuple[int, str]:
        figures.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return tool.main(figures, page, kept, today), page.read_text()

    return write


def rows(page: str) -> list[list[str]]:
    """The cells of the page's table, below its head."""
    return [[cell.strip() for cell in row.split("|")[1:-1]] for row in page.splitlines() if row[:1] == "|"][
        2:
    ]


def test_the_lines_of_a_run_become_a_table(written: Written) -> None:
    code, page = written(LINES)
    assert code == 0
    assert page.startswith(f"above\n\n{tool.BEGIN}\n| what was done |")
    assert page.endswith(f" |\n{tool.END}\n\nbelow\n")
    table = rows(page)
    assert {row.pop() for row in table} == {"2026-03-01"}
    assert table == [
        [
            "whole deployments, simulated from seeds",
            "1,000 histories, 140,000 requests: 600 kills, 800 pauses, 400 lost answers",
            "0 violations, 18 stale writes refused",
        ],
        [
            "a kill at every request of a simulated history, before it and after it",
            "181 points",
            "0 violations",
        ],
        *(
            [
                f"processes killed and paused at random moments, {backend}",
                f"{messages} messages on 150 threads in 2,000 runs: 500 kills, 400 pauses, 20 leases lost, "
                "30 messages accepted before, 5 replies sent again",
                "0 lost, 0 forks, 0 twice, 0 stuck; 10 stale writes refused, 0 not",
            ]
            for backend, messages in (("redis", "300"), ("sqlite", "3,001"))
        ),
        [
            "a process killed before or after a storage effect, sqlite",
            "209 kills in 2 scenarios",
            "0 violations",
        ],
        [
            "a model that thinks for 10 s, on 200 threads at once, PostgreSQL with a pool of 5",
            "10.8 s in all, one thread alone 10.1 s",
            "at most 6 connections, 0 idle transactions seen",
        ],
        [
            "two servers and two workers on PostgreSQL, a process killed in each turn of a conversation",
            "50 turns: 50 kills, 62 attempts at runs, 14 streams resumed, "
            "1 message sent again under the same key",
            "0 lost, 0 twice",
        ],
        [
            "two servers and two workers while their PostgreSQL is stopped hard, 10 s and many times for a "
            "moment",
            "1,200 requests, 300 answered with 503, 400 runs acknowledged",
            "0 lost, 0 twice",
        ],
        [
            "two servers and two workers while each process is restarted in order",
            "4 restarts: 200 requests, 30 streams, 3 of them resumed",
            "0 lost, 0 twice",
        ],
        [
            "guards taken away, one at a time, in simulated deployments",
            "no dedupe, no fence",
            "all 2 noticed, the latest by seed 3",
        ],
        [
            "the fence taken away from real processes",
            "500 kills, 400 pauses",
            "noticed: 1 stale write stored, 2 violations found",
        ],
    ]


def test_writing_again_changes_the_figures_alone(written: Written) -> None:
    _, page = written(LINES)
    assert written(LINES) == (0, page)
    assert tool.replace_figures(page, "new\n") == PAGE.replace("old figures", "new")


def test_a_run_of_some_batteries_changes_their_rows_alone(written: Written) -> None:
    before = rows(written(LINES)[1])
    later = date(2026, 4, 2)
    after = rows(written([{**BATTERY, "messages": 3002}], later)[1])
    changed = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    assert [(old[-1], new[-1]) for old, new in changed] == [("2026-03-01", "2026-04-02")]
    assert changed[0][1][1] == before[before.index(changed[0][0])][1].replace("3,001", "3,002")


@pytest.mark.parametrize(
    ("size", "lines"),
    [("short", [SIMULATION, SIMULATION, SIMULATION]), ("full", [SIMULATION])],
    ids=["of short size", "of fewer parts"],
)
def test_a_smaller_run_takes_the_place_of_none(
    size: str, lines: list[Line], written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = written(LINES)
    monkeypatch.setenv("PERDURE_CHAOS", size)
    assert written([{**line, "seeds": 1} for line in lines], date(2026, 4, 2)) == before


def test_a_short_run_says_so(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PERDURE_CHAOS")
    assert {row[-1] for row in rows(written(LINES)[1])} == {"2026-03-01, short"}


@pytest.mark.parametrize(
    "line",
    [
        {**SIMULATION, "violations": 1},
        {"what": "kill points", "points": 90, "violations": 2},
        {"what": "points", "backend": "sqlite", "killed": 3, "parts": 1, "violations": 1},
        {"what": "models", "idling": 1},
        *({**line, what: 1} for line in SERVER for what in ("lost", "twice")),
        *({**BATTERY, what: 1} for what in ("lost", "forks", "twice", "stuck", "stale")),
    ],
)
def test_a_broken_promise_is_no_figure(
    line: Line, written: Written, capsys: pytest.CaptureFixture[str]
) -> None:
    assert written([*LINES, line]) == (1, PAGE)
    assert json.dumps(line) in capsys.readouterr().out


def test_a_run_without_lines_changes_nothing(written: Written) -> None:
    _, page = written(LINES)
    assert written([]) == (0, page)


@pytest.mark.parametrize("page", ["", tool.BEGIN, f"{tool.END} {tool.BEGIN}", PAGE + PAGE])
def test_a_page_without_its_place_is_refused(page: str) -> None:
    with pytest.raises(ValueError, match="once each, in this order"):
        tool.replace_figures(page, "new\n")


def test_the_page_shows_what_is_kept() -> None:
    page = tool.PAGE.read_text(encoding="utf-8")
    assert tool.replace_figures(page, tool.section(tool.read(tool.KEPT.read_text(encoding="utf-8")))) == page


def test_every_test_that_the_page_names_is_there() -> None:
    root = tool.PAGE.parent.parent
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", tool.PAGE.read_text(encoding="utf-8"))
    assert len(named) > 30
    absent = [f"{path}::{name}" for path, name in named if f"def {name}(" not in (root / path).read_text()]
    assert not absent


def test_each_battery_that_publishes_figures_has_a_row() -> None:
    published: set[str] = set()
    for file in (TOOL.parent.parent / "tests" / "chaos").glob("test_*.py"):
        published |= set(re.findall(r'publish\(\s*"([^"]+)"', file.read_text(encoding="utf-8")))
    assert {"battery", "steering", "crons", "server restarted"} <= published
    assert published == set(tool._ROW)


def test_rows_of_messages_that_join_runs_and_of_schedules() -> None:
    joined = {**SIMULATION, "what": "steering", "messages": 1200, "taken up": 545}
    lines = [joined, {**BATTERY, "what": "steering battery"}]
    lines.append({"what": "crons", "season": "spring", "schedules": 9, "times": 40, "kills": 1})
    page = tool.section([{**line, "day": "2026-03-01", "size": "full"} for line in lines])
    assert "500 histories, 1,200 messages, of which 545 joined a run: 300 kills" in page
    assert "at random moments, sqlite, messages join open runs | 3,001 messages" in page
    assert "| 9 schedules, 40 times: 1 kill | one run each time | 2026-03-01 |" in page
