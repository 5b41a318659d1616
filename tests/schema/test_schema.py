"""Schemas: what they refuse when they are made, and what their steps do to names.

Covers perdure.schema.changes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from perdure.schema import Schema, convert, drop, rename_channel, rename_node, rename_type


def same(value: Any) -> Any:
    return value


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: rename_channel(1, "a", "b"), "from 2 on"),
        (lambda: rename_channel(2, "a", "a"), "itself"),
        (lambda: rename_channel(2, "", "a"), "is text"),
        (lambda: rename_channel(2, "branch:to:a", "b"), "LangGraph's own"),
        (lambda: drop(2, "__start__"), "LangGraph's own"),
        (lambda: rename_node(2, "a", "b:c"), "separate the names"),
        (lambda: rename_node(2, "__start__", "b"), "LangGraph's own"),
        (lambda: rename_type(2, "Old", "app.New"), "names no type"),
        (lambda: Schema(0), "whole number from 1"),
        (lambda: Schema(2, [drop(3, "a")]), "of a later version than the schema"),
        (lambda: Schema(3, [drop(3, "a"), drop(2, "b")]), "order of versions"),
        (
            lambda: Schema(3, [rename_channel(2, "a", "b"), convert(3, "a", same)]),
            "which rename_channel",
        ),
        (lambda: Schema(3, [drop(2, "a"), rename_channel(3, "a", "b")]), "which drop"),
        (lambda: Schema(3, [convert(2, "b", same), rename_channel(3, "a", "b")]), "refers to"),
        (lambda: Schema(2, [rename_node(2, "a", "b"), rename_node(2, "c", "b")]), "refers to"),
        (lambda: Schema(3, [rename_type(2, "m.A", "m.B"), rename_type(3, "m.C", "m.A")]), "refers to"),
        (lambda: Schema(2).at(3), "versions 1 to 2"),
    ],
)
def test_a_step_that_cannot_be_applied_is_refused_when_it_is_made(make: Callable[[], Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        make()


def test_what_is_no_step_is_refused() -> None:
    with pytest.raises(TypeError, match="is not a step"):
        Schema(2, ["rename"])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="function of the value"):
        convert(2, "a", 3)  # type: ignore[arg-type]


def test_names_are_followed_through_all_steps() -> None:
    schema = Schema(
        4,
        [
            rename_channel(2, "a", "b"),
            rename_node(2, "ask", "question"),
            convert(3, "b", same),
            rename_channel(3, "b", "c"),
            rename_node(3, "question", "clarify"),
            drop(4, "x"),
            rename_channel(4, "y", "x"),
        ],
    )
    all_steps = schema.since(1)
    assert [all_steps.rename_channel(name) for name in ("a", "c", "x", "y", "z")] == [
        "c",
        "c",
        None,
        "x",
        "z",
    ]
    assert [str(step) for step in all_steps.conversions("a")] == ["convert(3, 'b')"]
    assert all_steps.rename_channel("branch:to:ask") == "branch:to:clarify"
    assert all_steps.rename_channel("join:ask+other:ask") == "join:clarify+other:clarify"
    assert [all_steps.find_former_name(name) for name in ("c", "b", "x", "z")] == ["a", None, "y", "z"]
    late = schema.since(3)
    assert late.rename_channel("a") == "a"
    assert late.rename_channel("x") is None
    assert not late.affects("c")
    assert not schema.since(4).steps
    assert schema.at(2).version == 2
    assert len(schema.at(2).steps) == 2


def test_channels_can_swap_their_names() -> None:
    swap = [rename_channel(2, "a", "t"), rename_channel(2, "b", "a"), rename_channel(2, "t", "b")]
    changes = Schema(2, swap).since(1)
    assert (changes.rename_channel("a"), changes.rename_channel("b")) == ("b", "a")
    assert (changes.find_former_name("a"), changes.find_former_name("b")) == ("b", "a")


def test_every_earlier_name_of_a_type_leads_to_the_present_one() -> None:
    schema = Schema(3, [rename_type(2, "m.A", "m.B"), rename_type(3, "m.B", "n.C")])
    assert schema.types == {"m.A": "n.C", "m.B": "n.C"}
