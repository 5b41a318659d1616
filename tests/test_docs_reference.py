"""The API reference has every public name, and only names that exist."""

from __future__ import annotations

import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import perdure
from tools.write_surface import MODULES

PAGES = sorted((Path(__file__).parents[1] / "docs" / "reference").glob("*.md"))


def entries() -> list[str]:
    texts = [page.read_text(encoding="utf-8") for page in PAGES]
    return [entry for text in texts for entry in re.findall(r"^::: (\S+)$", text, re.MULTILINE)]


def test_each_public_name_is_in_the_reference() -> None:
    listed = set(entries())
    errors = set(vars(import_module("perdure.errors")))
    missing = [name for name in perdure.__all__ if f"perdure.{name}" not in listed and name not in errors]
    assert not missing
    assert {name for name in MODULES if name != "perdure"} <= listed


def test_each_entry_exists() -> None:
    absent = [entry for entry in entries() if not find_spec(entry) and not hasattr(perdure, _name(entry))]
    assert not absent


def _name(entry: str) -> str:
    return entry.removeprefix("perdure.")


def test_each_entry_is_on_one_page() -> None:
    assert len(entries()) == len(set(entries())) > 20


def test_each_name_of_the_runtime_is_on_a_page() -> None:
    shown = {
        name
        for page in PAGES
        for name in re.findall(r"^        - (\w+)$", page.read_text(encoding="utf-8"), re.M)
    }
    assert set(import_module("perdure.runtime").__all__) - shown == set()
