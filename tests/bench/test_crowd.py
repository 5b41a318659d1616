"""Many streams that begin at a server at once: what becomes of its streams, and what the page makes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench import report
from bench.desk import Desk
from bench.plan import FULL, QUICK
from bench.served import agent, load
from bench.served.hosts import LANGGRAPH, PERDURE, PERDURE_PG
from bench.served.wire import Refused
from bench.workloads import crowd
from tests.bench.small_servers import Easy, Reply, asked, plain, told
from tests.bench.test_report import results


def crowd_of(clients: int, reply: Reply, patience_s: float = 60.0) -> load.CrowdSeen:
    def answer(path: str, body: dict[str, Any]) -> list[bytes]:
        return plain({"thread_id": "next"}) if path == "/threads" else reply(path, body)

    seen, had = asked(answer, lambda port: load.crowd(port, clients, patience_s))
    assert len(had) == clients + 1
    found: load.CrowdSeen = seen
    return found


def test_every_stream_of_a_crowd_is_done_refused_or_failed() -> None:
    answers = iter(
        [
            told(agent.CROWD_TOKENS),
            plain({}, "503 Service Unavailable"),
            plain({}, "429 Too Many Requests"),
            plain({}, "500 Internal Server Error"),
            told(agent.CROWD_TOKENS - 1),
            told(agent.CROWD_TOKENS, b"event: error\r\n\r\n"),
        ]
    )

    def reply(path: str, body: dict[str, Any]) -> list[bytes]:
        assert (path, body["assistant_id"]) == ("/runs/stream", "crowd")
        return next(answers)

    seen = crowd_of(6, reply)
    assert (len(seen.ms), seen.refused, seen.failed) == (1, 2, 3)
    assert seen.next_ms > 0


def test_a_stream_that_does_not_end_in_time_has_failed() -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    seen = crowd_of(2, lambda *_: [head], patience_s=0.05)
    assert (len(seen.ms), seen.refused, seen.failed) == (0, 0, 2)


def test_every_lone_run_is_timed_and_has_to_be_answered() -> None:
    whole = plain({"messages": [{}, {}]})
    seen, had = asked(lambda *_: whole, lambda port: load.lone_runs(port, 3, 10))
    assert (len(seen.ms), had) == (12, [4, 4, 4])
    with pytest.raises(Refused, match="a run was answered with"):
        asked(lambda *_: plain({"messages": [{}]}), lambda port: load.lone_runs(port, 1, 1))


@pytest.mark.parametrize("plan", [QUICK, FULL])
def test_progress_comes_to_its_end(plan: Any, tmp_path: Path, easy: list[Easy]) -> None:
    steps: list[str] = []
    desk = Desk(plan, [], tmp_path, steps.append)
    found = crowd.run(desk)
    assert len(steps) == crowd.units(desk)
    assert not desk.notes
    assert [each.left for each in easy] == [1] * (len(crowd.CROWDED) + len(crowd.WEIGHED))
    page = report.page(results({}, 1, crowd=found), [], "")
    last = plan.crowd_levels[-1]
    assert (
        f"| {last} | **Perdure**, SQLite | 2.00 | 1.00 × | 0 | 2.00 | 1.00 × | {last - 2} | 0 | 0 |" in page
    )


def visit(done_per_s: float, first_ms: float | None) -> dict[str, Any]:
    figures = {"done_per_s": done_per_s, "first_ms": first_ms, "cpu_ms": first_ms, "next_ms": 3.0}
    return {**figures, "refused": 1, "failed": 0, "share": done_per_s / 100}


def test_the_page_has_ratios_of_neighbours_and_what_a_request_adds() -> None:
    found = {
        "concurrency": 256,
        "tokens": 50,
        "pause_ms": 10.0,
        "levels": [16],
        "patience_s": 60.0,
        "repeats": 2,
        "requests": 8000,
        "clients": 16,
        "crowds": {
            "hosts": {
                PERDURE: {"16": [visit(30.0, 50.0), visit(90.0, 150.0)]},
                LANGGRAPH: {"16": [visit(10.0, 100.0), visit(30.0, 300.0)]},
            }
        },
        "weights": {
            PERDURE: {"weights": [n * 1e6 for n in (90, 91, 92, 100, 101, 102, 103, 104)], "cpu_ms": [5.0]},
            PERDURE_PG: {"skipped": "it needs postgres, which is not there"},
        },
    }
    page = report.page(results({}, 1, crowd=found), [], "")
    assert "| 16 | **Perdure**, SQLite | 60.0 | 3.00 × | 100 | 100 | 0.50 × | 1 | 0 | 3.00 |" in page
    assert "| **Perdure**, SQLite | 90.0 | 104 | 1.00 | 5.00 |" in page
    assert "The client had 90% of one processor at most." in page
    assert "- **Perdure**, PostgreSQL was not measured: it needs postgres" in page


def test_a_page_without_the_section_says_nothing_of_it() -> None:
    assert "Many streams that begin at once" not in report.page(results({}, 1), [], "")
