"""Values of a graph as JSON: what has no form of its own in JSON gets the one that clients know."""

from __future__ import annotations

from decimal import Decimal

import pytest

from perdure.runtime.json_encoding import plain


@pytest.mark.parametrize(
    ("value", "expected"),
    [("12", 12), ("12.00", 12), ("1.5", 1.5), ("-0.25", -0.25), ("1E+3", 1000), ("NaN", None)],
)
def test_a_decimal_is_a_number(value: str, expected: float | None) -> None:
    assert plain({"price": [Decimal(value)]}) == {"price": [expected]}
