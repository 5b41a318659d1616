"""A model is given the history as the policies of its tags have it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from perdure.history import NeutralMessage, rebuild, tag_by_prefix

HISTORY: list[dict[str, Any]] = [
    {"role": "user", "content": "q1"},
    {"role": "assistant", "content": "draft"},
    {"role": "assistant", "content": "Feedback: short", "tags": ["evaluator"]},
    {"role": "assistant", "content": "Feedback: vague", "tags": ["note", "evaluator"]},
    {"role": "assistant", "content": "a1"},
    {"role": "assistant", "content": "Feedback: good", "tags": ["evaluator"]},
]


def texts(policies: Any) -> list[Any]:
    return [message.content for message in rebuild(HISTORY, policies)]


def joined(messages: Sequence[NeutralMessage]) -> dict[str, str] | None:
    return {"role": "system", "content": "+".join(str(m["content"])[10:] for m in messages)}


def test_tagged_messages_are_kept_dropped_or_summarised_in_their_place() -> None:
    assert texts({}) == texts({"evaluator": "keep"}) == [m["content"] for m in HISTORY]
    assert texts({"evaluator": "drop"}) == ["q1", "draft", "a1"]
    assert texts({"evaluator": joined}) == ["q1", "draft", "short+vague", "a1", "good"]
    assert texts({"evaluator": lambda _: None}) == ["q1", "draft", "a1"]
    assert texts({"note": "keep", "evaluator": "drop"}) == ["q1", "draft", "Feedback: vague", "a1"]


def test_a_policy_is_one_of_three() -> None:
    with pytest.raises(ValueError, match="'evaluator'"):
        texts({"evaluator": "summarise"})


def test_tags_are_read_from_how_older_texts_begin() -> None:
    old = [{"role": m["role"], "content": m["content"]} for m in HISTORY]
    tagged = tag_by_prefix(old, {"Feedback: ": "evaluator"})
    assert [m.content for m in rebuild(tagged, {"evaluator": "drop"})] == ["q1", "draft", "a1"]
    assert tag_by_prefix(tagged, {"Feedback: ": "evaluator"}) == tagged
