"""What an item may hold, how it is stored, and that everything else is refused by name."""

from __future__ import annotations

import math
from collections import OrderedDict, UserDict
from datetime import UTC, date, datetime
from enum import IntEnum, StrEnum
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from perdure.errors import Corrupt, Unserialisable
from perdure.model.values.json_values import DEPTH, _pack_quickly, convert_to_plain, pack, pack_data, unpack

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(TEXT, JSON, max_size=4))
def test_plain_data_comes_back_as_it_was(value: dict[str, Any]) -> None:
    body = pack(value, "value")
    assert body.startswith(b"{")
    found = unpack(body, "value")
    assert found == value
    assert repr(found) == repr(value), "True became 1, 1.0 became 1, or an order changed"


def nested(depth: int) -> dict[str, Any]:
    """Return a value of so many levels."""
    value: dict[str, Any] = {"": 1}
    for _ in range(depth - 1):
        value = {"": value}
    return value


@given(st.dictionaries(TEXT, JSON, max_size=4))
@example({"f": 9.9e-5, "t": '\x00\x1f\x7f\u2028"\\/é\U0001f600'})
@example(
    {"f": [1e-4, -1e-4, 1e16, 9999999999999998.0, 5e-324, 0.0, -0.0], "n": [1 << 63, 1 << 64, -(1 << 64)]}
)
@example({"": {}, "l": [[], (), ({},)]})
@example(nested(200))
@example(nested(DEPTH))
def test_equal_values_have_equal_bytes_whichever_way_they_are_encoded(value: dict[str, Any]) -> None:
    assert pack(value, "value") == pack_data(convert_to_plain(value, "value"))


def test_only_plain_data_is_encoded_quickly() -> None:
    endless: dict[str, Any] = {}
    endless["self"] = [endless]
    for value in (
        {"a": UUID(int=1)},
        {"a": [Colour.RED, Level.HIGH]},
        {"a": date(2026, 1, 1)},
        {"a": math.nan},
        {"a": {1: 2}},
        {Level.HIGH: 1},
        {"a": "\ud800"},
        endless,
    ):
        assert _pack_quickly(value) is None
    assert _pack_quickly({"a": [1, 0.5, None, True, {"b": "c"}]}) == b'{"a":[1,0.5,null,true,{"b":"c"}]}'
    with pytest.raises(Unserialisable, match="deeper than"):
        pack(endless, "value")


class Colour(StrEnum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


class Ratio(float):
    pass


def test_subclasses_become_what_they_are_made_of() -> None:
    value = UserDict(
        {"a": (1, (2,)), "b": Colour.RED, "c": Level.HIGH, "d": Ratio(0.5), Colour.RED: OrderedDict()}
    )
    found = unpack(pack(value, "value"), "value")
    assert found == {"a": [1, [2]], "b": "red", "c": 3, "d": 0.5, "red": {}}
    assert {type(v) for v in found.values()} == {list, str, int, float, dict}
    assert {type(k) for k in found} == {str}


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ({"a": {"b": [1, {2}]}}, r"value\['a'\]\['b'\]\[1\] is a set"),
        ({"at": datetime(2026, 1, 1, tzinfo=UTC)}, r"value\['at'\] is a datetime"),
        ({"raw": b"x"}, r"value\['raw'\] is a bytes"),
        ({"x": float("nan")}, r"value\['x'\] is nan"),
        ({"x": float("-inf")}, r"value\['x'\] is -inf"),
        ({"x": {1: 2}}, r"value\['x'\] has the key 1, an int"),
        ({"x": 10**5000}, "4,300 digits"),
        ({"x": "\ud800"}, "surrogate"),
        ({"\udfff": 1}, "surrogate"),
        (["x"], "value is a list; an item's value is a dict"),
        ("text", "value is a str; an item's value is a dict"),
    ],
)
def test_what_does_not_come_back_is_refused_by_its_path(value: Any, named: str) -> None:
    with pytest.raises(Unserialisable, match=named):
        pack(value, "value")


def test_what_contains_itself_is_refused() -> None:
    value: dict[str, Any] = {}
    value["self"] = value
    with pytest.raises(Unserialisable, match="contains itself"):
        pack(value, "value")
    deep: dict[str, Any] = {}
    for _ in range(DEPTH - 1):
        deep = {"d": deep}
    assert unpack(pack(deep, "value"), "value") == deep


def test_a_body_of_another_form_is_refused() -> None:
    with pytest.raises(Corrupt, match="upgrade"):
        unpack(b"\x01vectors", "item 'k'")
    with pytest.raises(Corrupt, match="put it again"):
        unpack(b'{"cut', "item 'k'")
