"""Values of a graph as JSON: what has no form of its own in JSON gets the one that clients know."""

from __future__ import annotations

from decimal import Decimal

import pytest

from perdure.runtime.json_encoding import to_plain


@pytest.mark.parametrize(
    ("value", "expected"),
    [("12", 12), ("12.00", 12), ("1.5", 1.5), ("-0.25", -0.25), ("1E+3", 1000), ("NaN", None)],
)
def test_a_decimal_is_a_number(value: str, expected: float | None) -> None:
    assert to_plain({"price": [Decimal(value)]}) == {"price": [expected]}


@pytest.mark.parametrize("is_list", [True, False])
def test_of_a_value_that_is_nested_too_deep_the_outer_part_is_shown(is_list: bool) -> None:
    value: object = "core"
    for _ in range(5000):
        value = [value] if is_list else {"a": value}
    shown = to_plain({"deep": value, "n": 1})
    assert shown["n"] == 1
    held = shown["deep"]
    while not isinstance(held, str):
        (held,) = held if isinstance(held, list) else held.values()
    assert held == "(nested deeper than 200 levels)"
