"""Why some tests of a suite need not pass, as the committed lists name them."""

from __future__ import annotations

import tomllib
from pathlib import Path


def read_entries(path: Path) -> dict[tuple[str, str], str]:
    """The reasons by suite and id, in the file's order. `ValueError` for a test without one, or with two."""
    found: dict[tuple[str, str], str] = {}
    for entry in tomllib.loads(path.read_text(encoding="utf-8")).get("test", []):
        key = entry["suite"], entry["id"]
        if key in found or not entry.get("reason", "").strip():
            raise ValueError(f"{path.name}: {entry['id']} of {entry['suite']} needs one reason")
        found[key] = entry["reason"]
    return found
