"""``docs/systems.md`` has every row once, with tests that there are, or with the reason why it is open."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LINE = re.compile(r"^\| ([A-Z]\d+) \| .+? \| (.+?) \| (.+) \|$", re.MULTILINE)
ROWS = LINE.findall((ROOT / "docs" / "systems.md").read_text("utf-8"))
OPEN = [(row, reason) for row, state, reason in ROWS if state == "open"]
SHOWN = [(row, state, proof) for row, state, proof in ROWS if state != "open"]
LAST = {"W": 15, "S": 20, "C": 18, "D": 18, "M": 8}


def test_every_row_is_there_once() -> None:
    every = sorted(f"{letter}{n}" for letter, last in LAST.items() for n in range(1, last + 1))
    assert sorted(row for row, *_ in ROWS) == every


@pytest.mark.parametrize(("row", "reason"), OPEN)
def test_a_row_that_is_open_has_a_reason_and_no_test(row: str, reason: str) -> None:
    assert len(reason.split()) > 3, f"why is {row} open?"
    assert "::" not in reason


@pytest.mark.parametrize(("row", "state", "proof"), SHOWN)
def test_a_row_names_tests_that_there_are(row: str, state: str, proof: str) -> None:
    assert re.match(r"(works|in part)\b", state)
    named = re.findall(r"`((?:tests|src)/[\w/.]+)::(\w+)`", proof)
    assert named, f"{row} names no test"
    for file, name in named:
        source = (ROOT / file).read_text("utf-8")
        assert re.search(rf"^\s*(async )?def {name}\(", source, re.MULTILINE), f"{file} has no {name}"
