"""Questions of graphs in a chat: the form in which an interrupt is shown, and the value that resumes it.

Three forms of interrupt are known: the requests of LangChain's ``HumanInTheLoopMiddleware``, those of
LangGraph's ``HumanInterrupt``, and any other value, which is shown as text and answered by text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from perdure.runtime.question_forms import (
    config_of,
    find_arguments,
    find_human_interrupt,
    find_requests,
    read_allowed_decisions,
    text_of,
    to_readable_json,
)

Decision = Literal["approve", "edit", "reject"]
DECISIONS: Mapping[Decision, str] = {"approve": "Approve", "edit": "Edit", "reject": "Reject"}
"""Decisions with the text of their buttons, in the order in which they are shown."""

_PREFIX = "perdure"
_LETTERS: Mapping[str, Decision] = {"a": "approve", "e": "edit", "r": "reject"}
_HUMAN_OPTIONS: Mapping[Decision, str] = {
    "approve": "allow_accept",
    "edit": "allow_edit",
    "reject": "allow_ignore",
}
_SHOWN_MAX = 20_000
"""Maximum length of a question. A longer one is cut, with the number of further characters, and cannot be
approved in the chat."""
_PRESS = "Please press one of the buttons."


class UnusableAnswer(ValueError):
    """An answer that the question does not take; the message tells the person what to send."""


class Button(NamedTuple):
    """Button below a question: its text, and the data that the provider sends back, at most 64 bytes."""

    text: str
    data: str


def make_question_reply(interrupt_id: str, value: Any) -> dict[str, Any]:
    """Return the reply that asks for the answer to an interrupt."""
    return {
        "role": "assistant",
        "content": _format_text(value),
        "question": {"id": interrupt_id, "decisions": decisions(value)},
    }


def list_buttons(reply: Any) -> list[Button]:
    """Return the buttons of a reply, none unless it is a question with decisions."""
    if (asked := _question_of(reply)) is None:
        return []
    return [Button(DECISIONS[each], f"{_PREFIX}:{each[0]}:{asked['id']}") for each in asked["decisions"]]


def interrupt_of(reply: Any) -> str | None:
    """Return the interrupt for which a reply asks, ``None`` if it is not a question."""
    if (asked := _question_of(reply)) is None:
        return None
    return str(asked["id"])


def _question_of(reply: Any) -> Mapping[str, Any] | None:
    if isinstance(reply, Mapping) and isinstance(asked := reply.get("question"), Mapping):
        return asked
    return None


def parse_button(data: str) -> tuple[str, Decision] | None:
    """Return the interrupt and the decision of a button's data, ``None`` if it is not ours."""
    prefix, _, rest = data.partition(":")
    letter, _, interrupt_id = rest.partition(":")
    if prefix != _PREFIX or letter not in _LETTERS or not interrupt_id:
        return None
    return interrupt_id, _LETTERS[letter]


def decisions(value: Any) -> list[Decision]:
    """Return the decisions that an interrupt takes in a chat, none if it is answered by text."""
    allowed = _list_decisions(value)
    if allowed and len(text_of(value)) > _SHOWN_MAX:
        # An action that was not shown cannot be approved.
        return [each for each in allowed if each == "reject"]
    return allowed


def _list_decisions(value: Any) -> list[Decision]:
    if (requests := find_requests(value)) is not None:
        allowed = set.intersection(*(read_allowed_decisions(value, request) for request in requests))
        allowed_here: list[Decision] = [each for each in DECISIONS if each in allowed]
        # One text cannot change the arguments of several actions.
        if len(requests) > 1:
            return [each for each in allowed_here if each != "edit"]
        return allowed_here
    if (human := find_human_interrupt(value)) is not None:
        config = config_of(human)
        return [each for each, name in _HUMAN_OPTIONS.items() if config.get(name)]
    return []


def resume_value(value: Any, decision: Decision | None, text: str = "") -> Any:
    """Return the value that resumes an interrupt.

    Args:
        value: The value of the interrupt.
        decision: The decision, ``None`` for a text without one.
        text: The text: the answer, the reason of a rejection, or the changed arguments.

    Raises:
        UnusableAnswer: The interrupt does not take this.
    """
    if decision is not None and decision not in decisions(value):
        raise UnusableAnswer("This question does not take that decision.")
    if (requests := find_requests(value)) is not None:
        return {"decisions": [_make_decision(value, request, decision, text) for request in requests]}
    if (human := find_human_interrupt(value)) is not None:
        return [_answer_human(human, decision, text)]
    return text


def edit_prompt(value: Any) -> str:
    """Return the text that asks for the changed arguments of an action."""
    arguments = find_arguments(value)
    if (name := _find_only_text(arguments)) is not None:
        return f"Send the new text for {name!r}."
    return "Send the changed arguments as JSON, for example:\n" + to_readable_json(arguments)


def _make_decision(
    value: Mapping[str, Any], request: Mapping[str, Any], decision: Decision | None, text: str
) -> dict[str, Any]:
    if decision == "approve":
        return {"type": "approve"}
    if decision == "edit":
        changed = _change_arguments(dict(request.get("args") or {}), text)
        return {"type": "edit", "edited_action": {"name": request.get("name"), "args": changed}}
    if decision == "reject" and not text:
        return {"type": "reject"}
    if decision == "reject":
        return {"type": "reject", "message": text}
    # A text without a decision replaces the tool's result, or says what the person wants instead.
    kind = next(
        (each for each in ("respond", "reject") if each in read_allowed_decisions(value, request)), None
    )
    if kind is None:
        raise UnusableAnswer(_PRESS)
    return {"type": kind, "message": text}


def _answer_human(human: Mapping[str, Any], decision: Decision | None, text: str) -> dict[str, Any]:
    action = human["action_request"]
    if decision == "approve":
        return {"type": "accept", "args": None}
    if decision == "edit":
        changed = _change_arguments(dict(action.get("args") or {}), text)
        return {"type": "edit", "args": {"action": action.get("action"), "args": changed}}
    if decision is None and config_of(human).get("allow_respond"):
        return {"type": "response", "args": text}
    if decision is None:
        raise UnusableAnswer(_PRESS)
    return {"type": "ignore", "args": None}


def _change_arguments(arguments: dict[str, Any], text: str) -> dict[str, Any]:
    """Return the changed arguments: if there is one argument and it is text, the text is its new value;
    otherwise the text is JSON with all arguments."""
    if (name := _find_only_text(arguments)) is not None:
        return {**arguments, name: text}
    try:
        changed = json.loads(text)
    except ValueError:
        changed = None
    if not isinstance(changed, dict):
        raise UnusableAnswer("That is not a JSON object. For example:\n" + to_readable_json(arguments))
    return changed


def _find_only_text(arguments: Mapping[str, Any]) -> str | None:
    """Return the name of the only argument if it is text."""
    for name, value in arguments.items():
        if len(arguments) == 1 and isinstance(value, str):
            return name
    return None


def _format_text(value: Any) -> str:
    text = text_of(value)
    rest = len(text) - _SHOWN_MAX
    if rest <= 0:
        return text
    hint = ""
    if _list_decisions(value):
        hint = " It cannot be approved here."
    return f"{text[:_SHOWN_MAX]}\n\n[{rest} more characters are not shown.{hint}]"
