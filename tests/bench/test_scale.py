"""The section of databases that grow: a small run, and the page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench import report
from bench.desk import Desk
from bench.plan import QUICK
from bench.workloads import scale
from tests.bench.test_report import results


@pytest.mark.slow
def test_what_grows_is_measured_from_its_first_part_to_its_last(tmp_path: Path) -> None:
    done: list[str] = []
    plan = replace(
        QUICK, scale_messages=130, scale_turns=20, scale_sends=7, scale_threads=60, scale_tenants=3
    )
    desk = Desk(plan, [], tmp_path, done.append)
    found = scale.run(desk)
    assert desk.notes == []
    assert len(done) == scale.units(desk)
    for name in ("messages", "turns", "threads"):
        steps = found["steps"][name]
        assert len(steps) == scale.STEPS
        assert all(step["memory_kb"] > 0 and step["descriptors"] > 0 for step in steps)
    # The median of twenty pages, not the time of all of them.
    assert all(0 < step["page_s"] <= step["seconds"] / 10 for step in found["steps"]["threads"])
    assert all(len(runs) == scale.SEND_ROUNDS for runs in found["steps"]["sends"].values())


def test_the_page_compares_the_last_part_with_the_first() -> None:
    def steps(**ends: tuple[float, float]) -> list[dict[str, float]]:
        return [{name: pair[n > 0] for name, pair in ends.items()} for n in range(scale.STEPS)]

    kept = {"memory_kb": (100_000, 110_000), "descriptors": (20, 20)}
    section = {
        "messages": 1000, "turns": 500, "sends": 9, "threads": 80, "tenants": 4,
        "steps": {
            "messages": steps(messages_s=(1.0, 2.0), **kept),
            "turns": steps(turn_s=(0.004, 0.005), **kept),
            "threads": steps(page_s=(0.001, 0.002), load_s=(0.001, 0.001), **kept),
            "sends": {"perdure": [{"run_s": 0.4}], "memory": [{"run_s": 0.2}]},
        },
    }  # fmt: skip
    page = report.page(results({}, 1, scale=section), [], "")
    assert "| messages a second | 100 | 50.0 | 50.0 | 0.50 × |" in page
    assert "| a turn, ms | 4.00 | 5.00 | 5.00 | 1.25 × |" in page
    assert "| memory, MB | 100 | 110 | 110 | 1.10 × |" in page
    assert "| a run, s | 0.20 | 0.40 | 2.00 × |" in page
