"""Two sides of a comparison: which take part, what is compared, and a commit that is not there."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from bench.comparison import Change, NothingCompared, UnknownCommit, changes, check_out, sides, table
from bench.savers import CANDIDATES

TREE = Path("/tree")


def test_each_of_our_savers_has_its_twin_beside_it() -> None:
    found = sides(["memory", "perdure", "perdure-sync"], CANDIDATES, "abc", TREE)
    assert list(found) == ["memory", "perdure", "perdure@abc", "perdure-sync", "perdure-sync@abc"]
    assert (found["perdure@abc"].tree, found["perdure@abc"].twin_of) == (TREE, "perdure")
    assert found["perdure"].tree is None


def test_figures_of_both_sides_are_compared_wherever_a_section_has_them() -> None:
    twins = sides(["memory", "perdure"], CANDIDATES, "abc", TREE)
    seen = {"50": {"p50": 2.0, "rounds": [1.0, 9.0, 3.0], "log_folded": True}, "real": 5}
    before = {"50": {"p50": 4.0, "rounds": [6.0]}, "stored": 1}
    results = {"growth": {"parts": {"savers": {"perdure": seen, "perdure@abc": before, "memory": seen}}}}
    found = changes(results, twins)
    assert found == [Change("growth", "perdure", "parts 50 p50", 4.0, 2.0)]
    shown = io.StringIO()
    Console(width=120, file=shown).print(table(found, "abc"))
    assert "0.50 ×" in shown.getvalue()


def test_a_run_that_compares_nothing_is_no_success() -> None:
    twins = sides(["perdure"], CANDIDATES, "abc", TREE)
    with pytest.raises(NothingCompared, match="nothing in growth, race was measured with both codes"):
        changes({"growth": {"savers": {"perdure": {"p50": 1.0}}}, "race": {}}, twins)


def test_a_commit_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnknownCommit, match="no commit 'nowhere'"), check_out("nowhere", tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []
