"""Filters of the store on every backend, against a model that reads them by itself.

Backends differ in what they filter in the database; the result may not.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langgraph.store.base import PutOp

from perdure.langgraph.store import PerdureStore
from perdure.model.filters import accepts, parse_filter
from perdure.storage.memory import MemoryDriver
from perdure.testing.conformance.backend import Backend
from tests.backends import BACKENDS, fresh

HOME = ("items",)
SCALARS = st.sampled_from(
    [None, True, False, 0, 1, 2, -1, 1.5, -0.0, 1 << 60, "", "1", "1.5", "a", "é", 'q"']
)
NAMES = st.sampled_from(["a", "b", "c d"])
PARTS = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=2),
    max_leaves=4,
)
VALUES = st.dictionaries(NAMES, PARTS, max_size=3)


def some(of: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(of, min_size=1, max_size=3)


def comparisons() -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {},
        optional={
            "$eq": PARTS,
            "$ne": PARTS,
            "$gt": st.sampled_from([0, 1, 1.5, "1", "a", True]),
            "$lte": st.sampled_from([0, 1, 1.5, "1", "a", -1]),
            "$in": st.lists(SCALARS, max_size=3),
            "$nin": st.lists(PARTS, max_size=3),
        },
    ).filter(bool)


def joined(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional={"$and": some(inner), "$or": some(inner), "$not": inner})


CONDITIONS = st.recursive(
    PARTS | comparisons(),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2),
        st.dictionaries(NAMES, inner, max_size=2),
        st.builds(lambda ops, join: {**ops, **join}, comparisons(), joined(inner)),
        st.builds(
            lambda ops, join: {**ops, **join}, st.dictionaries(NAMES, inner, max_size=1), joined(inner)
        ),
    ),
    max_leaves=6,
)
FILTERS = st.recursive(
    st.dictionaries(NAMES, CONDITIONS, max_size=2),
    lambda inner: st.builds(
        lambda fields, join: {**fields, **join}, st.dictionaries(NAMES, CONDITIONS, max_size=1), joined(inner)
    ),
    max_leaves=4,
)


# ---------------------------------------------------------------- the model


def number(value: Any) -> float | int | None:
    if isinstance(value, int | float):
        return value
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def compares(sign: str, value: Any, operand: Any) -> bool:
    pair = number(value), number(operand)
    if None in pair:
        if not (isinstance(value, str) and isinstance(operand, str)):
            return False
        pair = value, operand  # type: ignore[assignment]
    left, right = pair
    return left > right if sign == "$gt" else left <= right  # type: ignore[operator]


def matches(value: Any, condition: Any) -> bool:
    """Whether a value meets a condition, as the page on the store describes it."""
    if isinstance(condition, list):
        if not isinstance(value, list) or len(value) != len(condition):
            return False
        return False not in [matches(part, wanted) for part, wanted in zip(value, condition, strict=True)]
    if not isinstance(condition, dict):
        return bool(value == condition)
    verdicts = []
    for key, operand in condition.items():
        match key:
            case "$eq":
                verdicts.append(value == operand)
            case "$ne":
                verdicts.append(value != operand)
            case "$in":
                verdicts.append(value in operand)
            case "$nin":
                verdicts.append(value not in operand)
            case "$and":
                verdicts += [matches(value, part) for part in operand]
            case "$or":
                verdicts.append(True in [matches(value, part) for part in operand])
            case "$not":
                verdicts.append(not matches(value, operand))
            case "$gt" | "$lte":
                verdicts.append(compares(key, value, operand))
            case field:
                verdicts.append(isinstance(value, dict) and matches(value.get(field), operand))
    return all(verdicts) if verdicts else isinstance(value, dict)


# ---------------------------------------------------------------- the backends

CORPUS = st.lists(VALUES, min_size=12, max_size=12)


@pytest.mark.parametrize("on", list(BACKENDS))
def test_every_backend_finds_what_the_model_finds(on: str) -> None:
    with fresh(on) as driver:
        store: PerdureStore = Backend(driver).store()
        known: dict[str, Any] = {}

        @settings(max_examples=30 if on in ("memory", "sqlite", "postgresql") else 8, deadline=None)
        @given(CORPUS, st.lists(FILTERS, min_size=8, max_size=8), st.booleans())
        def check(values: list[Any], filters: list[Any], awaited: bool) -> None:
            store.batch([PutOp(HOME, str(number), value) for number, value in enumerate(values)])
            known.update({str(number): value for number, value in enumerate(values)})
            for each in filters:
                found = (
                    asyncio.run(store.asearch(HOME, filter=each, limit=99))
                    if awaited and on == "memory"
                    else store.search(HOME, filter=each, limit=99)
                )
                expected = {key for key, value in known.items() if matches(value, each)}
                assert {item.key for item in found} == expected, each
                page = store.search(HOME, filter=each, limit=2, offset=1)
                assert page == found[1:3]

        check()


@settings(max_examples=300, deadline=None)
@given(VALUES, FILTERS)
def test_a_filter_and_its_negation_part_all_items(value: Any, wanted: Any) -> None:
    assert accepts(parse_filter(wanted), value) is matches(value, wanted)
    assert accepts(parse_filter({"$not": wanted}), value) is not matches(value, wanted)


REFUSED = [
    {"$gt": 0},
    {"$or": []},
    {"$and": {"a": 1}},
    {"$nor": [{"a": 1}]},
    {"a": {"$in": "text"}},
    {"$or": [{"a": {"$like": "b"}}]},
    {"$not": [1]},
]


@pytest.mark.parametrize("on", list(BACKENDS))
@pytest.mark.parametrize("wanted", REFUSED, ids=str)
def test_every_backend_refuses_a_wrong_filter(on: str, wanted: Any) -> None:
    with fresh(on) as driver, pytest.raises(ValueError, match=r"filter.*\$"):
        Backend(driver).store().search(HOME, filter=wanted)


MANY = [f"v{number}" for number in range(2_000)]
LONG = "v" * 3_000_000
LARGE: dict[str, dict[str, Any]] = {
    "values": {"a": {"$in": MANY}},
    "more values than PostgreSQL takes": {"a": {"$in": [f"v{number}" for number in range(70_000)]}},
    "other values": {"a": {"$nin": ["w", *MANY[8:]]}},
    "numbers": {"b": {"$in": list(range(60))}},
    "equal": {"$and": [{"a": "v7"}] * 2_000},
    "orderings": {"$and": [{"a": {"$lte": "v7"}}] * 2_000},
    "both": {"$and": [part for n in range(80) for part in ({"a": "v7"}, {"b": {"$lte": 5 + n}})]},
    "alternatives": {"$or": [{"a": value} for value in MANY]},
    "fields": {"a": "v7", **{f"field{number}": None for number in range(2_000)}},
    "long texts": {"a": {"$in": [LONG, "v7"], "$lt": LONG}, "$or": [{"a": {"$ne": LONG}}]},
    "a long name": {"n" * 300_000: {"$not": {"$lt": 5}}},
}


@pytest.mark.parametrize("on", list(BACKENDS))
def test_a_filter_may_have_any_number_of_conditions_of_any_length(on: str) -> None:
    with fresh(on) as driver:
        store = Backend(driver).store()
        store.put(HOME, "k", {"a": "v7", "b": 5})
        store.put(HOME, "other", {"a": "w", "b": 500, "n" * 300_000: 1})
        for name, each in LARGE.items():
            assert [item.key for item in store.search(HOME, filter=each)] == ["k"], name


def test_an_awaited_search_compares_many_conditions_beside_the_event_loop() -> None:
    threads: list[threading.Thread] = []

    def note(*_: Any) -> bool:
        threads.append(threading.current_thread())
        return True

    async def search(store: PerdureStore, values: int) -> None:
        await store.asearch(HOME, filter={"a": {"$nin": list(range(values))}})

    store = Backend(MemoryDriver()).store()
    store.put(HOME, "k", {"a": "v"})
    with patch("perdure.model.filters.accepts", note):
        asyncio.run(search(store, 2))
        asyncio.run(search(store, 200))
    assert threads[0] is threading.current_thread()
    assert threads[1] is not threading.current_thread()


def nested(name: str, levels: int) -> Any:
    wanted: Any = {"a": 1}
    for _ in range(levels):
        wanted = {name: [wanted] if name == "$and" else wanted}
    return wanted


@pytest.mark.parametrize("on", list(BACKENDS))
def test_every_backend_refuses_a_filter_that_is_nested_too_deeply(on: str) -> None:
    itself: list[Any] = []
    itself += [itself, itself]
    with fresh(on) as driver:
        store = Backend(driver).store()
        store.put(HOME, "k", {"a": 1})
        for wanted in (nested("$not", 250), nested("$and", 250), nested("a", 900), {"a": itself}):
            with pytest.raises(ValueError, match="more than 64 levels deep"):
                store.search(HOME, filter=wanted)
        assert len(store.search(HOME, filter=nested("$not", 60))) == 1
