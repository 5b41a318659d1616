"""Policy of a memory: its user, and settings that cannot work."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.memory import MemoryPolicy, verified_user


@pytest.mark.parametrize(
    ("configurable", "user"),
    [
        ({"langgraph_auth_user": {"identity": "ada"}}, "ada"),
        ({"langgraph_auth_user": {"identity": ""}}, None),
        ({"langgraph_auth_user": "ada"}, None),
        ({"user_id": "ada"}, None),
        ({}, None),
    ],
)
def test_the_verified_user_is_the_default(configurable: dict[str, Any], user: str | None) -> None:
    assert verified_user(configurable) == user
    assert MemoryPolicy().user_of(configurable) == user


def test_the_user_may_be_fixed_or_read_from_the_config() -> None:
    assert MemoryPolicy(user="me").user_of({"langgraph_auth_user": {"identity": "ada"}}) == "me"
    assert MemoryPolicy(user=lambda configurable: configurable["who"]).user_of({"who": "bob"}) == "bob"


@pytest.mark.parametrize(
    "given",
    [
        {"user": ""},
        {"nearest": -1},
        {"newest": -1},
        {"known": -1},
        {"tokens": 0},
        {"debounce": -1.0},
        {"max_wait": float("nan")},
        {"root": ()},
        {"root": ("",)},
    ],
)
def test_a_setting_that_cannot_work_is_named(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(given))):
        MemoryPolicy(**given)
