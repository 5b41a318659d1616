"""Contract of searches by a query: the order of the stock store, on every backend and in every process."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Any
from zlib import crc32

from langgraph.store.base import Op, PutOp
from langgraph.store.memory import InMemoryStore

from perdure.errors import BadEmbedding, ReindexRequired
from perdure.langgraph.search.index import SearchIndex
from perdure.model.ops import Commit, Put
from perdure.model.program import Effect
from perdure.model.records import DOCUMENT, ITEM
from perdure.testing.conformance.backend import Backend, expect_refusal
from perdure.testing.conformance.store_operations import HOME, keys
from perdure.testing.faults import FaultyDriver

DIMS = 16
WORDS = "ada likes tea coffee rain mountains trains music chess bread winter garden".split()


def embed(texts: Sequence[str]) -> list[list[float]]:
    """Return a vector for each text, the same in every process: counts of its pairs of letters."""
    return [_vector(text.lower()) for text in texts]


def _vector(text: str) -> list[float]:
    vector = [0.01] * DIMS
    for pair in pairwise(text):
        vector[crc32("".join(pair).encode()) % DIMS] += 1
    return vector


def new_index(**settings: Any) -> SearchIndex:
    """Return an index as a new process has it, with nothing read yet."""
    return SearchIndex({"dims": DIMS, "embed": embed, "fields": ["text"], "name": "pairs", **settings})


def new_text_index(**settings: Any) -> SearchIndex:
    """Return an index of words alone, with nothing read yet."""
    return SearchIndex({"text": True, "fields": ["text"], **settings})


HOSTILE = (
    '"', "'; DROP TABLE items; --", "tea*", "NEAR(tea, 2)", "text:tea", "-tea", "(tea", "tea AND", "%", "_",
    "\0", "😀", "\u200b", "茶", "tea " * 20_000, "x" * 100_000, "$where", "\\", "&|!:*<->", "{}",
)  # fmt: skip
"""Queries that have a special meaning in the search of some database, or that are unusual text."""


class Meaning:
    """Contract of ``search(query=…)`` in a store with an index."""

    def test_results_are_those_of_the_stock_store(self, backend: Backend) -> None:
        chance = random.Random(1)
        stock = InMemoryStore(index={"dims": DIMS, "embed": embed, "fields": ["text"]})
        writers = [backend.store(index=new_index()) for _ in range(2)]
        reader = backend.store(index=new_index())
        namespaces = [("users", "ada"), ("users", "bob"), ("users", "ada", "old"), ("other",)]
        for _ in range(12):
            ops: list[Op] = []
            for _ in range(chance.randrange(1, 6)):
                place, key = chance.choice(namespaces), f"k{chance.randrange(5)}"
                text = " ".join(chance.choices(WORDS, k=4))
                value = {"text": text, "n": chance.randrange(3), "x": text[::-1]}
                chosen: Any = chance.choice([None, None, None, False, ["x"], ["text", "x"]])
                deleted = chance.random() < 0.2
                ops.append(PutOp(place, key, None) if deleted else PutOp(place, key, value, chosen))
            last = {(op.namespace, op.key): op for op in ops if isinstance(op, PutOp)}
            # The stock store keeps the vectors of paths that a later put leaves out.
            stock.batch([PutOp(namespace, key, None) for namespace, key in last])
            stock.batch(last.values())
            chance.choice(writers).batch(ops)
            query = " ".join(chance.choices(WORDS, k=2))
            prefix = chance.choice([(), ("users",), ("users", "ada"), ("absent",)])
            for given in (None, {"n": 1}):
                expected = stock.search(prefix, query=query, filter=given, limit=99)
                scored = [(e.score, e.namespace, e.key) for e in expected if e.score is not None]
                found = reader.search(prefix, query=query, filter=given, limit=99)
                assert _round_scores([(f.score, f.namespace, f.key) for f in found]) == _round_scores(scored)
                page = reader.search(prefix, query=query, filter=given, limit=2, offset=1)
                best = sorted((round(score or 0, 4) for score, *_ in scored), reverse=True)
                assert [round(f.score or 0, 4) for f in page] == best[1:3]

    def test_an_item_and_its_vectors_are_one_commit(self, backend: Backend) -> None:
        both: list[bool] = []

        def watch(_: int, effect: Effect[Any]) -> None:
            if isinstance(effect, Commit):
                kinds = [op.kind for op in effect.ops if isinstance(op, Put)]
                both.append(kinds.count(ITEM) <= kinds.count(DOCUMENT) - 1)

        store = backend.store(index=new_index(), wrap=lambda d: FaultyDriver(d, on_effect=watch))
        store.batch([PutOp(HOME, f"k{n}", {"text": "tea"}) for n in range(3)])
        assert both
        assert all(both)

    def test_a_value_written_without_an_index_is_not_found_by_its_old_text(self, backend: Backend) -> None:
        store = backend.store(index=new_index())
        store.put(HOME, "old", {"text": "tea"})
        store.put(HOME, "same", {"text": "tea"})
        assert sorted(keys(store.search(HOME, query="tea"))) == ["old", "same"]
        backend.store().put(HOME, "old", {"text": "coffee"})
        backend.store().put(HOME, "same", {"text": "tea"})
        assert keys(store.search(HOME, query="tea")) == ["same"]

    def test_nothing_of_a_deleted_item_stays(self, backend: Backend) -> None:
        store = backend.store(index=new_index())
        store.put(HOME, "a", {"text": "tea"})
        backend.store().delete(HOME, "a")
        assert store.search(HOME, query="tea") == []
        store.put(HOME, "b", {"text": "tea"})
        assert keys(backend.store(index=new_index()).search(HOME, query="tea")) == ["b"]

    def test_an_expired_item_is_not_found_and_reading_postpones_expiry(self, backend: Backend) -> None:
        now = 1_000_000_000
        store = backend.store(index=new_index(), clock=lambda: now, ttl={"refresh_on_read": True})
        store.put(HOME, "a", {"text": "tea"}, ttl=1)
        store.put(HOME, "b", {"text": "tea"}, ttl=1)
        now += 40_000_000
        assert keys(store.search(HOME, query="tea", limit=1)) == ["a"]
        now += 40_000_000
        assert keys(store.search(HOME, query="tea")) == ["a"]

    def test_tenants_do_not_find_each_other_s(self, backend: Backend) -> None:
        shared = new_index()
        backend.store(index=shared, tenant="one").put(HOME, "a", {"text": "tea"})
        assert backend.store(index=shared, tenant="two").search((), query="tea") == []

    def test_what_cannot_be_embedded_is_not_stored(self, backend: Backend) -> None:
        def short(texts: Sequence[str]) -> list[list[float]]:
            return [[1.0] for _ in texts]

        store = backend.store(index=new_index(embed=short))
        advice = expect_refusal(BadEmbedding, lambda: store.put(HOME, "a", {"text": "tea"}))
        assert "dims=16" in str(advice)
        assert backend.store().get(HOME, "a") is None

    def test_vectors_of_another_model_are_not_compared(self, backend: Backend) -> None:
        backend.store(index=new_index()).put(HOME, "a", {"text": "tea"})
        other = backend.store(index=new_index(name="other"))
        advice = expect_refusal(ReindexRequired, lambda: other.search(HOME, query="tea"))
        assert "store reindex" in str(advice)
        other.put(HOME, "a", {"text": "tea"})
        assert keys(other.search(HOME, query="tea")) == ["a"]

    def test_words_are_found_without_a_model(self, backend: Backend) -> None:
        store = backend.store(index=new_text_index())
        store.put(HOME, "drink", {"text": "Ada likes drinking green tea"})
        store.put(HOME, "way", {"text": "Ada walks to work"})
        store.put(HOME, "out", {"text": "tea"}, index=False)
        store.put(HOME, "other", {"text": "bread", "note": "tea"}, index=["note"])
        for reader in (store, backend.store(index=new_text_index())):
            assert keys(reader.search(HOME, query="teas, drinks?")) == ["drink", "other"]
            assert keys(reader.search(HOME, query="ADA", filter={"text": "Ada walks to work"})) == ["way"]
            assert keys(reader.search(HOME, query="bread")) == []
            assert all(0 < (item.score or 0) <= 1 for item in reader.search(HOME, query="ada tea"))
        store.put(HOME, "drink", {"text": "Ada likes coffee"})
        store.delete(HOME, "other")
        assert keys(store.search(HOME, query="tea")) == []
        assert keys(backend.store(index=new_text_index()).search(HOME, query="coffee")) == ["drink"]

    def test_a_query_is_text_without_syntax(self, backend: Backend) -> None:
        store = backend.store(index=new_text_index())
        store.put(HOME, "a", {"text": 'tea "AND" {"near": 1}'})
        for query in HOSTILE:
            assert keys(store.search(HOME, query=query)) in ([], ["a"]), query
        assert keys(store.search(HOME, query='"tea" OR NEAR(*')) == ["a"]
        assert keys(store.search(HOME, query="")) == ["a"]

    def test_words_and_vectors_are_compared_together(self, backend: Backend) -> None:
        both = new_index(text=True, vector_weight=0.3)
        store = backend.store(index=both)
        store.put(HOME, "a", {"text": "tea with milk"})
        store.put(HOME, "b", {"text": "teapots, wholemeal"})
        words, vectors = (
            {item.key: item.score or 0 for item in backend.store(index=index).search(HOME, query="tea")}
            for index in (new_text_index(), new_index())
        )
        found = {item.key: item.score or 0 for item in store.search(HOME, query="tea")}
        assert vectors["a"] != vectors["b"]
        nearest = max(vectors, key=lambda key: vectors[key])
        expected = {key: 0.3 * (key == nearest) + 0.7 * words.get(key, 0) for key in "ab"}
        assert all(abs(found[key] - expected[key]) < 1e-5 for key in expected)
        assert "b" not in words

    def test_entries_without_a_model_are_not_compared_by_vectors(self, backend: Backend) -> None:
        backend.store(index=new_text_index()).put(HOME, "a", {"text": "tea"})
        expect_refusal(ReindexRequired, lambda: backend.store(index=new_index()).search(HOME, query="tea"))
        backend.store(index=new_index()).put(HOME, "a", {"text": "tea"})
        assert keys(backend.store(index=new_text_index()).search(HOME, query="tea")) == ["a"]


def _round_scores(found: Sequence[tuple[float | None, tuple[str, ...], str]]) -> list[Any]:
    """Return results with rounded scores, sorted so that the order of equal scores does not matter."""
    return sorted((-round(score or 0, 4), namespace, key) for score, namespace, key in found)
