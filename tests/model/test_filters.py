"""Filters mean what they mean in the stock store, and what that one cannot compare is not accepted."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langgraph.store.memory import _compare_values

from perdure.errors import Unserialisable
from perdure.model.filters import accepts, bounds, find_patterns, parse_filter

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
    ours = accepts(parse_filter(conditions), value)
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
        (5, {"$in": [1, 5]}, True),
        (5, {"$in": []}, False),
        (5, {"$nin": []}, True),
        (5, {"$nin": [1, 5]}, False),
        (None, {"$nin": [1]}, True),
        ([1], {"$in": [[1], 2]}, True),
        ({"y": 1}, {"$in": [{"y": 1}]}, True),
        (5, {"$not": {"$gt": 5}}, True),
        (None, {"$not": {"$gt": 5}}, True),
        (5, {"$not": 5}, False),
        (5, {"$gt": 1, "$not": {"$in": [2, 3]}}, True),
        (5, {"$or": [1, {"$gt": 4}]}, True),
        (5, {"$or": [{"$lt": 1}, {"$and": [{"$gt": 5}, {"$lt": 9}]}]}, False),
        ({"y": 1, "z": 2}, {"y": 1, "$or": [{"z": 3}, {"z": 2}]}, True),
        ({"y": 1}, {"y": 1, "$not": {"z": None}}, False),
        (5, {"y": 1, "$or": [5]}, False),
        ([{"a": 1}, 2], [{"$or": [{"a": 2}, {"a": 1}]}, {"$in": [2]}], True),
    ],
)
def test_conditions(stored: Any, condition: Any, accepted: bool) -> None:
    assert accepts(parse_filter({"x": condition}), {"x": stored}) is accepted


def test_an_absent_field_counts_as_none() -> None:
    assert accepts(parse_filter({"x": None}), {})
    assert accepts(parse_filter({"x": {"$ne": 1}}), {})
    assert not accepts(parse_filter({"x": {"$gte": 0}}), {})


@pytest.mark.parametrize(
    ("conditions", "message"),
    [
        ({"x": {"y": [{"$regex": [1]}]}}, r"filter\['x'\]\['y'\]\[0\]: '\$regex' is not an operator"),
        ({"x": {"$gt": [1]}}, r"\$gt compares with a number or text"),
        ({"x": {"$gt": 1, "y": 2}}, r"filter\['x'\]: 'y' is not an operator"),
        ({"$gt": 0}, r"filter: \$gt compares a field; write \{'a_field': \{'\$gt'"),
        ({"$eq": {"x": 1}}, r"filter: \$eq compares a field"),
        ({"$in": [{"x": 1}]}, r"filter: \$in compares a field"),
        ({"$or": [{"x": 1}, {"$lt": 0}]}, r"filter\['\$or'\]\[1\]: \$lt compares a field"),
        ({"$not": {"$ne": 0}}, r"filter\['\$not'\]: \$ne compares a field"),
        (
            {"$nor": [{"x": 1}]},
            r"filter: '\$nor' is not an operator; between fields use \$and, \$or or \$not",
        ),
        ({"x": {"$exists": True}}, r"filter\['x'\]: '\$exists' is not an operator"),
        ({"$or": []}, r"filter\['\$or'\] has a list of at least one condition, not \[\]"),
        ({"$and": {"x": 1}}, r"filter\['\$and'\] has a list of at least one condition, not \{'x': 1\}"),
        ({"$or": [1]}, r"filter\['\$or'\]\[0\] is a dict of conditions by field, not 1"),
        ({"$not": [{"x": 1}]}, r"filter\['\$not'\] is a dict of conditions by field"),
        ({"$not": None}, r"filter\['\$not'\] is a dict of conditions by field, not None"),
        ({"x": {"$or": []}}, r"filter\['x'\]\['\$or'\] has a list of at least one condition"),
        ({"x": {"$and": 1}}, r"filter\['x'\]\['\$and'\] has a list of at least one condition"),
        ({"x": {"$in": "abc"}}, r"filter\['x'\]: \$in has a list of values, not 'abc'"),
        ({"x": {"$nin": None}}, r"filter\['x'\]: \$nin has a list of values, not None"),
        ({"x": {"$not": {"$regex": "a"}}}, r"filter\['x'\]\['\$not'\]: '\$regex' is not an operator"),
        ({"$and": [{"$or": [{"x": {"$gt": None}}]}]}, r"\['\$or'\]\[0\]\['x'\]: \$gt compares with a number"),
    ],
)
def test_a_wrong_filter_is_refused_though_nothing_is_stored(conditions: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_filter(conditions)


@pytest.mark.parametrize("conditions", ["x", 1, [("x", 1)], [{"x": 1}]])
def test_a_filter_that_is_no_dict_is_refused(conditions: Any) -> None:
    with pytest.raises(TypeError, match="a filter is a dict of conditions by field"):
        parse_filter(conditions)


def test_a_filter_with_what_no_item_can_have_is_refused() -> None:
    with pytest.raises(Unserialisable, match=r"filter\['x'\] is a set"):
        parse_filter({"x": {1}})
    with pytest.raises(Unserialisable, match=r"filter\['\$or'\]\[0\]\['x'\] is a set"):
        parse_filter({"$or": [{"x": {1}}]})


@pytest.mark.parametrize("condition", ["\ud800", {"$gt": "\ud800"}, ["\ud800"], {"\ud800": 1}])
def test_text_that_no_item_can_have_is_refused(condition: Any) -> None:
    with pytest.raises(Unserialisable, match="not well-formed Unicode"):
        parse_filter({"a": condition})


def test_a_filter_that_is_nested_too_deep_is_refused() -> None:
    conditions: dict[str, Any] = {}
    conditions["$not"] = conditions
    with pytest.raises(Unserialisable, match="nested deeper"):
        parse_filter(conditions)


@pytest.mark.parametrize(
    "conditions",
    [
        {"a": {"$in": [f"v{n}" for n in range(1000)]}},
        {"a": {"$in": list(range(30))}},
        {f"a{n}": "x" for n in range(1000)},
        {"$and": [{"a": {"$gte": n}} for n in range(1000)]},
        {"a": "x" * 3_000_000, "b": {"$gte": "x" * 3_000_000}},
        {"n" * 3_000_000: {"$lt": 5}},
    ],
    ids=["texts", "numbers", "fields", "orderings", "long texts", "long name"],
)
def test_a_database_compares_a_bounded_part_of_a_filter(conditions: dict[str, Any]) -> None:
    checked = parse_filter(conditions)
    patterns, limits = find_patterns(checked), bounds(checked)
    assert sum(map(len, patterns)) <= 40
    assert len(limits) <= 20
    assert all(len(pattern) <= 256 for group in patterns for pattern in group)
    assert all(len(f"{bound.name}{bound.limit}") < 400 for bound in limits)


def test_a_condition_with_many_values_leaves_the_others_to_the_database() -> None:
    checked = parse_filter({"a": {"$in": [f"v{n}" for n in range(1000)]}, "b": "x"})
    assert find_patterns(checked) == ((b'"b":"x"',),)
