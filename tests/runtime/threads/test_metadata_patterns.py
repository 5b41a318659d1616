"""Metadata that matches holds a pattern of each group, so that no thread is left out by its copy alone."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from perdure.model.runs.messages import encode
from perdure.runtime.threads.index import contains
from perdure.runtime.threads.metadata_patterns import MOST, Patterns, any_of, patterns_of

NAMES = st.sampled_from(["a", "b", 'a "quoted" name', "ä", "line\nend", ""]) | st.text(max_size=3)
NUMBERS = st.sampled_from(
    [0, -0.0, 1, 1.0, True, 7, 7.0, -7, 77, 1.5, 1e15, 10**15, 1e16, 10**16, 2**60, 1e300]
)
LEAVES = (
    NUMBERS
    | st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=4)
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)


def holds(patterns: Patterns, metadata: Any) -> bool:
    body = encode({"metadata": metadata}, "document")
    return all(any(pattern in body for pattern in group) for group in patterns)


def part_of(value: Any, draw: Any) -> Any:
    """A part that a value contains, in another form of its numbers."""
    match value:
        case dict():
            return {name: part_of(each, draw) for name, each in value.items() if draw(st.booleans())}
        case list():
            return [part_of(each, draw) for each in reversed(value) if draw(st.booleans())]
        case int() | float() if not isinstance(value, bool) and draw(st.booleans()):
            other = int(value) if isinstance(value, float) else float(value)
            return other if other == value else value
        case _:
            return value


@given(st.dictionaries(NAMES, VALUES, max_size=4), st.data())
def test_what_contains_a_part_holds_its_patterns(whole: dict[str, Any], data: st.DataObject) -> None:
    part = part_of(whole, data.draw)
    assume(contains(whole, part))
    assert holds(patterns_of(part), whole)


@pytest.mark.parametrize(
    ("part", "other"),
    [
        ({"owner": "ada"}, {"owner": "bea"}),
        ({"owner": "ada"}, {"name": "ada"}),
        ({"n": 7}, {"n": 8}),
        ({"n": 7}, {"m": 7}),
        ({"on": True}, {"on": False}),
        ({"no": None}, {"no": 0}),
        ({"tags": ["x"]}, {"tags": ["y"]}),
        ({"tags": ["x"]}, {"tags": "x"}),
        ({"of": {"team": "red"}}, {"of": {"team": "blue"}}),
    ],
)
def test_what_differs_is_left_out(part: dict[str, Any], other: dict[str, Any]) -> None:
    assert not holds(patterns_of(part), other)


def test_one_of_several_alternatives_is_enough() -> None:
    patterns = any_of([patterns_of({"owner": "ada"}), patterns_of({"people": ["ada"]})])
    assert holds(patterns, {"owner": "ada"})
    assert holds(patterns, {"people": ["bea", "ada"]})
    assert not holds(patterns, {"owner": "bea"})
    # Any metadata may match an alternative without a pattern, and a request has no more than a few of them.
    assert any_of([patterns_of({"owner": "ada"}), ()]) == ()
    assert any_of([patterns_of({"owner": str(n)}) for n in range(MOST + 1)]) == ()


def test_long_text_is_cut() -> None:
    text = "ü" * 5000
    (group,) = patterns_of({"text": text})
    assert all(len(pattern) < 1000 for pattern in group)
    assert holds((group,), {"text": text})
