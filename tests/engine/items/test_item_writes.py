"""Items that are put unless others have changed what was read: one commit or nothing, on all backends."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from langgraph.store.base import PutOp

import perdure
from perdure.errors import Contention, TooLarge, Unserialisable
from perdure.langgraph.store import Clock, PerdureStore
from perdure.model.ops import Commit, Fetch, Range
from perdure.model.records import DOCUMENT
from perdure.model.store_items import partition_of
from tests.backends import BACKENDS, EMPTY, fresh

AT = ("a", "b")


def embed(texts: list[str]) -> list[list[float]]:
    return [[1.0, float(len(text))] for text in texts]


@pytest.fixture(params=BACKENDS)
def store(request: pytest.FixtureRequest) -> Iterator[PerdureStore]:
    with EMPTY[request.param]() as url, perdure.connect_sync(url, migrate=True) as db:
        yield db.store(index={"dims": 2, "embed": embed})


def put(key: str, value: dict[str, Any] | None, **more: Any) -> PutOp:
    return PutOp(AT, key, value, **more)


def there(store: PerdureStore) -> dict[str, Any]:
    return {item.key: item.value for item in store.search(AT)}


def test_items_are_written_together_if_nothing_was_changed(store: PerdureStore) -> None:
    one, two = {"text": "one"}, {"text": "two"}
    assert store.put_if_unchanged([put("x", one), put("y", one)], {"x": None, "y": None})
    assert not store.put_if_unchanged([put("x", two)], {"x": None})
    # What is only read counts, too: an absent item, one of another value, one to be removed.
    assert not store.put_if_unchanged([put("x", two)], {"x": one, "z": one})
    assert not store.put_if_unchanged([put("x", two)], {"y": two})
    assert not store.put_if_unchanged([put("x", None), put("z", one)], {"x": two})
    assert there(store) == {"x": one, "y": one}
    assert asyncio.run(store.aput_if_unchanged([put("x", two), put("y", None)], {"x": one, "y": one}))
    assert there(store) == {"x": two}
    assert [item.key for item in store.search(AT, query="two")] == ["x"]
    assert store.put_if_unchanged([put("x", None)], {"x": two, "y": None})
    assert store.search(AT, query="two") == []
    # Nothing is left to be written, and what was read counts all the same.
    assert store.put_if_unchanged([put("x", None)], {"x": None, "y": None})
    store.put(AT, "y", one)
    assert not store.put_if_unchanged([put("x", None)], {"x": None, "y": None})


@pytest.mark.parametrize("change", ["written", "absent", "removed", "unwritten"])
def test_a_change_in_the_moment_before_the_commit_is_noticed(change: str) -> None:
    one, two = {"n": 1}, {"n": 2}
    with fresh("memory") as driver:
        store, other = PerdureStore(driver), PerdureStore(driver)
        if change != "absent":
            store.put(AT, "x", one)
        real, act = driver.perform, [lambda: other.put(AT, "x", two)]

        def perform(effect: Any) -> Any:
            if isinstance(effect, Commit) and act:
                act.pop()()
            return real(effect)

        driver.perform = perform  # type: ignore[method-assign]
        puts = {"written": put("x", {"n": 3}), "absent": put("x", one), "removed": put("x", None)}
        seen = {"x": None if change == "absent" else one}
        assert not store.put_if_unchanged([puts.get(change, put("y", one))], seen)
        assert not act
        assert there(store) == {"x": two}


def test_a_namespace_that_is_written_all_the_time_is_reported() -> None:
    with fresh("memory") as driver:
        store, other = PerdureStore(driver), PerdureStore(driver)
        store.put(AT, "x", {"n": 1})
        real = driver.perform

        def perform(effect: Any) -> Any:
            if isinstance(effect, Commit) and not busy:
                busy.append(1)
                other.put(AT, "x", {"n": 1})
                busy.clear()
            return real(effect)

        busy: list[int] = []
        driver.perform = perform  # type: ignore[method-assign]
        with pytest.raises(Contention, match="keeps being written to"):
            store.put_if_unchanged([put("x", {"n": 2})], {"x": {"n": 1}})
        assert there(store) == {"x": {"n": 1}}


def test_an_expired_item_was_absent() -> None:
    now = [1_000_000]
    with fresh("memory") as driver:
        store = PerdureStore(driver, clock=Clock(lambda: now[0]))
        store.put(AT, "x", {"n": 1}, ttl=1)
        now[0] += 120_000_000
        assert not store.put_if_unchanged([put("x", {"n": 2})], {"x": {"n": 1}})
        assert store.put_if_unchanged([put("x", {"n": 2})], {"x": None})


def test_what_one_commit_cannot_hold_is_refused() -> None:
    with fresh("memory") as driver:
        store = PerdureStore(driver)
        many = [put(f"k{n}", {"n": n}) for n in range(driver.limits.ops + 1)]
        with pytest.raises(TooLarge, match="at once"):
            store.put_if_unchanged(many, {})
        with pytest.raises(ValueError, match="one namespace"):
            store.put_if_unchanged([put("x", {}), PutOp(("c",), "x", {})], {})
        with pytest.raises(ValueError, match="one namespace"):
            store.put_if_unchanged([], {})
        for key in ("x", ""):
            with pytest.raises(ValueError, match=f"'{key}' is put 2 times"):
                store.put_if_unchanged([put(key, {"n": 1}), put(key, {"n": 2})], {})
        assert store.search(()) == []


@pytest.mark.parametrize(
    ("stored", "seen"), [(1, True), (0, False), (1, 1.0), ([1], [True]), ({"a": 0}, {"a": None})]
)
def test_values_are_compared_with_their_types(stored: Any, seen: Any) -> None:
    with fresh("memory") as driver:
        store = PerdureStore(driver)
        store.put(AT, "x", {"n": stored, "m": "text"})
        assert not store.put_if_unchanged([put("x", {})], {"x": {"n": seen, "m": "text"}})
        assert store.put_if_unchanged([put("x", {})], {"x": {"m": "text", "n": stored}})


@pytest.mark.parametrize(
    ("seen", "error"),
    [({5: None}, TypeError), ({"\ud800": None}, Unserialisable), ({"y": {"n": object()}}, Unserialisable)],
)
def test_what_was_seen_has_to_be_what_items_can_be(seen: Any, error: type[Exception]) -> None:
    with fresh("memory") as driver:
        store = PerdureStore(driver)
        with pytest.raises(error):
            store.put_if_unchanged([put("x", {})], seen)
        assert store.search(()) == []


def entries(store: PerdureStore) -> dict[str, bytes]:
    """The records of the search index of the namespace, by name; that of its generation has none."""
    (records,) = store._driver.perform(Fetch(partition_of("", AT), (Range(DOCUMENT, ("search",)),)))
    return {record.key[1]: record.body for record in records}


@pytest.mark.parametrize("way", ["put", "together"])
def test_what_is_kept_out_of_the_index_by_a_store_without_one_leaves_no_entry(
    way: str, store: PerdureStore
) -> None:
    plain = PerdureStore(store._driver)
    for key in ("x", "y"):
        store.put(AT, key, {"text": "a secret"})
    assert len(store.search(AT, query="secret")) == 2
    if way == "put":
        plain.put(AT, "x", {"text": ""}, index=False)
    else:
        assert plain.put_if_unchanged([put("x", {"text": ""}, index=False)], {"x": {"text": "a secret"}})
    assert {name for name in entries(store) if name} == {"=y"}
    assert [item.key for item in store.search(AT, query="secret")] == ["y"]
    store.put(AT, "x", {"text": "tea"})
    assert len(store.search(AT, query="tea")) == 2


@pytest.mark.parametrize("has_index", [True, False])
@pytest.mark.parametrize("way", ["one by one", "batch", "together"])
def test_a_namespace_without_items_keeps_no_names_of_them(
    way: str, has_index: bool, store: PerdureStore
) -> None:
    plain = store if has_index else PerdureStore(store._driver)
    keys = ["secret one", "secret two", "secret three"]
    for key in keys:
        store.put(AT, key, {"text": key})
    assert len(store.search(AT, query="secret")) == 3
    if way == "one by one":
        for key in keys:
            plain.delete(AT, key)
    elif way == "batch":
        plain.batch([put(key, None) for key in keys])
    else:
        assert plain.put_if_unchanged([put(key, None) for key in keys], {key: {"text": key} for key in keys})
    assert b"secret" not in b"".join(entries(store).values())
    assert store.search(AT, query="secret") == []
    store.put(AT, "tea", {"text": "tea"})
    assert [item.key for item in store.search(AT, query="tea")] == ["tea"]
