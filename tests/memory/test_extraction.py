"""Extraction: the prompt, and answers of which nonsense is refused as a whole."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage

from perdure.errors import ExtractionRefused
from perdure.memory import ExtractedFact, ExtractionRequest, Fact, ModelExtractor
from perdure.memory.extraction import extract_facts, fill, parse_facts
from tests.conversation.models import Scripted

KNOWN = [
    Fact(id="a", text="Lives in Lisbon.", known_from=datetime(2026, 1, 1, tzinfo=UTC)),
    Fact(id="b", text="Has </facts> a cat.", known_from=datetime(2026, 1, 2, tzinfo=UTC)),
]


def answer(*facts: Any) -> str:
    return json.dumps({"facts": list(facts)})


def test_a_model_sees_the_known_facts_and_its_answer_is_read() -> None:
    reply = answer({"text": " Lives in Porto. ", "replaces": [1], "since": "2026-05-01"}, {"text": "Sings."})
    model = Scripted(answers=[AIMessage(reply)])
    request = ExtractionRequest("User: I moved to Porto", KNOWN)
    found = asyncio.run(extract_facts(ModelExtractor(model), request))
    assert found == [
        ExtractedFact("Lives in Porto.", ("a",), datetime(2026, 5, 1, tzinfo=UTC)),
        ExtractedFact("Sings."),
    ]
    ((prompt,),) = model.sent
    assert "1. Lives in Lisbon.\n2. Has &lt;/facts&gt; a cat.\n" in prompt.text
    assert "User: I moved to Porto" in prompt.text
    assert datetime.now(UTC).date().isoformat() in prompt.text


def test_half_of_a_character_in_a_fact_is_replaced() -> None:
    model = Scripted(answers=[AIMessage(answer({"text": "Likes \ud83d"}))])
    request = ExtractionRequest("User: I like pizza", ())
    assert asyncio.run(extract_facts(ModelExtractor(model), request)) == [ExtractedFact("Likes \ufffd")]


def test_an_answer_in_a_block_of_markdown_is_read() -> None:
    assert parse_facts(f"```json\n{answer({'text': 'Sings.'})}\n```", []) == [ExtractedFact("Sings.")]
    assert parse_facts(answer(), []) == []


@pytest.mark.parametrize(
    "text",
    [
        "I found no facts.",
        "",
        "[" * 100_000,
        "[]",
        "{}",
        '{"facts": "none"}',
        '{"facts": [1]}',
        answer({"text": ""}),
        answer({"text": "x" * 2001}),
        answer({"text": "Sings.", "replaces": [0]}),
        answer({"text": "Sings.", "replaces": [3]}),
        answer({"text": "Sings.", "replaces": [True]}),
        answer({"text": "Sings.", "replaces": "1"}),
        answer({"text": "Sings.", "since": "last May"}),
        answer({"text": "Sings.", "since": 5}),
        answer(*({"text": f"Fact {number}."} for number in range(51))),
    ],
)
def test_nonsense_is_refused_as_a_whole_and_not_repeated(text: str) -> None:
    with pytest.raises(ExtractionRefused) as refused:
        parse_facts(text, KNOWN)
    assert "Sings" not in str(refused.value)
    assert "nothing of it was remembered" in str(refused.value)


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(st.sampled_from(["facts", "text", "replaces", "since"]) | st.text(), inner)
        ),
    )
)
def test_any_json_is_read_or_refused(value: Any) -> None:
    try:
        found = parse_facts(json.dumps(value), KNOWN)
    except ExtractionRefused:
        return
    assert all(0 < len(fact.text) <= 2000 for fact in found)


def test_what_is_filled_in_is_not_looked_at_for_slots() -> None:
    assert fill("{a}-{b}", {"{a}": "{b}", "{b}": "{a}"}) == "{b}-{a}"


def test_a_prompt_without_its_slots_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\{facts\} and \{messages\}"):
        ModelExtractor(Scripted(), prompt="Find facts.")


def test_an_extractor_may_be_a_plain_function_and_has_to_return_facts() -> None:
    request = ExtractionRequest("User: Hello", [])
    assert asyncio.run(extract_facts(lambda asked: [ExtractedFact(asked.messages)], request)) == [
        ExtractedFact("User: Hello")
    ]
    with pytest.raises(ExtractionRefused, match="list of ExtractedFact"):
        asyncio.run(extract_facts(lambda asked: ["Hello"], request))  # type: ignore[list-item]


@pytest.mark.parametrize(
    "fact",
    [
        ExtractedFact(" "),
        ExtractedFact("Sings.", (), datetime(2026, 1, 1)),
        ExtractedFact("Sings.", (), datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=5)))),
    ],
)
def test_one_fact_that_cannot_be_remembered_refuses_all_before_the_first_is_stored(
    fact: ExtractedFact,
) -> None:
    with pytest.raises(ExtractionRefused, match="nothing was remembered"):
        asyncio.run(extract_facts(lambda _: [ExtractedFact("Fine."), fact], ExtractionRequest("", [])))
