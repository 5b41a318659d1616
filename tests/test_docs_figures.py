"""Figures that a page quotes from the benchmarks are those that the linked section of the benchmarks has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
_LINK = re.compile(r"\]\(benchmarks\.md#([^)]*)\)")
_ANY_LINK = re.compile(r"\]\([^)]*\)")
_FIGURE = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?![\w.])")


def rows(page: str) -> list[str]:
    """The rows of tables that link to a section of the benchmarks."""
    lines = (DOCS / page).read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line.startswith("| ") and _LINK.search(line)]


def section(anchor: str) -> str:
    """The text below a heading of the benchmarks, up to the next heading."""
    for part in re.split(r"^#+ ", (DOCS / "benchmarks.md").read_text(encoding="utf-8"), flags=re.MULTILINE):
        heading, _, text = part.partition("\n")
        if re.sub(r"[^\w\s-]", "", heading).strip().lower().replace(" ", "-") == anchor:
            return text
    raise AssertionError(f"the benchmarks have no section #{anchor}")


@pytest.mark.parametrize("row", rows("compared.md"))
def test_a_row_that_links_to_the_benchmarks_has_the_figures_of_that_section(row: str) -> None:
    measured = {figure for anchor in _LINK.findall(row) for figure in _FIGURE.findall(section(anchor))}
    subject, _, rest = row.removeprefix("| ").partition(" | ")
    missing = set(_FIGURE.findall(_ANY_LINK.sub("]", rest))) - measured
    assert not missing, f"{subject}: the section has no {', '.join(sorted(missing))}"
