"""Names of namespaces: as many as namespaces, in their order, one within another exactly as they are."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langgraph.store.base import MatchCondition
from langgraph.store.memory import _does_match

from perdure.model.records import ITEM, Record
from perdure.model.store_items import (
    LAST,
    MINUTE,
    Condition,
    common_prefix,
    expiry,
    is_over,
    labels_of,
    matches,
    name_after,
    name_of,
    postpone_expiry,
    span,
)

# Few characters, so that look-alikes are common: terminators, escapes, separators that others use.
CHARACTERS = st.sampled_from("\x00\x01\x02\x03\x04./*ab é\U0010ffff")
LABELS = st.text(CHARACTERS, max_size=4) | st.text(max_size=4).filter(
    lambda t: not any("\ud800" <= c <= "\udfff" for c in t)
)
NAMESPACES = st.lists(LABELS, max_size=4).map(tuple)


@given(NAMESPACES)
def test_a_name_is_read_back(labels: tuple[str, ...]) -> None:
    assert labels_of(name_of(labels)) == labels


@given(NAMESPACES, NAMESPACES)
def test_names_are_in_the_order_of_the_tuples(a: tuple[str, ...], b: tuple[str, ...]) -> None:
    assert (name_of(a) < name_of(b)) == (a < b)
    assert (name_of(a) == name_of(b)) == (a == b)


@given(NAMESPACES, NAMESPACES)
def test_a_name_begins_with_another_exactly_when_its_labels_do(
    a: tuple[str, ...], b: tuple[str, ...]
) -> None:
    assert name_of(a).startswith(name_of(b)) == (a[: len(b)] == b)


@given(NAMESPACES.filter(bool), NAMESPACES)
def test_the_name_after_parts_what_is_within_from_what_follows(
    a: tuple[str, ...], b: tuple[str, ...]
) -> None:
    within_or_before = b[: len(a)] == a or b < a
    assert (name_of(b) < name_after(a)) == within_or_before
    assert name_of(b) != name_after(a)


@given(NAMESPACES.filter(bool))
def test_a_name_ends_in_ascii_and_holds_no_nul(labels: tuple[str, ...]) -> None:
    assert name_of(labels)[-1].isascii()
    assert "\0" not in name_of(labels)


def test_names_that_are_known_are_never_changed() -> None:
    """Databases hold them: another spelling of a namespace would lose what is stored under this one."""
    assert name_of(("users", "ada", "memories")) == "users\x01ada\x01memories\x01"
    assert name_of(("\x00", "a\x01b\x02", "é")) == "\x02\x02\x01a\x02\x03b\x02\x04\x01é\x01"
    assert name_of(()) == ""


SOME = st.lists(st.sampled_from(["a", "b", "*"]), max_size=3).map(tuple)


@given(SOME, st.lists(st.tuples(st.sampled_from(["prefix", "suffix"]), SOME), max_size=3))
def test_conditions_match_as_in_the_stock_store(labels: tuple[str, ...], conditions: list[Any]) -> None:
    stock = all(_does_match(MatchCondition(kind, path), labels) for kind, path in conditions)
    ours = [Condition(kind, path) for kind, path in conditions]
    assert matches(labels, ours) == stock
    if stock:
        assert labels[: len(common_prefix(ours))] == common_prefix(ours)


def test_the_common_prefix_is_the_longest_one_without_a_wildcard() -> None:
    conditions = [
        Condition("prefix", ("a",)),
        Condition("prefix", ("a", "b", "*", "c")),
        Condition("suffix", ("x", "y", "z")),
    ]
    assert common_prefix(conditions) == ("a", "b")
    assert common_prefix([]) == ()
    assert common_prefix([Condition("prefix", ("*", "a"))]) == ()


def item(ttl: int | None, expires_at: int | None) -> Record:
    return Record(ITEM, ("k",), {"created_at": 1, "updated_at": 1, "ttl": ttl, "expires_at": expires_at})


def test_an_item_is_over_at_its_end_and_not_before() -> None:
    assert not is_over(item(5, 10), 9)
    assert is_over(item(5, 10), 10)
    assert not is_over(item(None, None), LAST)


def test_reading_moves_the_end_on_and_never_back() -> None:
    assert postpone_expiry(item(5, 10), 8) == 13
    assert postpone_expiry(item(5, 10), 5) is None
    assert postpone_expiry(item(5, 10), 2) is None, "a clock that is behind took time away"
    assert postpone_expiry(item(None, None), 8) is None


def test_spans_are_minutes_above_none() -> None:
    assert span(1) == MINUTE
    assert span(0.5) == MINUTE // 2
    assert span(1e-12) == 1
    assert span(1e300) == LAST
    assert span(1e308) == LAST
    assert expiry(span(1e300), 5) == LAST
    assert expiry(None, 5) is None
    for wrong in (0, -1, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="minutes"):
            span(wrong)
