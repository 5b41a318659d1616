"""Cutting a text: its end stays, in the largest whole parts that fit."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from perdure.conversation.shortening import cut


def shorter(text: str, most: int) -> str:
    return cut(text, lambda each: len(each) <= most)


def test_the_oldest_sentences_leave_first() -> None:
    text = "She is called Ada. She likes tea! Does she sail? She asked for a boat on Monday."
    assert shorter(text, 50) == "… Does she sail? She asked for a boat on Monday."
    assert shorter(text, 36) == "… She asked for a boat on Monday."


def test_one_long_sentence_is_cut_between_words_and_one_long_word_within() -> None:
    assert shorter("a boat that is called Marianne", 12) == "… Marianne"
    assert shorter("M" * 40, 9) == "… MMMMMMM"
    assert shorter("\u8239" * 40, 9) == "… " + "\u8239" * 7
    assert shorter("words", 2) == ""


@given(st.text(max_size=300), st.integers(0, 320))
def test_what_is_left_fits_and_is_the_end(text: str, most: int) -> None:
    left = shorter(text, most)
    assert len(left) <= most or left == ""
    words = left.removeprefix("… ").split()
    assert not words or text.split()[-1].endswith(words[-1])
