"""The configuration of an index, the embedding of texts, and what a search by meaning reads."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest
from langchain_core.embeddings import DeterministicFakeEmbedding
from langgraph.store.base import PutOp, SearchItem, SearchOp
from langgraph.store.memory import InMemoryStore

import perdure
from perdure.database.base import handle_of
from perdure.engine.items import search_index
from perdure.errors import ReindexRequired, TooLarge
from perdure.langgraph.search import index as module
from perdure.langgraph.search.cache import MOST_BYTES, IndexCache
from perdure.langgraph.search.index import VECTOR_WEIGHT, SearchIndex
from perdure.langgraph.search.reindex import Reindexed, reindex
from perdure.langgraph.store import Clock, PerdureStore
from perdure.model.ops import Commit, Committed, Delete, Fetch
from perdure.model.program import Effect
from perdure.model.records import ITEM
from perdure.model.store_items import partition_of
from perdure.storage.memory import MemoryDriver
from perdure.storage.port import WrappingDriver, run
from perdure.storage.read_only import ReadOnlyDriver
from perdure.testing.conformance import Backend
from perdure.testing.conformance.meaning import embed, new_index
from perdure.testing.faults import FaultyDriver

HOME = ("users", "ada")
R = TypeVar("R")


@pytest.fixture
def backend() -> Backend:
    return Backend(MemoryDriver())


@pytest.mark.parametrize(
    ("config", "advice"),
    [
        ({"embed": embed}, "dims"),
        ({"dims": 0, "embed": embed}, "dims"),
        ({"dims": True, "embed": embed}, "dims"),
        ({"dims": 3}, "embed"),
        ({"dims": 3, "embed": embed, "distance_type": "hamming"}, "distance_type"),
        ({}, "text=True"),
        ({"text": "yes"}, "text=True"),
        ({"text": True, "dims": 3}, "dims"),
        ({"text": True, "vector_weight": 0.5}, "vector_weight"),
        ({"text": True, "language": "klingon"}, "klingon"),
        ({"dims": 3, "embed": embed, "language": "english"}, "language"),
        ({"dims": 3, "embed": embed, "text": True, "vector_weight": 2}, "from 0 to 1"),
        ({"dims": 3, "embed": "nowhere:model"}, "nowhere:model"),
    ],
)
def test_a_configuration_that_cannot_work_is_refused(config: Any, advice: str) -> None:
    with pytest.raises(ValueError, match=advice):
        SearchIndex(config)


def test_a_single_field_is_no_list_of_its_letters() -> None:
    with pytest.raises(TypeError, match="fields"):
        SearchIndex({"dims": 3, "embed": embed, "fields": "text"})


def test_texts_are_found_at_paths() -> None:
    index = new_index(fields=["text", "notes[*].body"])
    value = {"text": "tea", "notes": [{"body": "a"}, {"body": ""}, {"body": "tea"}], "n": 1}
    assert index.texts(value, None) == ["tea", "a"]
    assert index.texts(value, ["n"]) == ["1"]
    assert index.texts(value, ()) == []
    assert new_index(fields=None).texts({"b": 1, "a": "é"}, None) == ['{"a": "é", "b": 1}']


def test_a_model_has_a_name_of_its_own() -> None:
    fake = DeterministicFakeEmbedding(size=16)
    names = [
        SearchIndex({"dims": 16, "embed": embed}).name,
        SearchIndex({"dims": 16, "embed": fake}).name,
        SearchIndex({"dims": 16, "embed": embed, "name": "mine"}).name,
    ]
    assert names[0] == "perdure.testing.conformance.meaning.embed"
    assert names[1].endswith("DeterministicFakeEmbedding")
    assert names[2] == "mine"
    marks = {SearchIndex({"dims": d, "embed": embed, "name": "mine"}).mark(()) for d in (16, 17)}
    assert len(marks) == 2


def test_awaited_calls_of_one_turn_are_embedded_together(backend: Backend) -> None:
    asked: list[int] = []

    async def slow(texts: Sequence[str]) -> list[list[float]]:
        asked.append(len(texts))
        await asyncio.sleep(0)
        return embed(texts)

    store = backend.store(index=new_index(embed=slow))

    async def work() -> str:
        await asyncio.gather(*(store.aput(HOME, f"k{n}", {"text": f"tea {n}"}) for n in range(20)))
        (found,) = await store.asearch(HOME, query="tea 7", limit=1)
        return found.key

    assert asyncio.run(work()) == "k7"
    assert asked == [20, 1]


def test_a_search_of_known_vectors_reads_the_generation_and_the_page(backend: Backend) -> None:
    reads: list[int] = []

    def watch(_: int, effect: Effect[Any]) -> None:
        if isinstance(effect, Fetch):
            reads.append(len(effect.items))

    store = backend.store(index=new_index(), wrap=lambda driver: FaultyDriver(driver, on_effect=watch))
    for n in range(300):
        store.put(HOME, f"k{n}", {"text": f"tea {n}"})
    store.search(HOME, query="tea", limit=3)
    reads.clear()
    assert len(store.search(HOME, query="coffee", limit=3)) == 3
    assert reads[0] == 1
    assert sum(reads) <= 1 + 8
    store.put(HOME, "new", {"text": "coffee"})
    reads.clear()
    assert store.search(HOME, query="coffee", limit=1)[0].key == "new"
    assert reads[:2] == [1, 2], "more than the generation and the new entry was read again"


def test_more_vectors_than_a_search_compares_are_refused_by_name(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = backend.store(index=new_index())
    for n in range(4):
        store.put(HOME, f"k{n}", {"text": f"tea {n}"})
    monkeypatch.setattr(module, "MOST_ITEMS", 3)
    with pytest.raises(TooLarge, match="'ada'"):
        store.search(HOME, query="tea")


def test_the_vectors_searched_longest_ago_are_forgotten(backend: Backend) -> None:
    index = new_index()
    store = backend.store(index=index)
    for user in "abc":
        store.put(("users", user), "k", {"text": "tea"})
        store.search(("users", user), query="tea")
    driver = store._driver
    held = {user: index._cache.get(driver, partition_of("", ("users", user))) for user in "abc"}
    assert all(vectors.rows == 1 for vectors in held.values())
    cache = IndexCache(most_bytes=2 * held["a"].size)
    for user in "abc":
        cache.put(driver, partition_of("", ("users", user)), held[user])
    assert cache.get(driver, partition_of("", ("users", "a"))).generation is None
    assert cache.get(driver, partition_of("", ("users", "c"))).rows == 1


@pytest.mark.parametrize("awaited", [True, False], ids=["awaited", "blocking"])
def test_without_an_index_a_query_is_ignored_as_by_the_stock_store(
    backend: Backend, awaited: bool, caplog: pytest.LogCaptureFixture
) -> None:
    stock, store = InMemoryStore(), backend.store()
    puts = [
        PutOp((*HOME, str(number % 2)), str(number), {"text": "tea", "number": number}) for number in range(7)
    ]
    stock.batch(puts)
    store.batch(puts)
    asked = [
        SearchOp(prefix, filter, limit, offset, query)
        for prefix in (HOME, (*HOME, "1"), ("none",), ())
        for filter in (None, {"number": {"$gt": 2}}, {"text": "coffee"})  # noqa: A001
        for limit, offset in ((10, 0), (2, 0), (2, 1))
        for query in ("tea", "coffee")
    ]
    plain = store.batch([op._replace(query=None) for op in asked])
    results = asyncio.run(store.abatch(asked)) if awaited else store.batch(asked)
    assert results == plain
    assert all(item.score is None for found in results for item in cast("list[SearchItem]", found))
    whole = [place for place, op in enumerate(asked) if op.limit == 10]
    for place, expected in zip(whole, stock.batch([asked[n] for n in whole]), strict=True):
        assert {item.key for item in results[place]} == {item.key for item in expected}  # type: ignore[union-attr]
    assert [record.message for record in caplog.records if "compares nothing" in record.message][1:] == []


def test_items_from_before_the_index_are_found_after_reindexing(backend: Backend) -> None:
    backend.store().put(HOME, "before", {"text": "tea"})
    old = backend.store(index=new_index(name="old"))
    old.put(HOME, "old", {"text": "tea", "x": "bread"}, index=["x"])
    old.put(HOME, "out", {"text": "tea"}, index=False)
    index = new_index()
    store = backend.store(index=index)
    store.put(HOME, "new", {"text": "tea"})
    with pytest.raises(ReindexRequired):
        store.search(HOME, query="tea")
    database = handle_of(backend.database())
    place = partition_of("", HOME)
    now = 2_000_000_000_000_000
    assert database.run(reindex(place, index, now)) == Reindexed(items=4, indexed=2)
    assert database.run(reindex(place, index, now)) == Reindexed(items=4)
    assert sorted(item.key for item in store.search(HOME, query="tea")) == ["before", "new", "old"]
    assert store.search(HOME, query="bread", limit=1)[0].key == "old"


def test_an_asynchronous_function_embeds_what_is_indexed_again(backend: Backend) -> None:
    async def slow(texts: Sequence[str]) -> list[list[float]]:
        return embed(texts)

    backend.store().put(HOME, "k", {"text": "tea"})
    index = new_index(embed=slow)
    place = partition_of("", HOME)
    with closing(index):
        done = handle_of(backend.database()).run(reindex(place, index, 2_000_000_000_000_000))
    assert done.indexed == 1
    assert backend.store(index=new_index()).search(HOME, query="tea")[0].key == "k"


def test_a_read_while_an_item_is_indexed_does_not_leave_it_out(backend: Backend) -> None:
    store = backend.store()
    store.put(HOME, "k", {"text": "tea"}, ttl=60)

    def meanwhile(texts: Sequence[str]) -> list[list[float]]:
        if "tea" in texts:
            store.get(HOME, "k")
        return embed(texts)

    index, now = new_index(embed=meanwhile), time.time_ns() // 1000
    done = handle_of(backend.database()).run(reindex(partition_of("", HOME), index, now))
    assert done == Reindexed(items=1, indexed=1)


def test_an_expired_item_does_not_keep_a_namespace_from_being_searched(backend: Backend) -> None:
    now = 1_000_000_000
    old = backend.store(index=new_index(name="old"), clock=lambda: now)
    old.put(HOME, "short", {"text": "tea"}, ttl=1)
    old.put(HOME, "long", {"text": "tea"})
    now += 120_000_000
    index = new_index()
    done = handle_of(backend.database()).run(reindex(partition_of("", HOME), index, now))
    assert done == Reindexed(items=1, indexed=1, removed=1)
    found = backend.store(index=index, clock=lambda: now).search(HOME, query="tea")
    assert [item.key for item in found] == ["long"]


def test_other_fields_are_another_index(backend: Backend) -> None:
    backend.store(index=new_index()).put(HOME, "k", {"text": "tea", "more": "bread"})
    other = new_index(fields=["more"])
    with pytest.raises(ReindexRequired, match="other fields"):
        backend.store(index=other).search(HOME, query="bread")
    assert handle_of(backend.database()).run(reindex(partition_of("", HOME), other, 1)).indexed == 1
    assert backend.store(index=other).search(HOME, query="bread")[0].score == pytest.approx(1.0, abs=1e-5)


def test_nothing_is_embedded_where_nothing_is_to_be_indexed(backend: Backend) -> None:
    backend.store(index=new_index()).put(HOME, "k", {"text": "tea"})

    def never(texts: Sequence[str]) -> list[list[float]]:
        raise AssertionError("asked for nothing")

    index = new_index(embed=never)
    assert handle_of(backend.database()).run(reindex(partition_of("", HOME), index, 1)).indexed == 0


@pytest.mark.parametrize("is_conditional", [False, True])
def test_a_value_that_changes_while_it_is_embedded_is_stored_as_it_was(
    backend: Backend, is_conditional: bool
) -> None:
    value = {"text": "tea"}
    seen = {"text": "none yet"}

    async def changing(texts: Sequence[str]) -> list[list[float]]:
        value["text"] = seen["text"] = "coffee"
        return embed(texts)

    store = backend.store(index=new_index(embed=changing))

    async def work() -> None:
        if is_conditional:
            await backend.store().aput(HOME, "drink", dict(seen))
            assert await store.aput_if_unchanged([PutOp(HOME, "drink", value)], {"drink": seen})
        else:
            await store.aput(HOME, "drink", value)

    asyncio.run(work())
    (found,) = backend.store(index=new_index()).search(HOME, query="tea")
    assert found.value == {"text": "tea"}
    assert found.score == pytest.approx(1.0)


def test_items_of_equal_score_are_paged_without_a_gap(backend: Backend) -> None:
    store = backend.store(index=new_index())
    chance = random.Random(9)
    names = [f"k{n:03}" for n in range(120)]
    chance.shuffle(names)
    for name in names:
        store.put(HOME, name, {"text": "tea" if int(name[1:]) % 3 else "bread"})
    store.put(HOME, "k007", {"text": "tea"})
    found: list[str] = []
    for at in range(0, 120, 7):
        found += [item.key for item in store.search(HOME, query="tea", limit=7, offset=at)]
    assert found[:80] == sorted(name for name in names if int(name[1:]) % 3)
    assert len(set(found)) == 120


def test_a_deletion_elsewhere_is_seen(backend: Backend) -> None:
    backend.store(index=new_index(name="old")).put(HOME, "k", {"text": "tea"})
    store = backend.store(index=new_index())
    with pytest.raises(ReindexRequired):
        store.search(HOME, query="tea")
    backend.store().delete(HOME, "k")
    assert store.search(HOME, query="tea") == []


def test_an_item_that_changes_while_it_is_indexed_keeps_the_writer_s_entry(backend: Backend) -> None:
    writer = backend.store(index=new_index())
    backend.store().put(HOME, "k", {"text": "tea"})
    index = new_index()

    def meanwhile(texts: Sequence[str]) -> list[list[float]]:
        if "tea" in texts:
            writer.put(HOME, "k", {"text": "coffee"})
        return embed(texts)

    slow = new_index(embed=meanwhile)
    done = handle_of(backend.database()).run(reindex(partition_of("", HOME), slow, 2_000_000_000_000_000))
    assert done == Reindexed(items=1, changed=1)
    (found,) = backend.store(index=index).search(HOME, query="coffee")
    assert found.score == pytest.approx(1.0, abs=1e-5)


def test_vectors_are_sealed_with_the_database(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/threads.db"
    key = bytes(range(32))
    marked = [0.123456789 * (n + 1) for n in range(16)]

    def always(texts: Sequence[str]) -> list[list[float]]:
        return [marked for _ in texts]

    with perdure.connect_sync(url, migrate=True, encryption_key=key) as db:
        store = db.store(index={"dims": 16, "embed": always, "fields": ["text"]})
        store.put(HOME, "k", {"text": "tea"})
        assert len(store.search(HOME, query="x")) == 1
    import numpy as np

    raw = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert np.asarray(marked, dtype="<f4").tobytes()[:12] not in raw


def test_best_results_need_no_order_of_the_rest(backend: Backend) -> None:
    chance = random.Random(4)
    store = backend.store(index=new_index())
    for n in range(500):
        store.put(
            ("many", f"u{n % 7}"), f"k{n}", {"text": " ".join(chance.choices("ab cd ef gh ij".split(), k=6))}
        )
    everything = [item.score for item in store.search(("many",), query="ab cd", limit=500)]
    assert everything == sorted(everything, key=lambda score: -(score or 0))
    assert len(everything) == 500
    page = [item.score for item in store.search(("many",), query="ab cd", limit=10, offset=20)]
    assert page == everything[20:30]


def test_the_figures_of_the_documentation_are_those_of_the_code() -> None:
    docs = Path(__file__).parents[3] / "docs"
    for page, figures in {
        "store.md": (
            f"{module.MOST_ITEMS:,} vectors or texts",
            f"{MOST_BYTES >> 20} MB",
            f"by default {VECTOR_WEIGHT}",
        ),
        "errors.md": (f"{module.MOST_ITEMS:,} vectors",),
        "configuration.md": (f"| – | {VECTOR_WEIGHT} |",),
        "decisions/0016-vectors-in-the-process.md": (
            f"{module.MOST_ITEMS:,} vectors",
            f"{MOST_BYTES >> 20} MB",
            f"last {search_index.LOG_COMMITS} commits",
            f"{search_index.LOG_BYTES} bytes",
        ),
    }.items():
        text = " ".join((docs / page).read_text(encoding="utf-8").split())
        assert not [figure for figure in figures if figure not in text], page


class Expiring(MemoryDriver):
    """A driver whose service removes expired items by itself, without their entries."""

    capabilities = replace(MemoryDriver.capabilities, removes_expired=True)

    def lose(self, *keys: str) -> None:
        """Remove items as the service does."""
        ops = tuple(Delete(ITEM, (key,)) for key in keys)
        assert isinstance(self.perform(Commit(partition_of("", HOME), ops)), Committed)

    def entries(self) -> set[str]:
        """Return the keys of the items that have entries."""
        found = run(search_index.orphans(partition_of("", HOME), ()), self)
        return set(found)


def test_a_search_removes_the_entries_of_items_that_the_service_removed() -> None:
    driver = Expiring()
    now = 1_000_000_000
    store = Backend(driver).store(index=new_index(), clock=lambda: now)
    store.batch([PutOp(HOME, key, {"text": f"tea {key}"}) for key in ("kept", "lost", "gone")])
    store.put(HOME, "over", {"text": "tea"}, ttl=1)
    assert len(store.search(HOME, query="tea")) == 4
    driver.lose("lost", "gone")
    now += 120_000_000
    unchanged = driver.entries()
    reading = PerdureStore(ReadOnlyDriver(driver), index=new_index(), clock=Clock(lambda: now))
    assert [hit.key for hit in reading.search(HOME, query="tea")] == ["kept"]
    assert driver.entries() == unchanged == {"kept", "lost", "gone", "over"}
    assert [hit.key for hit in store.search(HOME, query="tea")] == ["kept"]
    # An item that is still there goes with its entry, by whatever removes it.
    assert driver.entries() == {"kept", "over"}
    assert [hit.key for hit in store.search(HOME, query="tea")] == ["kept"]


def test_an_item_that_is_put_again_meanwhile_keeps_its_entry() -> None:
    driver = Expiring()
    other = Backend(driver).store(index=new_index())
    waiting = [lambda: other.put(HOME, "a", {"text": "tea"})]

    class Racing(WrappingDriver):
        def perform(self, effect: Effect[R]) -> R:
            if isinstance(effect, Commit) and waiting:
                waiting.pop()()
            return driver.perform(effect)

        async def aperform(self, effect: Effect[R]) -> R:
            return self.perform(effect)

    other.put(HOME, "a", {"text": "tea"})
    driver.lose("a")
    store = PerdureStore(Racing(driver), index=new_index())
    assert store.search(HOME, query="tea") == []
    assert not waiting
    assert [hit.key for hit in store.search(HOME, query="tea")] == ["a"]
