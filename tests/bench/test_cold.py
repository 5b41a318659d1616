"""The section of processes that meet a thread for the first time: a small run, and the page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench import report
from bench.desk import Desk
from bench.plan import QUICK
from bench.workloads import cold
from tests.bench.test_report import results


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_load_and_a_turn_are_measured_in_new_processes(tmp_path: Path) -> None:
    done: list[str] = []
    desk = Desk(
        replace(QUICK, cold_sizes=(2, 4)), ["sqlite", "perdure", "redis-perdure"], tmp_path, done.append
    )
    found = cold.run(desk)
    assert desk.notes == []
    assert len(done) == cold.units(desk)
    sizes = found["backends"]["sqlite"]["sizes"]
    assert [sorted(sizes[size]["savers"]) for size in ("2", "4")] == [["perdure", "sqlite"]] * 2
    figures = sizes["4"]["savers"]["perdure"]
    assert all(figures[name] > 0 for name in ("load_ms", "turn_ms", "turn_processor_ms"))
    beyond = found["backends"]["redis"]["sizes"]["4"]["savers"]["redis-perdure"]
    assert beyond["load_round_trips"] > 0
    assert beyond["load_down"] > 0
    # A turn is a load, and what it stores.
    assert beyond["turn_round_trips"] > beyond["load_round_trips"]


def test_the_page_has_the_ratio_of_the_rounds() -> None:
    def seen(load: list[float]) -> dict[str, object]:
        timed = dict.fromkeys(("turn_ms", "turn_processor_ms"), 4.0)
        rounds = {f"{name}_rounds": [4.0, 4.0] for name in timed}
        return {"load_ms": load[0], "load_ms_rounds": load, **timed, **rounds}

    counted = {"load_requests": 9.0, "load_down": 37_000.0}
    section = {
        "sizes": [100],
        "rounds": 2,
        "backends": {
            "sqlite": {
                "notes": [],
                "sizes": {"100": {"savers": {"sqlite": seen([2.0, 4.0]), "perdure": seen([6.0, 8.0])}}},
            },
            "postgres": {"skipped": "no server"},
            "d1": {"notes": [], "sizes": {"100": {"savers": {"d1-perdure": {**seen([5.0]), **counted}}}}},
        },
    }
    page = report.page(results({}, 1, cold=section), [], "")
    assert "| AsyncSqliteSaver | 100 | 2.00 | – | 4.00 | – | 4.00 | – |" in page
    assert "| **Perdure** | 100 | 6.00 | 2.50 × | 4.00 | 1.00 × | 4.00 | 1.00 × |" in page
    assert "| **Perdure** | 100 | 5.00 | – | 4.00 | – | 4.00 | – | 9.00 | 37.0 |" in page
    assert "### PostgreSQL, from cold\n\nNot measured: no server." in page
