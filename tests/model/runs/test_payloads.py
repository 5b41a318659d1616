"""Which inputs one run takes together: none of which a value would be lost."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.model.runs.messages import Message, select_batch
from perdure.model.runs.payloads import INPUT, MESSAGE, can_be_joined

WHOLE: list[tuple[Any, Any, bool]] = [
    ({"messages": ["a"]}, {"messages": ["b"]}, True),
    ({"messages": ["a"]}, {"other": 1}, True),
    ({"messages": ["a"], "lang": "en"}, {"messages": ["b"], "lang": "en"}, True),
    ({"messages": ["a"], "lang": "en"}, {"messages": ["b"], "lang": "de"}, False),
    ({"messages": ["a"], "on": True}, {"messages": ["b"], "on": True}, True),
    ({"messages": ["a"], "on": True}, {"messages": ["b"], "on": 1}, False),
    ({"messages": ["a"]}, {"messages": {"role": "user", "content": "b"}}, False),
    ({"messages": {"content": "a"}}, {"messages": {"content": "a"}}, False),
    ({"messages": "yes"}, {"messages": "yes"}, False),
    ({"total": 1}, {"total": 1}, False),
    (["a"], ["b"], True),
    ("a", "a", False),
    ({}, {}, True),
    ({}, None, False),
]


@pytest.mark.parametrize(("one", "other", "are_joined"), WHOLE)
def test_inputs_are_joined_if_nothing_of_them_is_lost(one: Any, other: Any, are_joined: bool) -> None:
    assert can_be_joined([{"input": one}], {"input": other}) is are_joined
    assert can_be_joined([{"input": other}], {"input": one}) is are_joined


def test_an_input_is_compared_with_all_before_it() -> None:
    payloads = [{"input": {"total": 1}}, {"input": {"messages": ["a"]}}]
    assert can_be_joined(payloads, {"input": {"messages": ["b"]}})
    assert not can_be_joined(payloads, {"input": {"total": 1}})


@pytest.mark.parametrize("kind", ["command", "resume"])
def test_a_command_is_a_run_of_its_own(kind: str) -> None:
    waiting = [
        Message(str(n), {kind: {"update": {"n": n}}}, "agent", mode="coalesce", seq=n) for n in (1, 2, 3)
    ]
    assert select_batch(waiting, 50) == waiting[:1]


@pytest.mark.parametrize(
    "removal",
    [
        {"type": "remove", "id": "m0"},
        {"role": "remove", "id": "m0"},
        {"lc": 1, "type": "constructor", "id": ["langchain", "messages", "RemoveMessage"], "kwargs": {}},
        ["remove", "m0"],
    ],
    ids=str,
)
def test_what_removes_messages_is_joined_with_nothing(removal: Any) -> None:
    said = {"role": "user", "content": "hello", "id": "m0"}
    for one, other in ((removal, said), (said, removal), (removal, removal)):
        assert not can_be_joined([{INPUT: {"messages": [one]}}], {INPUT: {"messages": [other]}})
        assert not can_be_joined([{INPUT: {"messages": one}}], {INPUT: {"messages": [other]}})
    if isinstance(removal, dict):
        assert not can_be_joined([{MESSAGE: said}], {MESSAGE: removal})
    assert can_be_joined([{INPUT: {"messages": [said]}}], {INPUT: {"messages": [said]}})
