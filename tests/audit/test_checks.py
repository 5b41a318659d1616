"""The page lists every check, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from perdure.audit import CHECKS

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"


def test_the_page_has_a_row_for_each_check() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert rows == list(CHECKS)
