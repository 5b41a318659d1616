"""Filters mean what LangGraph's mean, and one that cannot be understood lets nobody through."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.model.runs.messages import encode
from perdure.server.auth.filters import (
    BadFilter,
    find_patterns,
    matches,
    may_write_metadata,
    merge,
    parse_conditions,
)

NAMES = st.sampled_from(["owner", "people", "org"])
SCALARS = st.sampled_from([None, True, False, 0, 1, "", "1", "u1", "u2"])
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=2),
    max_leaves=5,
)
METADATA = st.dictionaries(NAMES, VALUES, max_size=3)
CONDITIONS = (
    SCALARS
    | st.builds(lambda value: {"$eq": value}, VALUES)
    | st.builds(lambda value: {"$contains": value}, SCALARS | st.lists(SCALARS, max_size=3))
)
SIMPLE = st.dictionaries(NAMES, CONDITIONS, min_size=1, max_size=3)
FILTERS = st.recursive(
    SIMPLE,
    lambda inner: st.builds(
        lambda own, group, parts: {**own, group: parts},
        st.just({}) | SIMPLE,
        st.sampled_from(["$or", "$and"]),
        st.lists(inner, min_size=1, max_size=3),
    ),
    max_leaves=6,
)


def written(value: Any) -> str:
    """Equal texts for equal JSON data, and for no other."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{name!r}:{written(value[name])}" for name in sorted(value)) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(written, value)) + "]"
    return repr(value)


def model(conditions: Mapping[str, Any], metadata: Mapping[str, Any]) -> bool:
    """The meaning in other words: every condition holds, each by the text of what it compares."""
    for name, condition in conditions.items():
        if name == "$or":
            holds = True in [model(part, metadata) for part in condition]
        elif name == "$and":
            holds = False not in [model(part, metadata) for part in condition]
        elif name not in metadata:
            holds = False
        elif isinstance(condition, dict) and "$contains" in condition:
            wanted, value = condition["$contains"], metadata[name]
            texts = {written(one) for one in (wanted if isinstance(wanted, list) else [wanted])}
            holds = isinstance(value, list) and texts <= {written(one) for one in value}
        else:
            wanted = condition["$eq"] if isinstance(condition, dict) else condition
            holds = written(metadata[name]) == written(wanted)
        if not holds:
            return False
    return True


@given(FILTERS, METADATA)
def test_a_filter_means_what_the_model_says(conditions: dict[str, Any], metadata: dict[str, Any]) -> None:
    assert matches(parse_conditions(conditions), metadata) == model(conditions, metadata)


@given(FILTERS, METADATA)
def test_what_a_filter_matches_holds_its_patterns(
    conditions: dict[str, Any], metadata: dict[str, Any]
) -> None:
    body = encode({"metadata": metadata}, "document")
    if matches(conditions, metadata):
        assert all(any(pattern in body for pattern in group) for group in find_patterns(conditions))


def test_the_usual_filters_have_patterns() -> None:
    own = {"owner": "ada"}
    assert find_patterns(own) == find_patterns({"owner": {"$eq": "ada"}}) == ((b'"owner":"ada"',),)
    shared = {"people": {"$contains": "ada"}}
    assert find_patterns(shared) == ((b'"people":[',), (b'"ada"',))
    assert find_patterns({"$and": [own, shared]}) == (*find_patterns(own), *find_patterns(shared))
    assert find_patterns({"$or": [own, shared]}) == ((b'"owner":"ada"', b'"people":['),)


@given(FILTERS, FILTERS, METADATA)
def test_merged_filters_hold_together(
    one: dict[str, Any], two: dict[str, Any], metadata: dict[str, Any]
) -> None:
    assert matches(merge(one, None, two), metadata) == (model(one, metadata) and model(two, metadata))


def test_merging_nothing_restricts_nothing() -> None:
    assert merge() is merge(None, None) is merge(None, {}) is None
    assert merge(None, {"owner": "u1"}) == {"owner": "u1"}


@pytest.mark.parametrize(
    ("condition", "value", "met"),
    [
        ("u1", "u1", True),
        ("u1", "u2", False),
        ("u1", ["u1"], False),
        (1, True, False),
        (1, "1", False),
        (0, False, False),
        (["a", "b"], ["a", "b"], True),
        ({"$eq": {"id": 1}}, {"id": 1}, True),
        ({"$eq": {"id": 1}}, {"id": True}, False),
        ({"$contains": "u1"}, ["u2", "u1"], True),
        ({"$contains": "u1"}, "u1", False),
        ({"$contains": "u1"}, ["u10"], False),
        ({"$contains": 1}, [True], False),
        ({"$contains": ["u1", "u2"]}, ["u2", "u3", "u1"], True),
        ({"$contains": ["u1", "u2"]}, ["u1"], False),
        ({"$eq": ["u1"], "$contains": "u2"}, ["u1"], False),
    ],
)
def test_conditions(condition: Any, value: Any, met: bool) -> None:
    assert matches(parse_conditions({"x": condition}), {"x": value}) is met


def test_what_is_absent_meets_no_condition() -> None:
    conditions: list[Any] = [None, {"$eq": None}, {"$contains": []}]
    for condition in conditions:
        assert not matches(parse_conditions({"owner": condition}), {})
        assert not matches(parse_conditions({"owner": condition}), None)


def test_a_filter_without_conditions_restricts_nothing() -> None:
    assert parse_conditions({}) is None
    assert matches(None, None)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"owner": {"$ne": "u1"}}, r"'\$ne' is not an operator; use \$eq or \$contains"),
        ({"owner": {"$eq": "u1", "$exists": True}}, r"'\$exists' is not an operator"),
        ({"owner": {"id": "u1"}}, r"'id' is not an operator"),
        ({"owner": {"$or": [{"a": 1}]}}, r"'\$or' is not an operator"),
        ({"owner": {}}, "has no operator"),
        ({"$not": {"owner": "u1"}}, r"\$not is not an operator here; use \$or or \$and"),
        ({"$or": []}, "at least one"),
        ({"$or": {"owner": "u1"}}, "a list of filters"),
        ({"$or": [{"owner": "u1"}, {}]}, r"\['\$or'\]\[1\] has to be a filter with at least one condition"),
        ({"$and": ["owner"]}, "has to be a filter"),
        ({"$or": [{"$and": [{"owner": {"$in": ["u1"]}}]}]}, r"'\$in' is not an operator"),
        ({1: "u1"}, "a key that is a int; keys are text"),
        ({"owner": object()}, "the filter.owner is a object, which has no form in JSON"),
        ({"owner": float("nan")}, "a number that JSON does not have"),
        ({"owner": "\ud800"}, "well-formed Unicode"),
    ],
)
def test_a_filter_that_cannot_be_understood_is_an_error(wrong: dict[Any, Any], reason: str) -> None:
    with pytest.raises(BadFilter, match=reason):
        parse_conditions(wrong)


def test_one_that_nobody_checked_lets_nobody_through_either() -> None:
    for wrong in ({"owner": {"$ne": "x"}}, {"$not": {"owner": "x"}}):
        with pytest.raises(BadFilter):
            matches(wrong, {"owner": "u1", "$not": {"owner": "x"}})
    assert not matches({"owner": {}}, {"owner": {}})


def test_a_filter_that_contains_itself_is_an_error() -> None:
    endless: dict[str, Any] = {}
    endless["$or"] = [endless]
    with pytest.raises(BadFilter, match="nested deeper"):
        parse_conditions(endless)


@dataclass
class Owner:
    id: UUID


def test_ids_are_compared_as_the_text_they_are_stored_as() -> None:
    someone = UUID(int=7)
    assert matches(parse_conditions({"owner": someone}), {"owner": str(someone)})
    assert matches(parse_conditions({"people": {"$contains": {someone}}}), {"people": [str(someone)]})
    assert matches(parse_conditions({"owner": {"$eq": Owner(someone)}}), {"owner": {"id": str(someone)}})
    assert may_write_metadata(parse_conditions({"owner": someone}), {"owner": someone})


def test_what_is_written_has_to_be_seen_by_who_writes_it() -> None:
    own = parse_conditions({"owner": "u1"})
    assert may_write_metadata(None, None)
    assert may_write_metadata(own, {"owner": "u1", "title": "x"})
    assert not may_write_metadata(own, {"owner": "u2"})
    assert not may_write_metadata(own, {})
    assert not may_write_metadata(own, None)
    with pytest.raises(BadFilter, match="no form in JSON"):
        may_write_metadata(own, {"owner": "u1", "x": object()})
