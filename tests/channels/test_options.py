"""Options of channels."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.channels import ChatOptions


@pytest.mark.parametrize(
    "wrong",
    [
        {"groups": "some"},
        {"edits": "keep"},
        {"debounce": -1.0},
        {"max_wait": float("nan")},
        {"debounce": float("inf")},
        {"body_bytes": 0},
        {"allowed": "123"},
    ],
)
def test_an_option_out_of_range_is_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        ChatOptions(**wrong)


def test_without_a_list_everybody_is_served() -> None:
    assert ChatOptions().serves("1", "2")
    chosen = ChatOptions(allowed=("1",))
    assert chosen.serves("1", "2")
    assert chosen.serves("2", "1")
    assert not chosen.serves("2", "3")
