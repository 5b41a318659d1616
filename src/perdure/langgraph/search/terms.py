"""Terms of a text: the normalised, stemmed words by which it is found.

A query is cut in the same way as what is searched. It has no syntax: every character of it is text.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Callable
from functools import cache, lru_cache
from itertools import pairwise
from typing import Any

from perdure.errors import MissingExtra

__all__ = ["TermExtractor", "languages"]

_LONGEST = 64
_STEMS = 50_000
_COMMON = {
    "english": "a about after all also am an and any are as at be because been before but by can could did "
    "do does doing don for from had has have having he her here hers him his how i if in into is it its just "
    "me more my no not now of off on one or our out over own s she should so some such t than that the "
    "their them then there these they this those to too under until up us very was we were what when "
    "where which while who whom whose why will with would you your"
}
_ACCENTS = re.compile("[\u0300-\u036f]")
# Scripts without spaces between words: their texts are cut into characters and pairs of them.
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003fffd]+"
)


def _load_snowball() -> Any:
    try:
        import snowballstemmer
    except ImportError as error:
        raise MissingExtra('a text index needs an extra: pip install "perdure[search]"') from error
    return snowballstemmer


def languages() -> list[str]:
    """Return the languages whose words can be stemmed; raise ``MissingExtra`` without the extra."""
    return sorted(_load_snowball().algorithms())


class TermExtractor:
    """Extractor of terms for texts of one language; safe in many OS threads.

    Args:
        language: A language of Snowball's stemmers, such as ``"english"``, or ``None`` for words as they are.

    Raises:
        ValueError: There is no such language.
        MissingExtra: The extra is not installed.
    """

    def __init__(self, language: str | None) -> None:
        self._stem: Callable[[str], str] = str
        self._common: frozenset[str] = frozenset()
        if language is None:
            return
        if language not in languages():
            raise ValueError(
                f"index has no language {language!r}; it has {', '.join(languages())}, or None for words as "
                "they are"
            )
        # A stemmer holds the word that it works on, so it is not shared: each call for an uncached word makes
        # one.
        self._stem = lru_cache(_STEMS)(lambda word: _load_snowball().stemmer(language).stemWord(word))
        self._common = frozenset(self.terms(_COMMON.get(language, "")))

    def terms(self, text: str) -> Counter[str]:
        """Return the terms of a text with their counts."""
        plain = unicodedata.normalize("NFKD", text.casefold())
        plain = unicodedata.normalize("NFC", _ACCENTS.sub("", plain))
        found: list[str] = []
        for word in _make_word_pattern().findall(plain):
            if _UNSPACED.search(word):
                found += _cut_unspaced(word, self._stem)
            else:
                found.append(self._stem(word[:_LONGEST]))
        return Counter(found)

    def query_terms(self, text: str) -> Counter[str]:
        """Return the terms of a query: without words such as "what" and "the", unless it has no others. Such
        words are rare in a text, but half of the words of a question."""
        all_terms = self.terms(text)
        return Counter({term: n for term, n in all_terms.items() if term not in self._common}) or all_terms


def _cut_unspaced(word: str, stem: Any) -> list[str]:
    out: list[str] = []
    at = 0
    for run in _UNSPACED.finditer(word):
        if run.start() > at:
            out.append(stem(word[at : run.start()][:_LONGEST]))
        characters = run.group()
        out += characters
        out += map("".join, pairwise(characters))
        at = run.end()
    if at < len(word):
        out.append(stem(word[at:][:_LONGEST]))
    return out


@cache
def _make_word_pattern() -> re.Pattern[str]:
    """Return the pattern of a word: letters and digits, and the marks that belong to letters, which ``\\w``
    leaves out."""
    marks = [n for n in range(0x300, min(sys.maxunicode, 0x1FFFF)) if unicodedata.category(chr(n))[0] == "M"]
    ranges: list[list[int]] = []
    for mark in marks:
        if ranges and mark == ranges[-1][1] + 1:
            ranges[-1][1] = mark
        else:
            ranges.append([mark, mark])
    mark_ranges = "".join(f"{chr(first)}-{chr(last)}" for first, last in ranges)
    return re.compile(f"[^\\W_](?:[^\\W_]|[{mark_ranges}])*")
