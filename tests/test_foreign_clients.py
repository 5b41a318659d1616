"""Outcomes of suites written elsewhere are read as they are; what fails without a reason is noticed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools.foreign_clients import sources
from tools.foreign_clients.catalogue import PORTED, REASONS, SUITES
from tools.foreign_clients.report import Comparison
from tools.foreign_clients.running import NotRun, read_junit, read_scenarios, read_vitest
from tools.foreign_suites.arguments import parser_of
from tools.foreign_suites.places import Unobtainable
from tools.foreign_suites.reasons import read_entries, read_unsteady
from tools.foreign_suites.running import Outcome

PASSED, FAILED = Outcome("passed"), Outcome("failed", "no")

JUNIT = """<?xml version="1.0"?><testsuites><testsuite>
<testcase classname="tests.integration.test_a" name="test_one"/>
<testcase classname="tests.integration.test_a" name="test_two">
<failure message="first&#10;second"/></testcase>
<testcase classname="tests.integration.test_a" name="test_three"><skipped/></testcase>
</testsuite></testsuites>"""


def test_outcomes_of_pytest(tmp_path: Path) -> None:
    (tmp_path / "it.xml").write_text(JUNIT)
    assert read_junit(tmp_path / "it.xml") == {
        "test_a::test_one": Outcome("passed"),
        "test_a::test_two": Outcome("failed", "first"),
        "test_a::test_three": Outcome("skipped"),
    }


def test_outcomes_of_vitest(tmp_path: Path) -> None:
    cases = [
        {"status": "passed", "fullName": "a b", "failureMessages": []},
        {"status": "failed", "fullName": "a c", "failureMessages": ["why\nwhere"]},
        {"status": "pending", "fullName": "a d", "failureMessages": []},
    ]
    file = tmp_path / "it.json"
    file.write_text(json.dumps({"testResults": [{"name": "x", "assertionResults": cases}]}))
    assert read_vitest(file) == {
        "a b": Outcome("passed"),
        "a c": Outcome("failed", "why"),
        "a d": Outcome("skipped"),
    }
    broken = {"name": "tests/x.mts", "assertionResults": [], "message": "no module"}
    file.write_text(json.dumps({"testResults": [broken]}))
    with pytest.raises(NotRun, match=r"x\.mts: no module"):
        read_vitest(file)


def test_outcomes_of_scenarios(tmp_path: Path) -> None:
    checks = [
        {"id": "listed", "status": "SUCCESS"},
        {"id": "fits", "status": "FAILURE", "errorMessage": "why\nwhere"},
        {"id": "retry", "status": "WARNING", "errorMessage": "is recommended"},
        {"id": "sent", "status": "INFO"},
    ]
    for name in (
        "server-tools-list-2026-11-23T22-08-19-222Z",
        "server-server-initialize-2026-11-23T22-08-18-953Z",
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "checks.json").write_text(json.dumps(checks if "list" in name else checks[:1]))
    assert read_scenarios(tmp_path) == {
        "server-initialize::listed": Outcome("passed"),
        "tools-list::listed": Outcome("passed"),
        "tools-list::fits": Outcome("failed", "why"),
        "tools-list::retry": Outcome("skipped", "is recommended"),
    }


def test_what_fails_without_a_reason_is_noticed() -> None:
    reasons = {("s", "b"): "Crons.", ("s", "c"): "Old.", ("other", "a"): "Elsewhere."}
    found = Comparison("s", {"a": FAILED, "b": FAILED, "c": PASSED}, {"a": PASSED}, reasons)
    assert (found.wrong, found.stale) == (["a"], ["c"])
    assert list(found.lines()) == [
        "s: 1 of 3 pass, the reference 1",
        "  FAILED    a (the reference: passed): no",
        "  left out  b: Crons.",
        "  passes, and need not be left out any more: c",
    ]


def test_what_passes_at_times_keeps_its_reason(tmp_path: Path) -> None:
    entry = '[[test]]\nsuite = "s"\nid = "{}"\n{}reason = "x"\n'
    file = tmp_path / "excluded.toml"
    file.write_text(entry.format("a", "unsteady = true\n") + entry.format("b", ""))
    found = Comparison("s", {"a": PASSED, "b": PASSED}, {}, read_entries(file), read_unsteady(file))
    assert (found.wrong, found.stale) == ([], ["b"])


def test_reasons_are_given_once(tmp_path: Path) -> None:
    names = {suite.name for suite in SUITES}
    assert all(suite in names for suite, _ in read_entries(REASONS))
    entry = '[[test]]\nsuite = "s"\nid = "a"\nreason = "x"\n'
    (tmp_path / "twice.toml").write_text(entry + entry)
    with pytest.raises(ValueError, match="needs one reason"):
        read_entries(tmp_path / "twice.toml")


def test_a_missing_checkout_names_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(Unobtainable, match=r"check out https://github\.com/langchain-ai/langgraph there"):
        sources.checkout(SUITES[0], tmp_path, tmp_path)


def test_what_is_put_beside_a_suite_is_complete() -> None:
    for suite in SUITES:
        if suite.ported:
            config = json.loads((PORTED / suite.ported / suite.config).read_text())
            places = [*config["graphs"].values(), config.get("http", {}).get("app", "")]
            own = [place.partition(":")[0] for place in places if place and "/examples/" not in place]
            assert own
            for place in own:
                assert (PORTED / suite.ported / place).is_file(), place


def test_a_copy_has_the_suite_and_what_stands_beside_it(tmp_path: Path) -> None:
    suite = next(suite for suite in SUITES if suite.name == "aegra")
    for held, _ in suite.folders:
        (tmp_path / "aegra" / held).mkdir(parents=True)
        (tmp_path / "aegra" / held / "test_it.py").write_text("pass")
    folder = sources.copy_suite(suite, sources.checkout(suite, tmp_path, tmp_path), tmp_path / "run")
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert {"tests/e2e/test_it.py", "examples/test_it.py", "web.py", suite.config} <= found
    assert "__init__.py" not in found


def test_only_suites_that_there_are_can_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    parser = parser_of("tools.it", "Runs it.", ["a", "b"])
    assert parser.parse_args([]).suites == ["a", "b"]
    assert parser.parse_args(["--suites", "b"]).suites == ["b"]
    with pytest.raises(SystemExit):
        parser.parse_args(["--suites", "b,c"])
    assert "no 'c'; there are a, b" in capsys.readouterr().err
