"""Filters mean what they mean in the stock store, and what that one cannot compare is not accepted."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langgraph.store.memory import _compare_values

from perdure.errors import Unserialisable
from perdure.model.filters import accepts, checked

SCALARS = st.sampled_from([None, True, False, 0, 1, 2, -1, 1.5, 2.0, "", "1", "1.5", "a", "b"])
NAMES = st.sampled_from(["a", "b"])
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=2),
    max_leaves=4,
)
ORDERS = st.sampled_from(["$gt", "$gte", "$lt", "$lte"])
NUMBERS = st.sampled_from([0, 1, 1.5, -1, True, "1", "1.5"])
OPERATORS = st.dictionaries(
    st.sampled_from(["$eq", "$ne"]), VALUES, min_size=1, max_size=2
) | st.dictionaries(ORDERS, NUMBERS, min_size=1, max_size=2)
CONDITIONS = st.recursive(
    SCALARS | OPERATORS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=2),
    max_leaves=4,
)


@given(st.dictionaries(NAMES, VALUES, max_size=2), st.dictionaries(NAMES, CONDITIONS, max_size=2))
def test_a_filter_means_what_it_means_in_the_stock_store(
    value: dict[str, Any], conditions: dict[str, Any]
) -> None:
    ours = accepts(checked(conditions), value)
    # The stock store raises where a value does not read as a number; there we accept nothing or order text.
    with suppress(TypeError, ValueError):
        assert ours == all(_compare_values(value.get(name), wanted) for name, wanted in conditions.items())


@pytest.mark.parametrize(
    ("stored", "condition", "accepted"),
    [
        (None, {"$gt": 1}, False),
        ([], {"$lt": 1}, False),
        ("a", {"$gt": 1}, False),
        ("2026-11-21", {"$gt": "2026-09-30"}, True),
        ("b", {"$lte": "a"}, False),
        ("10", {"$gt": "9"}, True),
        ((1 << 53) + 1, {"$gt": 1 << 53}, True),
        (10**400, {"$gt": 1}, True),
        (None, {"$ne": 1}, True),
        ({"b": {"c": 3}}, {"b": {"c": {"$gte": 3}}}, True),
        ([1, 2], (1, {"$gt": 1}), True),
        (5, {"$gt": 1, "$lt": 5}, False),
    ],
)
def test_conditions(stored: Any, condition: Any, accepted: bool) -> None:
    assert accepts(checked({"x": condition}), {"x": stored}) is accepted


def test_an_absent_field_counts_as_none() -> None:
    assert accepts(checked({"x": None}), {})
    assert accepts(checked({"x": {"$ne": 1}}), {})
    assert not accepts(checked({"x": {"$gte": 0}}), {})


def test_a_wrong_filter_is_refused_though_nothing_is_stored() -> None:
    with pytest.raises(ValueError, match=r"filter\['x'\]\['y'\]\[0\]: '\$in' is not an operator"):
        checked({"x": {"y": [{"$in": [1]}]}})
    with pytest.raises(ValueError, match=r"\$gt compares with a number or text"):
        checked({"x": {"$gt": [1]}})
    with pytest.raises(Unserialisable, match=r"filter\['x'\] is a set"):
        checked({"x": {1}})


@pytest.mark.parametrize("condition", ["\ud800", {"$gt": "\ud800"}, ["\ud800"], {"\ud800": 1}])
def test_text_that_no_item_can_have_is_refused(condition: Any) -> None:
    with pytest.raises(Unserialisable, match="not well-formed Unicode"):
        checked({"a": condition})
