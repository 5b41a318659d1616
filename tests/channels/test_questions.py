"""Questions of graphs in a chat."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import HumanMessage

from perdure.channels.questions import (
    Button,
    UnusableAnswer,
    decisions,
    edit_prompt,
    list_buttons,
    make_question_reply,
    parse_button,
    resume_value,
)

ID = "0123456789abcdef0123456789abcdef"
QUESTION_WITHOUT_TEXT = "An answer is needed to go on. (The question has no text.)"


def requests(*names: str, allowed: list[str] | None = None, **args: Any) -> dict[str, Any]:
    every = ["approve", "edit", "reject"] if allowed is None else allowed
    return {
        "action_requests": [{"name": name, "args": args} for name in names],
        "review_configs": [{"action_name": name, "allowed_decisions": every} for name in names],
    }


def human(**config: bool) -> list[dict[str, Any]]:
    action = {"action": "mail", "args": {"to": "ada", "text": "hi"}}
    return [{"action_request": action, "config": config, "description": "Send it?"}]


def test_buttons_carry_the_interrupt_and_fit_a_provider() -> None:
    shown = list_buttons(make_question_reply(ID, requests("pay", amount=1)))
    assert [button.text for button in shown] == ["Approve", "Edit", "Reject"]
    assert all(len(button.data.encode()) <= 64 for button in shown)
    assert [parse_button(button.data) for button in shown] == [(ID, "approve"), (ID, "edit"), (ID, "reject")]
    assert (
        list_buttons({"content": "no question"})
        == list_buttons("text")
        == list_buttons(make_question_reply(ID, "why?"))
        == []
    )
    assert Button("Approve", f"perdure:a:{ID}") == shown[0]


@pytest.mark.parametrize("data", ["", "other:a:1", "perdure:x:1", "perdure:a:", "perdure"])
def test_other_buttons_are_not_ours(data: str) -> None:
    assert parse_button(data) is None


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (requests("pay", amount=1), ["approve", "edit", "reject"]),
        (requests("pay", "mail"), ["approve", "reject"]),
        (requests("pay", allowed=["approve", "respond"]), ["approve"]),
        (human(allow_accept=True, allow_ignore=True), ["approve", "reject"]),
        (human(allow_edit=True), ["edit"]),
        ({**human()[0], "config": "odd"}, []),
        ({**requests("pay"), "review_configs": 5}, []),
        ("why?", []),
        ({"question": "why?"}, []),
        (None, []),
    ],
)
def test_the_decisions_are_those_that_the_interrupt_takes(value: Any, expected: list[str]) -> None:
    assert decisions(value) == expected


def test_what_langchain_s_middleware_is_resumed_with() -> None:
    one, two = requests("pay", amount=1, to="ada"), requests("pay", "mail")
    assert resume_value(two, "approve") == {"decisions": [{"type": "approve"}, {"type": "approve"}]}
    assert resume_value(one, "reject") == {"decisions": [{"type": "reject"}]}
    assert resume_value(one, None, "no, two") == {"decisions": [{"type": "reject", "message": "no, two"}]}
    edited = {"type": "edit", "edited_action": {"name": "pay", "args": {"amount": 2}}}
    assert resume_value(one, "edit", '{"amount": 2}') == {"decisions": [edited]}
    respond = requests("ask", allowed=["respond"])
    assert resume_value(respond, None, "42") == {"decisions": [{"type": "respond", "message": "42"}]}


def test_the_middleware_itself_takes_these_decisions() -> None:
    from langchain.agents import create_agent
    from langchain.agents.middleware import HumanInTheLoopMiddleware
    from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
    from langchain_core.messages import AIMessage
    from langchain_core.tools import tool
    from langgraph.checkpoint.memory import InMemorySaver
    from langgraph.types import Command

    paid: list[int] = []

    @tool
    def pay(amount: int) -> str:
        """Pay."""
        paid.append(amount)
        return "paid"

    class Model(GenericFakeChatModel):
        def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
            return self

    for number, (decision, text) in enumerate([("approve", ""), ("edit", '{"amount": 13}'), ("reject", "")]):
        call = {"name": "pay", "args": {"amount": 12}, "id": f"c{number}"}
        model = Model(messages=iter([AIMessage("", tool_calls=[call]), AIMessage("done")]))
        middleware = HumanInTheLoopMiddleware(interrupt_on={"pay": True})
        agent = create_agent(model, [pay], middleware=[middleware], checkpointer=InMemorySaver())
        config: Any = {"configurable": {"thread_id": str(number)}}
        asked = agent.invoke({"messages": [HumanMessage("pay")]}, config)["__interrupt__"][0]
        assert decision in decisions(asked.value)
        answer: Any = resume_value(asked.value, decision, text)
        assert agent.invoke(Command(resume=answer), config)["messages"][-1].text == "done"
    assert paid == [12, 13]


def test_what_a_human_interrupt_is_resumed_with() -> None:
    value = human(allow_accept=True, allow_edit=True, allow_ignore=True, allow_respond=True)
    assert resume_value(value, "approve") == [{"type": "accept", "args": None}]
    assert resume_value(value, "reject") == [{"type": "ignore", "args": None}]
    assert resume_value(value, None, "later") == [{"type": "response", "args": "later"}]
    edited = {"action": "mail", "args": {"to": "bob"}}
    assert resume_value(value, "edit", '{"to": "bob"}') == [{"type": "edit", "args": edited}]


def test_an_argument_that_is_one_text_is_changed_by_the_text() -> None:
    value = requests("post", text="hello")
    assert edit_prompt(value) == "Send the new text for 'text'."
    decided = resume_value(value, "edit", "good morning")["decisions"][0]
    assert decided["edited_action"]["args"] == {"text": "good morning"}


@pytest.mark.parametrize(
    ("value", "decision", "text"),
    [
        (requests("pay", amount=1), "edit", "thirteen"),
        (requests("pay", amount=1), "edit", "[1]"),
        (requests("pay", allowed=["approve"]), "reject", ""),
        (requests("pay", allowed=["approve"]), None, "no"),
        (human(allow_accept=True), None, "no"),
        ("why?", "approve", ""),
    ],
)
def test_an_answer_that_is_not_taken_tells_what_to_send(value: Any, decision: Any, text: str) -> None:
    with pytest.raises(UnusableAnswer, match=r"\w+ .+\."):
        resume_value(value, decision, text)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("why?", "why?"),
        ({"question": "why?"}, "why?"),
        ({"a": 1}, '{"a": 1}'),
        (human(), "Send it?"),
        (requests("pay", amount=1), 'May I do this? pay\n{"amount": 1}'),
    ],
)
def test_what_is_shown(value: Any, shown: str) -> None:
    assert make_question_reply(ID, value)["content"] == shown


def test_a_long_question_is_shown_whole_and_what_is_not_shown_cannot_be_approved() -> None:
    long = requests("sql", query="x" * 10_000)
    assert make_question_reply(ID, long)["content"].count("x") == 10_000
    assert "approve" in decisions(long)
    endless = requests("sql", query="y" * 30_000)
    shown = make_question_reply(ID, endless)["content"]
    assert shown.endswith("y\n\n[10032 more characters are not shown. It cannot be approved here.]")
    assert decisions(endless) == ["reject"]
    assert [each.text for each in list_buttons(make_question_reply(ID, endless))] == ["Reject"]
    with pytest.raises(UnusableAnswer):
        resume_value(endless, "approve")
    assert resume_value(endless, "reject") == {"decisions": [{"type": "reject"}]}
    assert make_question_reply(ID, "z" * 20_001)["content"].endswith("[1 more characters are not shown.]")


@pytest.mark.parametrize(
    "value", ["", " \n", "\u200b\u2060", {"message": "", "draft": "Dear Bob"}, {"text": " "}]
)
def test_a_question_without_text_is_shown_all_the_same(value: Any) -> None:
    shown = make_question_reply(ID, value)["content"]
    assert shown == (str(value).replace("'", '"') if isinstance(value, dict) else QUESTION_WITHOUT_TEXT)
