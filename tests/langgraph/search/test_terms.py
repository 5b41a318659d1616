"""Words of texts: what is one word, and which words are the same."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.errors import MissingExtra
from perdure.langgraph.search.terms import TermExtractor, languages

ENGLISH = TermExtractor("english")
PLAIN = TermExtractor(None)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("She was running", "runs"),
        ("CAFÉ", "cafe"),
        ("Straße", "STRASSE"),
        ("e\u0301tude", "étude"),
        ("ﬁne", "fine"),
        ("Ada’s tea", "ada"),
        ("snake_case", "case"),
        ("我喜欢喝茶", "茶"),
        ("我喜欢喝茶", "喝茶"),
        ("ชอบดื่มชา", "ชา"),
        ("GPT4モデル", "gpt4"),
        ("user@example.com", "example"),
        ("C3PO", "c3po"),
    ],
)
def test_a_word_is_found_in_another_form(one: str, other: str) -> None:
    wanted = ENGLISH.terms(other)
    assert wanted
    assert wanted.keys() <= ENGLISH.terms(one).keys()


@pytest.mark.parametrize(
    ("text", "terms"), [("नमस्ते दुनिया", 2), ("مرحبا بالعالم", 2), ("שָׁלוֹם", 1), ("한국어 좋아", 2)]
)
def test_marks_belong_to_their_letters(text: str, terms: int) -> None:
    assert len(PLAIN.terms(text)) == terms


@pytest.mark.parametrize("text", ["", " \n\t", '"()*^:-+~', "😀🎉", "\x00", "---", "\u200b"])
def test_text_without_words_has_no_terms(text: str) -> None:
    assert not ENGLISH.terms(text)


def test_a_syntax_of_queries_is_plain_words() -> None:
    assert PLAIN.terms('tea AND NOT "cof*" OR NEAR(a b)') == PLAIN.terms("tea and not cof or near a b")


def test_common_words_of_a_question_are_left_out_unless_it_has_no_others() -> None:
    assert ENGLISH.query_terms("What is she allergic to?") == ENGLISH.terms("allergic")
    assert ENGLISH.query_terms("Who is it?") == ENGLISH.terms("who is it")
    assert PLAIN.query_terms("what tea") == PLAIN.terms("what tea")


def test_a_language_has_stems_of_its_own() -> None:
    german = TermExtractor("german")
    assert german.terms("Häuser") == german.terms("Haus")
    assert PLAIN.terms("runs") != PLAIN.terms("run")
    assert {"english", "german", "french"} <= set(languages())
    with pytest.raises(ValueError, match="klingon"):
        TermExtractor("klingon")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "snowballstemmer", None)
    with pytest.raises(MissingExtra, match=r"perdure\[search\]"):
        TermExtractor("english")


def test_threads_do_not_mix_words_up() -> None:
    words = [f"{'abcdefgh'[n % 8]}{n}running houses walked" for n in range(400)]
    expected = [ENGLISH.terms(word) for word in words]
    shared = TermExtractor("english")
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(shared.terms, words)) == expected


@settings(max_examples=30)
@given(st.text(max_size=60))
def test_any_text_has_terms_and_finds_itself(text: str) -> None:
    terms = ENGLISH.terms(text)
    assert all(0 < len(term) <= 80 and count > 0 for term, count in terms.items())
    assert ENGLISH.terms(f"{text} {text}").keys() >= terms.keys()
