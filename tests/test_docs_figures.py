"""Figures that a page quotes from the benchmarks are those that the benchmarks have now."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
_LINK = re.compile(r"\]\(benchmarks\.md[^)]*\)")
_OTHER_LINK = re.compile(r"\]\([^)]*\)")
_FIGURE = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?![\w.])")


def quoting(page: str) -> list[str]:
    return [line for line in (DOCS / page).read_text(encoding="utf-8").splitlines() if _LINK.search(line)]


@pytest.mark.parametrize("line", quoting("compared.md"))
def test_a_row_with_a_link_to_the_benchmarks_has_their_figures(line: str) -> None:
    measured = set(_FIGURE.findall((DOCS / "benchmarks.md").read_text(encoding="utf-8")))
    subject, _, rest = line.removeprefix("| ").partition(" | ")
    missing = set(_FIGURE.findall(_OTHER_LINK.sub("]", rest))) - measured
    assert not missing, f"{subject}: the benchmarks have no {', '.join(sorted(missing))}"
