"""What the demo's model is shown of a long conversation."""

from __future__ import annotations

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage

from perdure.demo.agent import INSTRUCTIONS, estimate_tokens, prompt
from tests.demo.staging import run, stage


def conversation(turns: int, size: int) -> list[AnyMessage]:
    messages: list[AnyMessage] = []
    for turn in range(turns):
        messages += [HumanMessage(f"{turn} " + "a" * size), AIMessage(f"{turn} " + "b" * size)]
    return [*messages, HumanMessage("the question")]


@pytest.mark.parametrize("turns", [0, 1, 3, 60])
@pytest.mark.parametrize("size", [1, 80, 700])
def test_the_latest_turns_that_fit_are_shown(turns: int, size: int) -> None:
    shown = prompt(conversation(turns, size), 600)
    assert shown[0] == SystemMessage(INSTRUCTIONS)
    assert isinstance(shown[1], HumanMessage)
    assert shown[-1].text == "the question"
    assert estimate_tokens(shown) <= 600
    assert shown[1:] == conversation(turns, size)[1 - len(shown) :]


@pytest.mark.parametrize("letter", ["x", "é", "語", "🦊"])
def test_a_question_too_long_by_itself_is_shown_from_its_end(letter: str) -> None:
    shown = prompt([HumanMessage(letter * 8_000 + "?")], 300)
    assert [type(message) for message in shown] == [SystemMessage, HumanMessage]
    assert shown[1].text.endswith(letter + "?")
    assert 250 < estimate_tokens(shown) <= 300


def test_the_thread_keeps_what_the_model_is_not_shown() -> None:
    async def scenario() -> None:
        async with stage() as demo:
            for turn in range(12):
                await demo.say("t", f"turn {turn} " + "words " * 60)
            shown = await demo.kept("t")
            assert [text.split(" words")[0] for text in shown[::2]] == [f"turn {turn}" for turn in range(12)]
            assert len(demo.model.prompts[-1]) < len(shown)
            assert estimate_tokens(demo.model.prompts[-1]) <= 500

    run(scenario)
