"""Texts that the page of symptoms quotes are those that users see."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs_pages import ROOT

PAGE = ROOT / "docs" / "troubleshooting.md"
OTHERS = {
    "Type is not msgpack serializable": "langgraph-checkpoint's serializer",
    "the connection is closed": "psycopg's, through langgraph-checkpoint-postgres",
    "includes a custom checkpointer": "langgraph dev",
    "asyncio.run() cannot be called from a running event loop": "Python's",
    "Found AIMessages with tool_calls that do not have a corresponding ToolMessage": "langgraph-prebuilt's",
}
"""Texts of other programs, and whose they are."""
NOT_TEXTS = {"pending", "perdure fsck", "Retry-After"}


def quoted() -> list[str]:
    """Return what the first column quotes, without the names of errors."""
    rows = re.findall(r"^\| (.*?) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    found = [text for row in rows for text in re.findall(r"(?<!\()`([^`]+)`", row)]
    return [text for text in found if text not in NOT_TEXTS and not text.startswith("--")]


def source() -> str:
    """Return the text of the package with its adjacent string literals joined."""
    files = sorted((ROOT / "src").rglob("*.py"))
    text = "\n".join(path.read_text(encoding="utf-8") for path in files)
    return re.sub(r"[\"']\s*\n\s*f?[\"']", "", text)


@pytest.fixture(scope="module")
def package() -> str:
    return source()


@pytest.mark.parametrize("text", [text for text in quoted() if text not in OTHERS])
def test_a_quoted_text_is_in_the_package(text: str, package: str) -> None:
    assert text in package


def test_texts_of_others_are_on_the_page() -> None:
    assert set(OTHERS) <= set(quoted())
    assert len(quoted()) > 15


def test_the_names_of_errors_exist() -> None:
    from perdure import errors

    named = re.findall(r"\(`(\w+)`\)", PAGE.read_text(encoding="utf-8"))
    assert len(named) > 4
    assert all(hasattr(errors, name) for name in named)


def test_a_text_that_no_error_has_is_noticed(package: str) -> None:
    assert "has no Perdure scheme; run" not in package
    assert Path(__file__).name not in package
