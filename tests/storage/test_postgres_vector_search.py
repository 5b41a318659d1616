"""Searches through pgvector: the same results as in the process, exactly or through HNSW."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import psycopg
import pytest
from langgraph.store.base import PutOp
from langgraph.store.postgres import PostgresStore

import perdure
from perdure.database.base import handle_of
from perdure.database.blocking import SyncDatabase
from perdure.engine.items.nearest_items import find_nearest_stored
from perdure.langgraph.search.index import SearchIndex
from perdure.langgraph.store import PerdureStore
from perdure.model.ops import FindNearest
from perdure.model.program import Effect
from perdure.storage.port import run
from perdure.storage.postgres import vector_search
from perdure.testing.faults import FaultyDriver
from tests.servers import postgres

DIMS = 64
TOPICS = np.random.default_rng(7).normal(size=(24, DIMS))


def embed(texts: Sequence[str]) -> list[list[float]]:
    """Vectors near those of a few topics, as those of a language are; the same for the same text."""
    out = []
    for text in texts:
        chance = np.random.default_rng(int(text))
        out.append((chance.normal(size=24) @ TOPICS + 0.5 * chance.normal(size=DIMS)).tolist())
    return out


def new_index(**settings: Any) -> SearchIndex:
    return SearchIndex({"dims": DIMS, "embed": embed, "fields": ["text"], "name": "topics", **settings})


def fill(store: Any, count: int, home: Sequence[str] = ("users",)) -> None:
    for at in range(0, count, 500):
        numbers = range(at, min(count, at + 500))
        store.batch([PutOp((*home, f"u{n % 5}"), f"k{n}", {"text": str(n), "n": n % 3}) for n in numbers])


@contextmanager
def opened(index: SearchIndex, count: int) -> Iterator[SyncDatabase]:
    with postgres.empty() as url, perdure.connect_sync(url, migrate=True) as database:
        fill(database.store(index=index), count)
        yield database


def recall(expected: Sequence[Any], found: Sequence[Any]) -> float:
    return len({hit.key for hit in expected} & {hit.key for hit in found}) / len(expected)


def test_exact_results_are_those_of_the_process() -> None:
    chance = Random(3)
    index = new_index()
    with opened(index, 300) as database, perdure.connect_sync("memory://", migrate=True) as other:
        store, within = database.store(index=index), other.store(index=new_index())
        assert index.is_stored_in(handle_of(database).driver)
        fill(within, 300)
        for number in range(12):
            query = str(10_000 + number)
            prefix = chance.choice([(), ("users",), ("users", "u1"), ("user",)])
            given = chance.choice([None, {"n": 1}, {"n": {"$gte": 1}}])
            limit, offset = chance.choice([1, 7, 250]), chance.choice([0, 3, 400])
            expected = within.search(prefix, query=query, filter=given, limit=limit, offset=offset)
            found = store.search(prefix, query=query, filter=given, limit=limit, offset=offset)
            assert [(hit.namespace, hit.key) for hit in found] == [(h.namespace, h.key) for h in expected]
            assert [hit.score for hit in found] == pytest.approx([h.score for h in expected], abs=1e-5)


def test_a_zero_vector_is_found_with_the_score_of_nothing_in_common() -> None:
    def some(texts: Sequence[str]) -> list[list[float]]:
        return [{"zero": [0.0, 0.0], "same": [1.0, 0.0], "other": [-1.0, 0.0]}[text] for text in texts]

    index = SearchIndex({"dims": 2, "embed": some, "fields": ["text"], "name": "some"})
    with postgres.empty() as url, perdure.connect_sync(url, migrate=True) as database:
        store = database.store(index=index)
        index.prepare(handle_of(database).driver)
        for text in ("zero", "same", "other"):
            store.put(("a",), text, {"text": text})
        assert [(h.key, h.score) for h in store.search((), query="same")] == [
            ("same", 1.0),
            ("zero", 0.0),
            ("other", -1.0),
        ]
        assert [h.key for h in store.search((), query="zero")] == ["other", "same", "zero"]


def test_a_few_among_many_are_all_found_through_hnsw(monkeypatch: pytest.MonkeyPatch) -> None:
    """Namespaces and filters leave few of what the index finds first."""
    monkeypatch.setattr(vector_search, "EXACT_MOST", 0)
    index = new_index()
    with opened(index, 600) as database:
        store = database.store(index=index)
        store.put(("lone",), "one", {"text": "1", "n": 7})
        driver = handle_of(database).driver
        assert "reindex" in index.method(driver)
        assert index.prepare(driver) == 0
        assert "HNSW" in index.method(driver)
        with_a_tenant = database.store(tenant="other", index=index)
        assert with_a_tenant.search((), query="3") == []
        assert [hit.key for hit in store.search(("lone",), query="9999")] == ["one"]
        assert [hit.key for hit in store.search((), query="9999", filter={"n": 7})] == ["one"]
        assert len(store.search(("users",), query="3", limit=1000)) == 600


def test_hnsw_is_walked_before_the_table_was_ever_analysed() -> None:
    """Without statistics the planner would rather sort all vectors."""
    index = new_index()
    with postgres.empty() as url, psycopg.connect(postgres.shared().url(), autocommit=True) as admin:
        schema = parse_qs(urlsplit(url).query)["schema"][0]
        with perdure.connect_sync(url, migrate=True) as database:
            admin.execute(f"ALTER TABLE {schema}.vector SET (autovacuum_enabled = off)".encode())
            store = database.store(index=index)
            fill(store, 2 * vector_search.EXACT_MOST)
            index.prepare(handle_of(database).driver)
            for query in range(10):
                store.search(("users",), query=str(9_000 + query))
        seen: Any = None
        deadline = time.monotonic() + 60
        # A closed connection reports what it did, a moment later.
        while (seen is None or seen[1] < 10) and time.monotonic() < deadline:
            seen = admin.execute(
                "SELECT c.reltuples, s.idx_scan FROM pg_class c JOIN pg_stat_user_indexes s"
                " ON s.relid = c.oid WHERE s.schemaname = %s AND s.indexrelname = %s",
                (schema, f"vector_hnsw_{DIMS}"),
            ).fetchone()
    assert seen == (-1, 10)


def test_all_of_a_small_table_are_found_by_one_request() -> None:
    asked: list[FindNearest] = []

    def watch(_: int, effect: Effect[Any]) -> None:
        if isinstance(effect, FindNearest):
            asked.append(effect)

    index = new_index()
    with opened(index, 30) as database:
        driver = FaultyDriver(handle_of(database).driver, on_effect=watch)
        query = np.asarray(embed(["5"])[0], dtype="<f4").tobytes()
        find = FindNearest("", "", 0, query, tuple(index._marks.values()))
        program = find_nearest_stored(find, lambda _, r: r.body, offset=0, limit=40, everything=True)
        assert len(run(program, driver)) == 30
    assert [each.exact for each in asked] == [False]


def test_namespaces_that_the_index_passes_over_are_asked_for_once_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The vectors nearest to the query are others', more than the walk through HNSW passes."""

    def two(texts: Sequence[str]) -> list[list[float]]:
        angles = [float(text) for text in texts]
        return [[math.cos(angle), math.sin(angle)] for angle in angles]

    asked: list[FindNearest] = []

    def watch(_: int, effect: Effect[Any]) -> None:
        if isinstance(effect, FindNearest):
            asked.append(effect)

    monkeypatch.setattr(vector_search, "EXACT_MOST", 0)
    monkeypatch.setenv("PGOPTIONS", "-c hnsw.max_scan_tuples=1")
    index = SearchIndex({"dims": 2, "embed": two, "fields": ["text"], "name": "two"})
    with opened(index, 0) as database:
        driver = handle_of(database).driver
        store = PerdureStore(FaultyDriver(driver, on_effect=watch), index=index)
        near = [PutOp(("others",), f"k{n}", {"text": str(n / 10_000)}) for n in range(800)]
        far = [PutOp(("own",), f"k{n:03}", {"text": str(1 + n / 10_000)}) for n in range(300)]
        store.batch([*near, *far])
        index.prepare(driver)
        found = store.search(("own",), query="0", limit=5)
    assert [hit.key for hit in found] == [f"k{n:03}" for n in range(5)]
    assert [each.exact for each in asked] == [False, True]


@pytest.mark.slow
def test_recall_through_hnsw_beside_the_stock_store() -> None:
    count, queries = 10_000, 40
    index = new_index()
    with opened(index, count) as database:
        store, driver = database.store(index=index), handle_of(database).driver
        exact = [store.search(("users",), query=str(90_000 + n), limit=10) for n in range(queries)]
        index.prepare(driver)
        found = [store.search(("users",), query=str(90_000 + n), limit=10) for n in range(queries)]
        ours = sum(map(recall, exact, found)) / queries
        home = postgres.shared().url()
        with psycopg.connect(home, autocommit=True) as admin:
            admin.execute("CREATE DATABASE stock_vectors")
        try:
            url = postgres.shared().url("stock_vectors")
            with PostgresStore.from_conn_string(
                url, index={"dims": DIMS, "embed": embed, "fields": ["text"]}
            ) as stock:
                stock.setup()
                fill(stock, count)
                theirs = [stock.search(("users",), query=str(90_000 + n), limit=10) for n in range(queries)]
        finally:
            with psycopg.connect(home, autocommit=True) as admin:
                admin.execute("DROP DATABASE stock_vectors WITH (FORCE)")
    stock_recall = sum(map(recall, exact, theirs)) / queries
    assert ours >= 0.95
    assert ours >= stock_recall - 0.02
    print(f"recall@10: {ours:.3f}, stock {stock_recall:.3f}")
