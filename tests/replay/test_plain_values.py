"""What counts as the same value in two runs."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, RemoveMessage
from langgraph.types import Interrupt, Overwrite, Send

from perdure.replay.plain_values import align, snapshot

ONE, TWO = "3f0c1a52-6d0f-4f0e-9a50-0d8f2f1f7c11", "9c7d9a30-0c27-4c07-8b02-8f0b5c2a4d52"


@pytest.mark.parametrize(
    ("expected", "found"),
    [
        (snapshot([AIMessage("a", id=ONE)]), snapshot([AIMessage("a", id="mine")])),
        ({"key": ONE}, {"key": TWO}),
        ({"key": f"run-{ONE}"}, {"key": f"run-{TWO}"}),
        ([{"at": "2026-01-01T10:00:00Z"}], [{"at": "2026-02-03T11:12:13.5+01:00"}]),
        (snapshot((Interrupt("Right?", id="a" * 32),)), snapshot((Interrupt("Right?", id="b" * 32),))),
    ],
)
def test_noise_is_replaced_by_what_was_recorded(expected: Any, found: Any) -> None:
    assert align(expected, found)[0] == expected


@pytest.mark.parametrize(
    ("expected", "found"),
    [
        (snapshot([AIMessage("a")]), snapshot([AIMessage("b")])),
        (snapshot([RemoveMessage(id=ONE)]), snapshot([RemoveMessage(id="other")])),
        ({"id": "ada"}, {"id": "bob"}),
        ({"key": ONE}, {"key": "none"}),
        ({"key": ONE}, {}),
        ([1, 2], [1]),
        ([1], [1, 2]),
        ({"n": 1}, {"n": 2}),
        (snapshot(Send("a", {"n": 1})), snapshot(Send("b", {"n": 1}))),
        (snapshot([1]), snapshot(Overwrite([1]))),
    ],
)
def test_what_differs_stays_different(expected: Any, found: Any) -> None:
    assert align(expected, found)[0] != expected


def test_a_snapshot_is_the_value_at_its_moment() -> None:
    value = {"list": [1]}
    taken = snapshot(value)
    value["list"].append(2)
    assert taken == {"list": [1]}
