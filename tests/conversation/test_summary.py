"""Running summaries: made by any callable, checked, and kept in a message of the thread."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any

import pytest
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from perdure.conversation import SUMMARY_PROMPT, ModelSummarizer, Summary
from perdure.conversation.counting import approximate
from perdure.conversation.summary import Leaving, fold_summary, fold_summary_sync, transcript
from perdure.errors import SummaryRefused
from tests.conversation.models import Scripted

TALK = [HumanMessage("My name is Ada.", id="h1"), AIMessage("Hello Ada.", id="a1")]


def fold(summarize: Any, summary: Summary | None = None, messages: Sequence[BaseMessage] = TALK) -> Summary:
    return asyncio.run(fold_summary(summary, Leaving(list(messages)), summarize, most=200))


def test_a_summary_survives_in_its_message() -> None:
    summary = Summary("Ada likes\nrivers.", "a1", (HumanMessage("more", id="h2"),))
    message = summary.message()
    assert Summary.of([*TALK, message]) == summary
    assert "<summary>\nAda likes\nrivers.\n</summary>" in message.text
    assert "more" not in message.text
    assert Summary.of(TALK) is None


def test_nothing_summarised_yet_is_stated() -> None:
    pending = Summary("", None, tuple(TALK))
    assert "not summarised yet" in pending.message().text
    assert Summary.of([pending.message()]) == pending


def test_a_model_gets_the_prompt_with_summary_and_messages() -> None:
    model = Scripted(answers=[AIMessage(" She is Ada. ")])
    made = fold(ModelSummarizer(model), Summary("They met.", "a0"))
    assert made == Summary("She is Ada.", "a1")
    (request,) = model.sent[0]
    words = re.search(r"at most (\d+) words", request.text)
    assert words is not None
    assert 20 < int(words[1]) < 100
    prompt = SUMMARY_PROMPT.replace("{words}", words[1]).replace("{summary}", "They met.")
    assert request.content == prompt.replace("{messages}", "User: My name is Ada.\nAssistant: Hello Ada.")


def test_many_messages_are_summarised_in_pieces() -> None:
    model = Scripted(answers=[AIMessage("one"), AIMessage("two")])
    assert fold(ModelSummarizer(model, piece=8)).text == "two"
    assert "Ada." in model.sent[0][0].text
    assert "<summary>\none\n</summary>" in model.sent[1][0].text


def test_braces_in_texts_are_left_alone() -> None:
    model = Scripted()
    fold(ModelSummarizer(model), Summary("{messages} {x}", "a0"), [HumanMessage("{summary}", id="h")])
    assert "<summary>\n{messages} {x}\n</summary>" in model.sent[0][0].text
    assert "User: {summary}" in model.sent[0][0].text


def test_any_function_makes_summaries() -> None:
    async def later(summary: str, messages: Sequence[BaseMessage]) -> str:
        return f"{summary}+{len(messages)}"

    assert fold(lambda summary, messages: f"{summary}+{len(messages)}").text == "+2"
    assert fold(later, Summary("a", "x")).text == "a+2"


LONG = " ".join(f"They spoke of boat {number}." for number in range(100))


def test_a_summary_that_is_too_long_is_shortened_by_one_more_request() -> None:
    model = Scripted(answers=[AIMessage(LONG), AIMessage("They spoke of boats.")])
    made = fold(ModelSummarizer(model))
    assert (made.text, made.shortened, len(model.sent)) == ("They spoke of boats.", "asked", 2)
    assert LONG in model.sent[1][0].text
    assert "is too long. Shorten it to at most" in model.sent[1][0].text


@pytest.mark.parametrize("is_sync", [False, True])
def test_a_model_that_never_keeps_to_the_length_is_asked_twice_and_then_cut(is_sync: bool) -> None:
    model = Scripted(answers=[AIMessage(LONG)])
    leaving = Leaving(list(TALK))
    made = (
        fold_summary_sync(None, leaving, ModelSummarizer(model), most=200)
        if is_sync
        else asyncio.run(fold_summary(None, leaving, ModelSummarizer(model), most=200))
    )
    assert len(model.sent) == 2
    assert made.shortened == "cut"
    assert made.text.startswith("… They spoke of boat ")
    assert made.text.endswith("They spoke of boat 99.")
    assert 150 < approximate([made.message()]) <= 200


def test_what_a_function_made_too_long_is_cut() -> None:
    made = fold(lambda summary, messages: "x" * 5_000)
    assert made.shortened == "cut"
    assert approximate([made.message()]) <= 200


def test_without_room_for_a_word_a_summary_is_refused() -> None:
    with pytest.raises(SummaryRefused, match="none for its text; raise Limit"):
        asyncio.run(fold_summary(None, Leaving(list(TALK)), lambda summary, messages: "x", most=20))


@pytest.mark.parametrize("nonsense", ["", " \n", None, {"text": "x"}])
def test_nonsense_is_refused(nonsense: Any) -> None:
    with pytest.raises(SummaryRefused):
        fold(lambda summary, messages: nonsense)


def test_what_it_covers_has_to_have_an_id() -> None:
    with pytest.raises(SummaryRefused, match="has no id"):
        fold(lambda summary, messages: "x", messages=[HumanMessage("x")])


@pytest.mark.parametrize("prompt", ["", "{summary}", "{messages} then {summary}"])
def test_a_prompt_that_lacks_its_places_is_refused(prompt: str) -> None:
    with pytest.raises(ValueError, match="has to contain"):
        ModelSummarizer(FakeListChatModel(responses=["x"]), prompt=prompt)


def test_a_transcript_has_calls_results_and_what_is_no_text() -> None:
    call = {"name": "look", "args": {"at": "Grüße"}, "id": "1"}
    messages = [
        HumanMessage(
            [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "data:,"}}]
        ),
        AIMessage("", tool_calls=[call]),
        ToolMessage("seen", tool_call_id="1", name="look"),
    ]
    assert transcript(messages).splitlines() == [
        "User: see",
        "User: [image_url]",
        'Assistant calls look({"at": "Grüße"})',
        "Tool look: seen",
    ]
