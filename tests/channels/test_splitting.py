"""Division of texts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.channels.splitting import count_utf16, split_text

texts = st.text(st.sampled_from("ab. \n🙂é"), max_size=200)


@given(texts, st.integers(2, 30))
def test_parts_fit_and_nothing_but_blanks_is_lost(text: str, most: int) -> None:
    for length in (len, count_utf16):
        parts = split_text(text, most, length)
        assert all(0 < length(part) <= most for part in parts)
        assert "".join("".join(parts).split()) == "".join(text.split())


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("one two\n\nthree", ["one two", "three"]),
        ("one two\nthree", ["one two", "three"]),
        ("One two. Three", ["One two.", "Three"]),
        ("one two three", ["one two", "three"]),
        ("onetwothree", ["onetwothre", "e"]),
        ("", []),
        (" \n ", []),
    ],
)
def test_the_best_place_is_taken(text: str, parts: list[str]) -> None:
    assert split_text(text, 10) == parts


def test_no_more_than_a_part_is_measured_at_a_time() -> None:
    measured: list[int] = []

    def length(text: str) -> int:
        measured.append(len(text))
        return len(text)

    assert len(split_text("word " * 10_000, 100, length)) == 500
    assert max(measured) <= 101


def test_a_length_in_utf_16_is_telegram_s() -> None:
    assert count_utf16("a🙂") == 3
    assert split_text("🙂🙂🙂", 4, count_utf16) == ["🙂🙂", "🙂"]
