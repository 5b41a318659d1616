"""The demo's graph: its steps, and what its model is shown of a long conversation."""

from __future__ import annotations

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage

from perdure.demo.agent import (
    INSTRUCTIONS,
    PARTS_MAX,
    UNPLANNED,
    asks_for_much,
    estimate_tokens,
    parse_titles,
    prompt,
)
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


@pytest.mark.parametrize(
    ("text", "is_much"),
    [
        ("Tell me a long story about a lighthouse", True),
        ("Explain tides to a child", True),
        ("WRITE about my dog", True),
        ("hello", False),
        ("What is a good name for a cat?", False),
        ("My name is Ada. I live in Storyville and belong here.", False),
        ("", False),
    ],
)
def test_only_what_asks_for_much_is_answered_in_paragraphs(text: str, is_much: bool) -> None:
    assert asks_for_much(text) is is_much


@pytest.mark.parametrize(
    ("written", "titles"),
    [
        ("1. The keeper\n2. The storm", ["The keeper", "The storm"]),
        ('Sure:\n1) **The keeper** - a tale\n 2) "The storm": it is loud\n', ["The keeper", "The storm"]),
        ("- How does it move? It moves.\n* The moon (above)", ["How does it move?", "The moon"]),
        ("1. Same\n2. Same\n3. Other", ["Same", "Other"]),
        ("\n".join(f"{n}. Part {n}" for n in range(9)), [f"Part {n}" for n in range(PARTS_MAX)]),
        ("1. " + "x" * 500 + "\n2. y", ["x" * 60, "y"]),
        ("1. Only one", list(UNPLANNED)),
        ("Once upon a time", list(UNPLANNED)),
        ("1. \n2. **\n3. --", list(UNPLANNED)),
        ("", list(UNPLANNED)),
    ],
)
def test_an_outline_is_read_as_models_write_it(written: str, titles: list[str]) -> None:
    assert parse_titles(written) == titles


def test_a_long_answer_is_an_outline_and_then_a_paragraph_a_step() -> None:
    async def scenario() -> None:
        async with stage(words=("1. Dawn\n", "2. ", "Dusk")) as demo:
            told = await demo.say("t", "Tell me a story of a day")
            ended = [name for kind, data in told if kind == "updates" for name in data]
            assert ended == ["outline", "paragraph 1", "paragraph 2"]
            written = "1. Dawn\n2. Dusk"
            assert await demo.kept("t") == ["Tell me a story of a day", *[written] * 3]
            plan, first, second = demo.model.prompts
            assert plan[-1].text.startswith("Make a list of 4 things that belong into the answer to “Tell me")
            # The outline is a plan, and no part of what was written.
            assert [message.text for message in first[1:]] == [
                "Tell me a story of a day\n\nBegin with: Dawn. Write one short paragraph."
            ]
            assert [message.type for message in second] == ["system", "human", "ai", "human"]
            assert second[-1].text == "Go on with something new: Dusk. Write one short paragraph."
            await demo.say("t", "Thank you!")
            assert [message.type for message in demo.model.prompts[-1]] == ["system", "human", "ai", "human"]

    run(scenario)


def test_a_new_outline_replaces_the_one_before() -> None:
    async def scenario() -> None:
        async with stage(words=("1. A\n2. B\n3. C",)) as demo:
            await demo.say("t", "Tell me a story")
            demo.model.words = ("1. D\n2. E",)
            told = await demo.say("t", "Tell me a longer story")
            assert told[-1][1]["status"] == "success"
            assert len(await demo.kept("t")) == 5 + 4

    run(scenario)
