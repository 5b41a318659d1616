"""Differences of states: applied to the first they give the second, whatever the states are."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.inspector import diff
from perdure.inspector.diff import changes
from tests.inspector.applying import apply


def message(name: str | None, text: str) -> dict[str, Any]:
    return {
        "type": "langchain_core.messages.HumanMessage",
        "value": {"type": "human", "content": text, "id": name},
    }


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=6,
)
messages = st.builds(message, st.none() | st.sampled_from("abcdef"), st.sampled_from(["", "hello", "bye"]))
lists = st.lists(messages | plain, max_size=9)
states = st.dictionaries(st.sampled_from(["messages", "notes", "facts"]), lists | plain)


@given(states, states)
def test_the_changes_lead_to_the_second_state(before: dict[str, Any], after: dict[str, Any]) -> None:
    found = changes(before, after)
    made = apply(before, found)
    assert changes(made, after) == {}
    assert changes(after, made) == {}
    assert bool(found) == bool(changes(after, before))


@given(st.lists(st.integers(0, 30), unique=True, max_size=12), st.randoms())
def test_a_reordered_list_is_only_moved(names: list[int], chance: random.Random) -> None:
    before = [message(f"m{name}", str(name)) for name in names]
    after = before.copy()
    chance.shuffle(after)
    found = changes({"messages": before}, {"messages": after})
    if before != after:
        change = found["messages"]
        assert not change["added"]
        assert not change["removed"]
        assert not change["edited"]
        assert change["moved"]
        assert change["kept"] + len(change["moved"]) == len(before)
    assert apply({"messages": before}, found)["messages"] == after


def test_one_moved_message_is_one_change() -> None:
    before = [message(f"m{number}", "text") for number in range(6)]
    after = [*before[1:], before[0]]
    change = changes({"messages": before}, {"messages": after})["messages"]
    assert [(each["from"], each["to"]) for each in change["moved"]] == [(0, 5)]
    assert change["kept"] == 5


def test_each_kind_of_change_is_named() -> None:
    before = {
        "messages": [message("a", "one"), message("b", "two"), message("c", "three")],
        "facts": {"x": 1, "y": 2},
        "gone": 1,
        "same": [1],
    }
    after = {
        "messages": [message("a", "one"), message("c", "3"), message("d", "four")],
        "facts": {"y": 3, "z": 4},
        "new": 2,
        "same": [1],
    }
    found = changes(before, after)
    assert set(found) == {"messages", "facts", "gone", "new"}
    assert found["messages"]["removed"] == [{"index": 1, "item": message("b", "two")}]
    assert found["messages"]["added"] == [{"index": 2, "item": message("d", "four")}]
    assert found["messages"]["edited"] == [
        {"from": 2, "to": 1, "before": message("c", "three"), "after": message("c", "3")}
    ]
    assert found["messages"]["moved"] == []
    assert found["messages"]["kept"] == 1
    assert found["facts"] == {
        "change": "dict",
        "added": {"z": 4},
        "removed": {"x": 1},
        "edited": {"y": {"before": 2, "after": 3}},
    }
    assert found["gone"] == {"change": "removed", "before": 1}
    assert found["new"] == {"change": "added", "after": 2}


@pytest.mark.parametrize("value", ["\ud800", 1 << 70, [{"id": "\udfff"}], True, 1.0])
def test_values_that_strict_json_refuses_are_compared(value: Any) -> None:
    assert changes({"a": value}, {"a": value}) == {}
    assert apply({"a": 1}, changes({"a": 1}, {"a": value}))["a"] == value


def test_each_item_of_long_lists_is_read_a_constant_number_of_times(monkeypatch: pytest.MonkeyPatch) -> None:
    before = [message(f"m{number}", "x" * 400) for number in range(2000)]
    after = [message(f"m{n}", "y" * 400) if n % 7 == 0 else before[n] for n in reversed(range(2000))]
    read = 0
    own = diff.canonical

    def counted(value: Any) -> bytes:
        nonlocal read
        read += 1
        return own(value)

    monkeypatch.setattr(diff, "canonical", counted)
    change = diff.changes({"messages": before}, {"messages": after})["messages"]
    assert read <= 2 * 2000 + 2
    assert len(change["edited"]) == 286
    assert change["kept"] == 1
