"""Questions of graphs as people read them, and the forms that answer them.

Four kinds of interrupt are known: the requests of LangChain's ``HumanInTheLoopMiddleware``, those of
LangGraph's ``HumanInterrupt``, values that name options or a JSON Schema of the answer, and any other value,
which is answered by text or JSON.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, cast
from unicodedata import category

from perdure.model.arguments import read_mapping
from perdure.runtime.json_encoding import to_plain

DECISIONS = ("approve", "edit", "reject")
"""Decisions on an action, in the order in which they are offered."""

_NO_TEXT = "An answer is needed to go on. (The question has no text.)"
_INVISIBLE = ("Zs", "Zl", "Zp", "Cc", "Cf")
"""Unicode's categories of blanks, of control characters and of characters that only format others."""
_TEXTS = ("question", "message", "prompt", "query", "text")
_SCHEMAS = ("schema", "response_schema", "requestedSchema")
_FIELD_TYPES = ("string", "number", "integer", "boolean")
_FIELDS_MAX = 30
_OPTIONS_MAX = 50


def find_requests(value: Any) -> list[Mapping[str, Any]] | None:
    """Return the requests of LangChain's middleware, ``None`` for another interrupt."""
    requests = read_mapping(value).get("action_requests")
    if not isinstance(requests, Sequence) or not requests or not all(map(_is_action, requests)):
        return None
    if not isinstance(value.get("review_configs") or (), Sequence):
        return None
    return [cast(Mapping[str, Any], each) for each in requests]


def _is_action(value: Any) -> bool:
    return isinstance(value, Mapping) and isinstance(value.get("args") or {}, Mapping)


def read_allowed_decisions(value: Mapping[str, Any], request: Mapping[str, Any]) -> set[str]:
    """Return the decisions that the middleware allows on a request."""
    for config in value.get("review_configs") or ():
        if isinstance(config, Mapping) and config.get("action_name") == request.get("name"):
            allowed = config.get("allowed_decisions")
            if isinstance(allowed, Collection):
                return set(map(str, allowed))
            return set()
    return set(DECISIONS)


def find_human_interrupt(value: Any) -> Mapping[str, Any] | None:
    """Return LangGraph's ``HumanInterrupt``, ``None`` for another interrupt."""
    candidate = value
    if isinstance(value, list) and len(value) == 1:
        candidate = value[0]
    if isinstance(candidate, Mapping) and _is_action(candidate.get("action_request")):
        return candidate
    return None


def config_of(human: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the responses that a ``HumanInterrupt`` allows, ``{}`` if its form is unknown."""
    return read_mapping(human.get("config"))


def find_arguments(value: Any) -> Mapping[str, Any]:
    """Return the arguments of the first action that an interrupt asks for."""
    if (requests := find_requests(value)) is not None:
        return requests[0].get("args") or {}
    human = find_human_interrupt(value)
    if human is None:
        return {}
    return human["action_request"].get("args") or {}


def text_of(value: Any) -> str:
    """Return the text of a question, of any length."""
    if (requests := find_requests(value)) is not None:
        return "\n\n".join(
            _describe_action(each.get("description"), each.get("name"), each) for each in requests
        )
    if (human := find_human_interrupt(value)) is not None:
        action = human["action_request"]
        return _describe_action(human.get("description"), action.get("action"), action)
    if isinstance(value, Mapping):
        for name in _TEXTS:
            if isinstance(text := value.get(name), str) and is_visible(text):
                return text
    if isinstance(value, str):
        return value if is_visible(value) else _NO_TEXT
    return to_readable_json(value)


def is_visible(text: str) -> bool:
    """Return True if a text has more than blanks and characters that are not shown."""
    return any(category(each) not in _INVISIBLE for each in text)


def to_readable_json(value: Any) -> str:
    """Return any value of a graph as JSON for people: values and keys without a form in JSON become text."""
    return json.dumps(to_plain(value), ensure_ascii=False)


def _describe_action(description: Any, name: Any, request: Mapping[str, Any]) -> str:
    if isinstance(description, str) and is_visible(description):
        return description
    arguments = to_readable_json(request.get("args") or {})
    return f"May I do this? {name}\n{arguments}"


def form_of(value: Any) -> dict[str, Any]:
    """Return the form that answers a question, as JSON data.

    ``kind`` says what the graph is resumed with: ``review`` with the middleware's decisions, one for each of
    the ``actions``; ``request`` with an answer to a ``HumanInterrupt``, in a list if ``is_list``; ``choice``
    with one of the ``options``, ``fields`` with an object that has these, ``open`` with any JSON value. A
    choice or fields may be answered by any other JSON value, too.
    """
    if (requests := find_requests(value)) is not None:
        actions = [
            _make_offer(
                each.get("name"), each, [d for d in DECISIONS if d in read_allowed_decisions(value, each)]
            )
            for each in requests
        ]
        return {"kind": "review", "actions": actions}
    if (human := find_human_interrupt(value)) is not None:
        config = config_of(human)
        names = {"approve": "allow_accept", "edit": "allow_edit", "respond": "allow_respond"}
        decisions = [each for each, name in names.items() if config.get(name)]
        decisions += ["reject"] if config.get("allow_ignore") else []
        action = human["action_request"]
        offered = _make_offer(
            action.get("action"), {**action, "description": human.get("description")}, decisions
        )
        return {"kind": "request", "actions": [offered], "is_list": isinstance(value, list)}
    options = read_mapping(value).get("options")
    if isinstance(value, bool):
        options = [True, False]
    if isinstance(options, list) and 0 < len(options) <= _OPTIONS_MAX:
        return {"kind": "choice", "options": options}
    if fields := list(_list_fields(value)):
        return {"kind": "fields", "fields": fields}
    return {"kind": "open"}


def _make_offer(name: Any, request: Mapping[str, Any], decisions: list[str]) -> dict[str, Any]:
    description = request.get("description")
    return {
        "name": str(name),
        "args": request.get("args") or {},
        "description": description if isinstance(description, str) else "",
        "decisions": decisions,
    }


def _list_fields(value: Any) -> Iterator[dict[str, Any]]:
    """Yield the fields of the JSON Schema that a question names; none unless all of them are simple."""
    schemas = map(read_mapping(value).get, _SCHEMAS)
    schema = next((each for each in schemas if isinstance(each, Mapping)), {})
    properties = schema.get("properties")
    if not isinstance(properties, Mapping) or not 0 < len(properties) <= _FIELDS_MAX:
        return
    if not all(isinstance(each, Mapping) and _is_simple(each) for each in properties.values()):
        return
    required = schema.get("required")
    for name, each in properties.items():
        yield {
            "name": str(name),
            "type": each["type"] if each.get("type") in _FIELD_TYPES else "string",
            "title": str(each.get("title") or name),
            "description": str(each.get("description") or ""),
            "options": list(each["enum"]) if isinstance(each.get("enum"), list) else None,
            "default": each.get("default"),
            "is_required": isinstance(required, list) and name in required,
        }


def _is_simple(field: Mapping[str, Any]) -> bool:
    choices = field.get("enum")
    if isinstance(choices, list):
        return 0 < len(choices) <= _OPTIONS_MAX
    return field.get("type", "string") in _FIELD_TYPES
