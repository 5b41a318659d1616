"""Other distances than the cosine, beside LangGraph's own store on PostgreSQL and a model of them."""

from __future__ import annotations

import math
import random
from typing import Any

import psycopg
import pytest
from langgraph.store.base import PutOp
from langgraph.store.postgres import PostgresStore

import perdure
from perdure.langgraph.search.index import SearchIndex
from perdure.testing.conformance.backend import Backend
from tests.backends import BACKENDS, fresh
from tests.servers import postgres

HOME = ("users", "ada")
DIMS = 5
DISTANCES = ("cosine", "l2", "inner_product")
Numbers = list[float]


def embed(texts: list[str]) -> list[Numbers]:
    """Vectors of very different lengths, so that the distances differ in the order of the items."""
    return [vector(text) for text in texts]


def vector(text: str) -> Numbers:
    chance = random.Random(text)
    length = chance.choice([0.1, 1.0, 30.0])
    return [length * chance.uniform(-1, 1) for _ in range(DIMS)]


def score(distance: str, one: Numbers, other: Numbers) -> float:
    product = math.fsum(a * b for a, b in zip(one, other, strict=True))
    if distance == "l2":
        return -math.dist(one, other)
    if distance == "inner_product":
        return product
    return product / (math.hypot(*one) * math.hypot(*other))


def config(distance: str, **more: Any) -> Any:
    return {"dims": DIMS, "embed": embed, "fields": ["text"], "distance_type": distance, **more}


VALUES = [{"text": f"text {number}", "n": number % 3} for number in range(40)]


def found(store: Any, query: str, **asked: Any) -> list[tuple[str, float]]:
    return [(item.key, item.score) for item in store.search(HOME, query=query, **{"limit": 50, **asked})]


@pytest.mark.parametrize("distance", DISTANCES)
def test_the_order_and_the_scores_are_those_of_the_stock_store(distance: str) -> None:
    with postgres.empty() as url:
        plain, _, schema = url.partition("?schema=")
        with psycopg.connect(plain, autocommit=True) as connection:
            connection.execute(f"SET search_path = {schema.partition('&')[0]}, public".encode())
        with (
            PostgresStore.from_conn_string(
                f"{plain}?options=-csearch_path%3D{schema.partition('&')[0]},public", index=config(distance)
            ) as stock,
            perdure.connect_sync("memory://") as db,
        ):
            stock.setup()
            store = db.store(index=config(distance))
            puts = [PutOp(HOME, str(number), value) for number, value in enumerate(VALUES)]
            stock.batch(puts)
            store.batch(puts)
            for query in ("one", "two", "text 7"):
                for asked in ({}, {"limit": 7, "offset": 3}, {"filter": {"n": 1}}):
                    ours, theirs = found(store, query, **asked), found(stock, query, **asked)
                    assert [key for key, _ in ours] == [key for key, _ in theirs]
                    assert [s for _, s in ours] == pytest.approx([s for _, s in theirs], rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize("on", list(BACKENDS))
def test_items_are_in_the_order_of_the_distance(on: str, distance: str) -> None:
    with fresh(on) as driver:
        store = Backend(driver).store(index=SearchIndex(config(distance)))
        for number, value in enumerate(VALUES):
            store.put(HOME, str(number), value)
        store.put(
            HOME, "several", {"text": "far", "notes": ["text 1", "nearest"]}, index=["text", "notes[*]"]
        )
        store.delete(HOME, "3")
        store.put(HOME, "4", {"text": "changed"})
        known: dict[str, list[str]] = {str(n): [str(value["text"])] for n, value in enumerate(VALUES)}
        known |= {"several": ["far", "text 1", "nearest"], "4": ["changed"]}
        del known["3"]
        for query in ("nearest", "changed", "another"):
            best = {
                key: max(score(distance, vector(query), vector(text)) for text in texts)
                for key, texts in known.items()
            }
            ours = found(store, query)
            assert [key for key, _ in ours] == sorted(best, key=lambda key: -best[key])
            assert [s for _, s in ours] == pytest.approx([best[key] for key, _ in ours], rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("distance", DISTANCES)
def test_another_distance_needs_no_new_vectors_and_goes_with_words(distance: str) -> None:
    with perdure.connect_sync("memory://") as db:
        db.store(index=config("cosine")).put(HOME, "k", {"text": "tea"})
        (item,) = db.store(index=config(distance)).search(HOME, query="coffee")
        assert item.score == pytest.approx(score(distance, vector("coffee"), vector("tea")), rel=1e-4)
        both = db.store(index=config(distance, text=True, vector_weight=0.5))
        both.put(HOME, "other", {"text": "something else"})
        scores = [score for _, score in found(both, "tea")]
        assert scores == sorted(scores, reverse=True)
        assert all(0 <= each <= 1 for each in scores)


@pytest.mark.parametrize(
    "harmless",
    [
        {"ann_index_config": {"kind": "hnsw", "m": 16, "ef_construction": 64}},
        {"ann_index_config": {"kind": "ivfflat", "nlist": 100, "vector_type": "halfvec"}},
        {"ann_index_config": {"kind": "flat", "vector_type": "vector"}},
        {"ann_index_config": {}},
        {"vector_type": "halfvec"},
        {"vector_type": "vector", "distance_type": "l2"},
    ],
    ids=str,
)
def test_a_setting_that_only_makes_the_stock_store_fast_is_accepted(harmless: Any) -> None:
    with perdure.connect_sync("memory://") as db:
        given: Any = {"dims": DIMS, "embed": embed, **harmless}
        store = db.store(index=given)
        store.put(HOME, "k", {"text": "tea"})
        assert [key for key, _ in found(store, "coffee")] == ["k"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"distance_type": "hamming"}, "distance_type of cosine, l2, inner_product, not 'hamming'"),
        ({"distance_type": None}, "distance_type of .* not None"),
        ({"distance_type": ["l2"]}, r"distance_type of .* not \['l2'\]"),
        ({"vector_type": "bit"}, "vector_type of vector or halfvec, not 'bit'"),
        (
            {"ann_index_config": {"vector_type": "bit"}},
            r"ann_index_config\['vector_type'\] of vector or halfvec",
        ),
        ({"ann_index_config": {"kind": "scann"}}, r"ann_index_config\['kind'\] of hnsw, ivfflat or flat"),
        ({"ann_index_config": {"lists": 5}}, r"no setting ann_index_config\['lists'\]"),
        ({"ann_index_config": {"m": "16"}}, r"ann_index_config\['m'\] of at least 1, not '16'"),
        ({"ann_index_config": {"nlist": 0}}, r"ann_index_config\['nlist'\] of at least 1, not 0"),
        ({"ann_index_config": "hnsw"}, "ann_index_config as a dict, not 'hnsw'"),
        ({"embed": None, "text": True, "distance_type": "l2"}, "distance_type and no embed"),
        ({"distance": "l2"}, "no setting 'distance'"),
    ],
)
def test_a_setting_with_another_meaning_is_refused_by_name(wrong: Any, message: str) -> None:
    given: Any = {"dims": DIMS, "embed": embed, **wrong}
    if given["embed"] is None:
        del given["dims"]
    with perdure.connect_sync("memory://") as db, pytest.raises(ValueError, match=message):
        db.store(index=given)
