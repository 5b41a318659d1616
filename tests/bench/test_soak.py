"""What the soak finds wrong with a thread."""

from __future__ import annotations

import pytest

from bench.soak import audit

WHOLE = [("human", "a"), ("ai", "1"), ("human", "b"), ("ai", "2")]


@pytest.mark.parametrize(
    ("stored", "lost", "twice"),
    [
        (WHOLE, [], []),
        ([*WHOLE, ("human", "not answered yet")], [], []),
        (WHOLE[:2], ["b"], []),
        (WHOLE[2:], ["a"], []),
        (WHOLE[:3], ["b"], []),
        ([*WHOLE, *WHOLE[2:]], [], ["b"]),
        ([*WHOLE[2:], *WHOLE[:2]], ["a", "b"], []),
    ],
)
def test_what_is_lost_or_there_twice_is_found(
    stored: list[tuple[str, str]], lost: list[str], twice: list[str]
) -> None:
    assert audit(["a", "b"], stored) == (lost, twice)
