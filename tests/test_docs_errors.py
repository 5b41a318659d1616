"""The page of errors has every error, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from perdure import errors

PAGE = Path(__file__).resolve().parent.parent / "docs" / "errors.md"


def test_every_error_has_its_row() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    names = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and value.__module__ == errors.__name__ and name != "PerdureError"
    }
    assert sorted(rows) == sorted(names)
