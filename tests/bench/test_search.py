"""The section of searches: exact answers to compare with, small runs, and the page."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from bench import report
from bench.candidate import Place
from bench.searches import BEST, SCAN, Desk, Vectors, exact, home, open_shelf
from bench.stores import OURS
from bench.subject import Subject
from tests.bench.test_report import results

ITEMS, QUERIES = 250, 4


@pytest.mark.parametrize("name", [SCAN, OURS])
def test_the_best_items_are_found_and_timed_without_their_embedding(name: str, tmp_path: Path) -> None:
    async def measure() -> None:
        vectors = Vectors(16)
        async with open_shelf(name, name, Place(tmp_path), vectors) as (searched, prepare):
            desk = Desk(searched, prepare, vectors)
            await desk.fill(ITEMS, QUERIES)
            assert (await desk.first())["seconds"] > 0
            found = await desk.searches()
            assert found["recall"] == 1.0
            assert len(found["seconds"]) == QUERIES
            if name == OURS:
                assert set(await desk.puts(4, 2)) == {"indexed", "plain"}
                assert len((await desk.after_puts(ITEMS, 3))["seconds"]) == 3
                assert (await desk.searches())["recall"] == 1.0

    asyncio.run(measure())


@pytest.mark.slow
def test_what_is_no_saver_has_a_process_of_its_own(tmp_path: Path) -> None:
    (tmp_path / SCAN).mkdir()
    subject = Subject(SCAN, f"{SCAN}-8", Place(tmp_path / SCAN), module="bench.searches")
    try:
        subject.ask("fill", items=20, queries=2)
        assert subject.ask("searches")["recall"] == 1.0
    finally:
        subject.leave()


def test_exact_answers_are_those_of_the_cosines() -> None:
    vectors = Vectors(8)
    (found,) = exact(vectors, 40, [7])
    assert len(found) == BEST
    assert "7" in found
    assert home(7) == home(107)


def test_a_search_stands_beside_its_rival() -> None:
    def seen(ms: float, **more: Any) -> dict[str, Any]:
        return {"seconds": [ms / 1e3], "first": 1.0, "recall": 0.975, **more}

    puts = {"1": {"plain": 0.002, "indexed": 0.003}}
    section = {
        "items": 100_000,
        "dims": 256,
        "backends": {
            "SQLite": {
                "seen": {SCAN: seen(80), OURS: seen(40, puts=puts, after_puts=[0.05])},
            },
            "PostgreSQL": {"skipped": "no server"},
            "Redis and Valkey": {"seen": {OURS: seen(30, puts=puts, after_puts=[0.06])}},
        },
    }
    page = report.page(results({}, 1, search=section), [], "")
    assert "| median, ms | 80.0 | 40.0 | 0.50 × |" in page
    assert "| median after a put, ms | – | 50.0 | – |" in page
    assert "| recall of the best ten | 0.975 | 0.975 | – |" in page
    assert "| **Perdure**, one | 2.00 | 3.00 | 1.50 × |" in page
    assert "### Search on PostgreSQL\n\nNot measured: no server." in page
    assert "| median, ms | 30.0 |" in page
