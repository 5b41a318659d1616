"""Why some tests of a suite need not pass, as the committed lists name them."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any


def read_entries(path: Path) -> dict[tuple[str, str], str]:
    """The reasons by suite and id, in the file's order. `ValueError` for a test without one, or with two."""
    found: dict[tuple[str, str], str] = {}
    for entry in _entries(path):
        key = entry["suite"], entry["id"]
        if key in found or not entry.get("reason", "").strip():
            raise ValueError(f"{path.name}: {entry['id']} of {entry['suite']} needs one reason")
        found[key] = entry["reason"]
    return found


def read_unsteady(path: Path) -> frozenset[tuple[str, str]]:
    """Those of the tests, by suite and id, that are marked `unsteady`: they pass at times."""
    return frozenset((entry["suite"], entry["id"]) for entry in _entries(path) if entry.get("unsteady"))


def _entries(path: Path) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = tomllib.loads(path.read_text(encoding="utf-8")).get("test", [])
    return entries
