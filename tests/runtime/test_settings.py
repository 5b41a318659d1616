"""Covers perdure.runtime.settings."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.model.limits import SharedLimit
from perdure.runtime import Settings


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ({"version": 5}, TypeError, "version is text, not int"),
        ({"lease": "30"}, TypeError, "lease is a number, not str"),
        ({"lease": None}, TypeError, "lease is a number, not NoneType"),
        ({"lease": 1e15}, ValueError, "lease is .* s; it has to be a number of seconds up to 3,162,240,000"),
        ({"deadline": float("inf")}, ValueError, "deadline is inf s; it has to be a number of seconds"),
        ({"attempts": 1.5}, TypeError, r"attempts is a whole number, not 1\.5"),
        ({"per_tenant": "2"}, TypeError, "per_tenant is a whole number, not '2'"),
        ({"limits": 5}, TypeError, "limits is a mapping, not int"),
        ({"limits": {"a": 5}}, TypeError, r"the limit 'a' is SharedLimit\(…\), not int"),
    ],
)
def test_a_setting_of_another_type_is_named(given: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        Settings(**given)


def test_a_rate_that_is_too_high_is_said_to_be() -> None:
    with pytest.raises(ValueError, match="rate is a number above 0, and at most 1e12, not 10000") as refused:
        SharedLimit(rate=10**30)
    assert len(str(refused.value)) < 120
