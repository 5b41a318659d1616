"""The policy: what leaves the window is found, once, and in time."""

from __future__ import annotations

import asyncio

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

from perdure.conversation import Conversation, Limit, Summary
from perdure.conversation.policy import find_uncovered
from perdure.conversation.summary import Leaving


def turns(*numbers: int) -> list[BaseMessage]:
    return [
        message
        for n in numbers
        for message in (HumanMessage("x" * 40, id=f"h{n}"), AIMessage("y" * 40, id=f"a{n}"))
    ]


def named(messages: list[BaseMessage]) -> list[str | None]:
    return [message.id for message in messages]


POLICY = Conversation(limit=Limit(300, summary=100), summarize=lambda summary, messages: "short")


def test_a_summary_is_asked_for_before_the_window_moves() -> None:
    whole = turns(*range(6))
    assert POLICY.window(whole).left_out == []
    leaving = POLICY.to_fold(whole, None)
    assert leaving is not None
    assert named(leaving.messages) == ["h0", "a0", "h1", "a1", "h2", "a2"]
    summary = asyncio.run(POLICY.fold(None, leaving))
    assert summary == Summary("short", "a2")
    assert named(POLICY.window(whole, summary=summary).messages)[1:] == named(turns(3, 4, 5))
    assert POLICY.to_fold(whole, summary) is None


def test_what_a_thread_holds_unsummarised_comes_first() -> None:
    summary = Summary("", None, tuple(turns(0)))
    leaving = POLICY.to_fold(turns(1, 2), summary)
    assert leaving is not None
    assert named(leaving.messages) == ["h0", "a0"]


def test_without_a_summary_nothing_is_folded() -> None:
    policy = Conversation(limit=100)
    assert policy.to_fold(turns(*range(9)), None) is None
    assert policy.bounds.summary == 0
    with pytest.raises(ValueError, match="has no summarize"):
        asyncio.run(policy.fold(None, Leaving(turns(1))))


def test_a_summary_has_room_unless_it_is_given_one() -> None:
    assert Conversation(limit=800, summarize=lambda summary, messages: "x").bounds.summary == 100


def test_what_follows_a_summary() -> None:
    assert named(find_uncovered(turns(1, 2), Summary("x", "a1"))) == ["h2", "a2"]
    assert named(find_uncovered(turns(1), Summary("x", "gone"))) == ["h1", "a1"]
    assert named(find_uncovered(turns(1), None)) == ["h1", "a1"]


def test_the_question_of_a_long_turn_is_summarised_when_it_leaves() -> None:
    summary = Summary("x", "a1", keeps=("h1",))
    assert named(find_uncovered(turns(1, 2), summary)) == ["h1", "h2", "a2"]
