"""Forms of answers, made of what is asked, whatever a graph asks."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.channels.questions import edit_prompt
from perdure.runtime.question_forms import form_of, text_of

REVIEW = {
    "action_requests": [{"name": "send", "args": {"n": 1}}, {"name": "look", "description": "Look?"}],
    "review_configs": [{"action_name": "send", "allowed_decisions": ["reject", "approve", "odd"]}],
}
HUMAN = {
    "action_request": {"action": "buy", "args": {"n": 3}},
    "config": {"allow_accept": True, "allow_ignore": True, "allow_respond": True},
    "description": "Buy?",
}


def test_the_middleware_s_requests_take_decisions() -> None:
    form = form_of(REVIEW)
    assert form["kind"] == "review"
    assert [each["decisions"] for each in form["actions"]] == [
        ["approve", "reject"],
        ["approve", "edit", "reject"],
    ]
    assert text_of(REVIEW) == 'May I do this? send\n{"n": 1}\n\nLook?'


def test_a_human_interrupt_takes_what_its_config_allows() -> None:
    alone, listed = form_of(HUMAN), form_of([HUMAN])
    assert (alone["kind"], alone["is_list"], listed["is_list"]) == ("request", False, True)
    assert alone["actions"][0]["decisions"] == ["approve", "respond", "reject"]
    assert text_of([HUMAN]) == "Buy?"
    assert form_of({"action_request": {"action": "buy"}, "config": "odd"})["actions"][0]["decisions"] == []


def test_a_schema_has_fields() -> None:
    properties = {"city": {"title": "City"}, "nights": {"type": "integer", "default": 2}, "to": {"enum": [1]}}
    form = form_of({"question": "Where?", "schema": {"properties": properties, "required": ["city", 3]}})
    assert form["kind"] == "fields"
    assert [(each["name"], each["type"], each["is_required"]) for each in form["fields"]] == [
        ("city", "string", True),
        ("nights", "integer", False),
        ("to", "string", False),
    ]
    assert form["fields"][2]["options"] == [1]


@pytest.mark.parametrize(
    "value",
    [
        None,
        7,
        "text",
        [],
        {},
        {"options": []},
        {"options": "yes"},
        {"options": list(range(51))},
        {"action_requests": []},
        {"action_requests": "odd"},
        {"schema": {"properties": {"deep": {"type": "object"}}}},
        {"schema": {"properties": {"odd": 3}}},
        {"schema": {"properties": {str(n): {} for n in range(31)}}},
        {"schema": []},
        {**REVIEW, "review_configs": 5},
        {"action_requests": [{"name": "send", "args": 7}]},
        [{"action_request": {"action": "buy", "args": [1]}}],
    ],
)
def test_anything_else_is_open(value: Any) -> None:
    assert form_of(value) == {"kind": "open"}
    assert isinstance(text_of(value), str)


def test_what_no_decision_can_be_read_from_takes_none() -> None:
    odd = {**REVIEW, "review_configs": [{"action_name": "send", "allowed_decisions": 5}]}
    assert form_of(odd)["actions"][0]["decisions"] == []


def test_a_field_with_options_has_a_known_type() -> None:
    odd = {"schema": {"properties": {"to": {"enum": [1], "type": ["\x1b[31m", None]}}}}
    assert form_of(odd)["fields"][0]["type"] == "string"


def test_options_are_offered() -> None:
    assert form_of({"question": "Well?", "options": ["a", 1]}) == {"kind": "choice", "options": ["a", 1]}
    assert form_of(True) == {"kind": "choice", "options": [True, False]}


@pytest.mark.parametrize("args", [{(1, 2): "x"}, {b"k": 1}, {"a": {(1,): 2}}, {"a": {1, 2}}])
def test_arguments_and_values_with_keys_of_any_type_are_shown(args: Any) -> None:
    assert isinstance(text_of(args), str)
    assert text_of({"action_requests": [{"name": "send", "args": args}]}).startswith("May I do this? send\n{")
    assert edit_prompt({"action_requests": [{"name": "send", "args": args}]}).startswith("Send the ")
