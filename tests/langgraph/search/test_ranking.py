"""Order of items by words, vectors, or both, against a plain computation of the same formulas."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from perdure.langgraph.search.cache import IndexUpdate, NamespaceIndex
from perdure.langgraph.search.ranking import RankedQuery, rank
from perdure.langgraph.search.segments import IndexedItem
from perdure.model.records import STORE, Partition

DIMS = 4
WORDS = "tea coffee rain train music chess bread winter garden river".split()


class Model:
    """Namespaces as plain dicts, and the indexes that were made of the same changes."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.items: dict[Partition, dict[str, IndexedItem]] = {}
        self.found: dict[Partition, NamespaceIndex] = {}
        self.number = 0

    def change(self) -> None:
        chance = self.chance
        partition = Partition("", f"n{chance.randrange(3)}", STORE)
        held = self.items.setdefault(partition, {})
        written = [self.item(f"k{chance.randrange(40)}") for _ in range(chance.randrange(1, 12))]
        written = list({item.key: item for item in written}.values())
        removed = [key for key in held if chance.random() < 0.1 and key not in {w.key for w in written}]
        self.number += 1
        versions = {item.key: self.number for item in written}
        shown = [item for item in written if item.vectors or item.terms]
        update = IndexUpdate(self.number, versions, removed, shown, ())
        self.found[partition] = self.found.get(partition, NamespaceIndex()).apply(update, DIMS)
        for key in removed:
            del held[key]
        held |= {item.key: item for item in written}

    def item(self, key: str) -> IndexedItem:
        chance = self.chance
        vectors = tuple(
            np.array([chance.uniform(-1, 1) for _ in range(DIMS)], dtype="<f4").tobytes()
            for _ in range(chance.randrange(3))
        )
        terms = Counter(chance.choices(WORDS, k=chance.randrange(6)))
        return IndexedItem(key, f"{key}{chance.random()}".encode(), vectors, terms)

    def expected(self, query: RankedQuery) -> dict[tuple[Partition, str], float]:
        every = {(p, key): item for p, held in self.items.items() for key, item in held.items()}
        words = bm25({place: item.terms for place, item in every.items()}, query.terms or {})
        out: dict[tuple[Partition, str], float] = {}
        cosines: dict[tuple[Partition, str], float] = {}
        for place, item in every.items():
            if query.vector is not None and item.vectors:
                cosines[place] = max(cosine(np.frombuffer(v, "<f4"), query.vector) for v in item.vectors)
        least, greatest = (min(cosines.values()), max(cosines.values())) if cosines else (0, 0)
        for place in every:
            nearest = cosines.get(place)
            if query.terms is None:
                score = nearest
            elif query.vector is None:
                score = words[place] or None
            else:
                share = query.vector_weight
                spread = 0.0 if nearest is None else (nearest - least) / ((greatest - least) or 1)
                both = share * spread + (1 - share) * words[place]
                score = None if nearest is None and not words[place] else both
            if score is not None:
                out[place] = score
        return out


def cosine(one: np.ndarray, other: np.ndarray) -> float:
    return float(one @ other / (np.linalg.norm(one) * np.linalg.norm(other)))


def bm25(texts: Mapping[Any, Mapping[str, int]], query: Mapping[str, int]) -> dict[Any, float]:
    lengths = {place: sum(terms.values()) for place, terms in texts.items()}
    items = sum(length > 0 for length in lengths.values())
    average = sum(lengths.values()) / items if items else 1
    most, scores = 0.0, dict.fromkeys(texts, 0.0)
    for term, times in query.items():
        number = sum(term in terms for terms in texts.values())
        weight = times * math.log(1 + (items - number + 0.5) / (number + 0.5))
        most += weight * 2.2
        for place, terms in texts.items():
            if count := terms.get(term, 0):
                norm = 1.2 * (0.25 + 0.75 * lengths[place] / average)
                scores[place] += weight * 2.2 * count / (count + norm)
    return {place: score / most if most else 0.0 for place, score in scores.items()}


@pytest.mark.parametrize("seed", range(3))
def test_scores_are_those_of_the_formulas_after_any_changes(seed: int) -> None:
    model = Model(random.Random(seed))
    for _ in range(60):
        model.change()
        terms = Counter(model.chance.choices([*WORDS, "absent"], k=3))
        vector = np.array([model.chance.uniform(-1, 1) for _ in range(DIMS)], dtype=np.float32)
        for query in (RankedQuery(vector, None), RankedQuery(None, terms), RankedQuery(vector, terms, 0.3)):
            expected = model.expected(query)
            found = list(rank(model.found, query, 3))
            assert {(c.partition, c.key): c.score for c in found} == pytest.approx(expected, abs=1e-5)
            assert len(found) == len(expected)
            scores = [c.score for c in found]
            assert scores == sorted(scores, reverse=True)
            assert all(c.content == model.items[c.partition][c.key].content for c in found)


def test_changes_are_held_in_few_parts() -> None:
    chance = random.Random(5)
    model, index = Model(chance), NamespaceIndex()
    for number in range(1, 400):
        item = model.item(f"k{chance.randrange(300)}")
        index = index.apply(IndexUpdate(number, {item.key: number}, (), [item], ()), DIMS)
        assert len(index.parts) <= 10
        assert all(2 * part.living_count >= len(part.segment.keys) for part in index.parts)
    assert index.size < 400 * 1000


def test_a_score_of_words_does_not_depend_on_the_number_of_matches() -> None:
    items = [IndexedItem(f"k{n}", b"", (), Counter(["tea", f"w{n}"])) for n in range(50)]
    index = NamespaceIndex().apply(IndexUpdate(1, {}, (), items, ()), 0)
    place = Partition("", "n", STORE)
    (whole,) = [c for c in rank({place: index}, RankedQuery(None, Counter(["w7"])), 1) if c.key == "k7"]
    (half,) = [c for c in rank({place: index}, RankedQuery(None, Counter(["w7", "x"])), 1) if c.key == "k7"]
    assert 0 < half.score < whole.score <= 1


def test_nothing_is_found_in_nothing() -> None:
    assert list(rank({}, RankedQuery(None, Counter(["tea"])), 1)) == []
    place = Partition("", "n", STORE)
    assert list(rank({place: NamespaceIndex()}, RankedQuery(None, Counter(["tea"])), 1)) == []


def test_words_that_no_item_has_any_more_are_forgotten() -> None:
    found = NamespaceIndex()
    for number in range(200):
        terms = {f"word{number}": 1, f"again{number}": 2}
        item = IndexedItem(f"k{number % 4}", b"", (), terms)
        found = found.apply(IndexUpdate(number, {item.key: number}, (), (item,), ()), DIMS)
    held = [term for part in found.parts for term in part.segment.vocabulary]
    assert {"word199", "again196"} <= set(held)
    assert len(held) <= 4 * 4, "two terms of each of four items, and at most as many of replaced ones"
