"""What an item may hold, how it is stored, and that everything else is refused by name."""

from __future__ import annotations

from collections import OrderedDict, UserDict
from datetime import UTC, datetime
from enum import IntEnum, StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import Corrupt, Unserialisable
from perdure.model.json_values import DEPTH, pack, unpack

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
