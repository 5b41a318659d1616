"""The section of histories: a small run, and the page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from bench import report
from bench.desk import Desk
from bench.plan import QUICK
from bench.workloads import histories
from tests.bench.test_report import results


def test_a_turn_of_a_history_is_timed_beside_a_table_of_one_s_own(tmp_path: Path) -> None:
    done: list[str] = []
    desk = Desk(replace(QUICK, history_turns=12, history_repeats=2), [], tmp_path, done.append)
    found = histories.run(desk)
    assert len(done) == histories.units(desk) == 4
    for rounds in found["rounds"].values():
        assert [len(one["start"]) for one in rounds] == [len(one["end"]) for one in rounds] == [10, 10]
        assert all(one["stored"] > 0 for one in rounds)


def test_the_page_compares_the_start_and_the_end_of_a_session() -> None:
    def seen(ms: float, stored: int) -> list[dict[str, object]]:
        return [{"start": [(ms / 1e3, ms / 500)], "end": [(ms / 250, ms / 125)], "stored": stored}]

    section = {"turns": 50, "rounds": {"plain": seen(1, 2000), "perdure": seen(2, 3000)}}
    page = report.page(results({}, 1, histories=section), [], "")
    assert "| reading the session, first turns, ms | 1.00 | 2.00 | 2.00 × |" in page
    assert "| writing a turn, last turns, ms | 8.00 | 16.0 | 2.00 × |" in page
    assert "| stored after 50 turns, kB | 2.00 | 3.00 | 1.50 × |" in page
