"""Suites written elsewhere are run on Perdure's savers, and what differs is noticed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.conftest import missing
from tools.foreign_suites import places
from tools.foreign_suites.__main__ import main
from tools.foreign_suites.catalogue import SAVER_SUITES, SUITES, Reasons, read_reasons
from tools.foreign_suites.report import compare, lines
from tools.foreign_suites.running import Backend, Outcome, run_files, run_tests

PASSED, FAILED, SKIPPED = Outcome("passed"), Outcome("failed", "no"), Outcome("skipped")

SUITE = """
import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore
from langgraph.checkpoint.base import empty_checkpoint

AT = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}

def test_of_a_saver():
    saver = InMemorySaver()
    stored = saver.put(AT, empty_checkpoint(), {"source": "input"}, {})
    assert saver.get_tuple(stored).metadata["source"] == "input"

def test_that_only_stock_passes():
    assert type(InMemorySaver()).__module__ == "langgraph.checkpoint.memory"
    assert type(InMemoryStore()).__module__ == "langgraph.store.memory"

def test_that_fails():
    raise AssertionError("as ever")

def test_of_savers_that_share_nothing():
    InMemorySaver().put(AT, empty_checkpoint(), {}, {})
    assert InMemorySaver().get_tuple(AT) is None

@pytest.fixture
def broken():
    yield
    raise ValueError("in the teardown")

def test_whose_teardown_fails(broken):
    pass
"""


def _run(folder: Path, backend: Backend) -> dict[str, str]:
    (folder / "tests").mkdir(exist_ok=True)
    file = folder / "tests" / "test_it.py"
    file.write_text(SUITE)
    found = run_files(Path(sys.executable), folder, [file], backend, jobs=1)
    return {node.rpartition("::")[2]: outcome.result for node, outcome in found.items()}


def test_a_suite_runs_on_what_it_is_given(tmp_path: Path) -> None:
    stock = _run(tmp_path, Backend("stock", {}))
    ours = _run(tmp_path, Backend("memory", {"PERDURE_SUITE_URL": "memory://"}))
    assert stock == {
        "test_of_a_saver": "passed",
        "test_that_only_stock_passes": "passed",
        "test_that_fails": "failed",
        "test_of_savers_that_share_nothing": "passed",
        "test_whose_teardown_fails": "failed",
    }
    assert ours == {**stock, "test_that_only_stock_passes": "failed"}


def test_a_file_that_cannot_be_run_has_failed(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_it.py").write_text("import os\nos._exit(3)\n")
    found = run_tests(Path(sys.executable), tmp_path, ["tests/test_it.py"], Backend("memory", {}))
    assert found["tests/test_it.py"].result == "failed"
    assert "ended with 3" in found["tests/test_it.py"].reason


def test_what_stock_passes_has_to_pass() -> None:
    stock = {
        "f::a": PASSED,
        "f::b": PASSED,
        "f::c[x]": PASSED,
        "f::d": FAILED,
        "f::e": SKIPPED,
        "g::h": PASSED,
    }
    ours = {"f::a": PASSED, "f::b": FAILED, "f::c[x]": FAILED, "g": Outcome("failed", "it ended")}
    found = compare("s", "memory", stock, ours, Reasons({("s", "f::c"): "reads rows"}))
    assert found.passed == 1
    assert found.failed == {"f::b": "no", "g::h": "it ended"}
    assert found.excluded == {"f::c[x]": "reads rows"}
    assert found.row == ("s", "memory", "4", "1", "1", "2")
    assert "  f::b: no" in list(lines([found]))


def test_what_passes_when_it_is_run_again_alone_is_told_apart() -> None:
    found = compare("s", "memory", {"f::a": PASSED, "f::b": PASSED}, {"f::a": FAILED}, Reasons({}))
    again = found.after({"f::a": PASSED, "f::b": FAILED})
    assert (again.passed, again.failed, again.unsteady) == (1, {"f::b": "it was not run"}, {"f::a": "no"})
    assert "s on memory, failed, but passed when run again alone:" in "\n".join(lines([again]))


def test_an_exclusion_whose_tests_all_pass_is_named() -> None:
    reasons = Reasons({("s", "f::a"): "reads rows", ("s", "f::b"): "reads rows", ("s", "f::c"): "reads rows"})
    stock = {"f::a[1]": PASSED, "f::a[2]": PASSED, "f::b[1]": PASSED, "f::b[2]": PASSED}
    found = compare("s", "memory", stock, {**stock, "f::b[2]": FAILED}, reasons)
    assert found.stale == ("f::a",)
    assert list(lines([found]))[-1] == "  f::a"


def test_a_reason_covers_tests_by_a_word_of_their_parameters() -> None:
    reasons = Reasons({("a", "[l2]"): "another measure"})
    assert reasons.of("a", "tests/test_a.py::test_it[vector-l2]") == "another measure"
    assert reasons.of("a", "tests/test_a.py::test_l2[vector-cosine]") is None
    assert reasons.of("b", "tests/test_a.py::test_it[vector-l2]") is None


def test_a_reason_covers_what_is_in_a_class_of_its_suite_only() -> None:
    reasons = Reasons({("s", "f::Class"): "its rows"})
    assert reasons.of("s", "f::Class::test_it[x::y]") == "its rows"
    assert reasons.of("s", "f::Classes::test_it") is None
    assert reasons.of("other", "f::Class::test_it") is None


@pytest.mark.parametrize(("count", "reason"), [(16, "a reason"), (1, " ")])
def test_too_many_exclusions_and_those_without_a_reason_are_refused(
    count: int, reason: str, tmp_path: Path
) -> None:
    entry = '[[test]]\nsuite = "langgraph"\nid = "f::{}"\nreason = "{}"\n'
    (tmp_path / "excluded.toml").write_text("".join(entry.format(n, reason) for n in range(count)))
    with pytest.raises(ValueError, match=r"excluded\.toml"):
        read_reasons(tmp_path / "excluded.toml")


def test_the_exclusions_name_suites_that_there_are() -> None:
    assert {suite for suite, _ in read_reasons().by_id} <= {s.name for s in (*SUITES, *SAVER_SUITES)}


def test_a_source_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(places.Unobtainable, match=f"at the tag of release {SUITES[0].version}"):
        places.source_of(SUITES[0], tmp_path, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("suite", [suite.name for suite in SUITES if suite.quick])
def test_the_bounded_part_of_a_suite_passes(
    suite: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Downloads a suite once and installs what it needs; both are kept in the user's cache folder."""
    arguments = ["--suites", suite, "--quick", "--backends", "memory,sqlite", "--name", tmp_path.name]
    status = main(arguments)
    printed = capsys.readouterr()
    if status == 2:
        missing(f"the suite of {suite}", printed.err.strip())
    assert status == 0, printed.out
