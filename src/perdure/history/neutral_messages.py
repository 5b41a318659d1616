"""Neutral messages: a conversation as plain JSON, and its conversion to and from LangChain's messages.

A neutral message is ``{"role", "content", "tool_calls"?, "tool_call_id"?, "name"?, "tags"?}``, and has
``id``, ``status`` (of a failed tool) and ``invalid_tool_calls`` if the LangChain message had them. Roles,
text, content in parts, tool calls and their results are converted both ways without loss. Fields that only
one provider or one call has (``response_metadata``, ``usage_metadata``, a tool's ``artifact``,
``additional_kwargs``) are left out.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NotRequired, TypedDict, cast

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)

from perdure.errors import Unserialisable
from perdure.model.values.json_values import find_fault

ROLES = ("user", "assistant", "system", "developer", "tool", "function")
"""Roles of neutral messages."""

TAGS = "tags"
"""Key of a message's tags in the ``additional_kwargs`` of a LangChain message."""

_OPENAI_ROLE = "__openai_role__"
_ALIASES = {"human": "user", "ai": "assistant"}
_FIELDS = frozenset(
    ("role", "content", "tool_calls", "tool_call_id", "name", "tags", "id", "status", "invalid_tool_calls")
)


class NeutralCall(TypedDict):
    """Call of a tool: ``args`` is a JSON object, ``id`` is the id to which the tool's result refers."""

    id: str | None
    name: str
    args: dict[str, Any]


class NeutralMessage(TypedDict):
    """Message of a conversation as plain JSON. ``content`` is text, or a list of text and parts."""

    role: str
    content: str | list[str | dict[str, Any]]
    tool_calls: NotRequired[list[NeutralCall]]
    tool_call_id: NotRequired[str]
    name: NotRequired[str]
    tags: NotRequired[list[str]]
    id: NotRequired[str]
    status: NotRequired[str]
    invalid_tool_calls: NotRequired[list[dict[str, Any]]]


def neutral(message: Mapping[str, Any], at: int | None = None) -> NeutralMessage:
    """Return a message in neutral form, checked.

    Accepts what other programs store: the roles ``human`` and ``ai``, no content beside tool calls, and tool
    calls as OpenAI's API has them (``{"id", "function": {"name", "arguments"}}``). Empty optional fields are
    left out.

    Args:
        message: the message.
        at: its position in a list, for the error.

    Raises:
        Unserialisable: the message has no neutral form; the text of the error quotes none of its content.
    """
    where = "a message" if at is None else f"message {at}"
    if not isinstance(cast("object", message), Mapping):
        raise Unserialisable(f"{where} has to be an object with role and content, not {_type(message)}")
    unknown = sorted(str(name)[:40] for name in message if name not in _FIELDS)
    if unknown:
        raise Unserialisable(
            f"{where} has the unknown fields {', '.join(unknown)}; a neutral message has "
            f"{', '.join(sorted(_FIELDS))}"
        )
    role = message.get("role")
    if isinstance(role, str):
        role = _ALIASES.get(role, role)
    if role not in ROLES:
        raise Unserialisable(f"the role of {where} has to be one of {', '.join(ROLES)}")
    out: NeutralMessage = {"role": role, "content": _read_content(message, role, where)}
    calls = _read_calls(message.get("tool_calls"), where)
    if calls:
        out["tool_calls"] = calls
    if role != "assistant" and (calls or message.get("invalid_tool_calls")):
        raise Unserialisable(f"{where} has tool calls, which only a message of the assistant can have")
    answered_id = _read_answered_call(message, role, where)
    if answered_id is not None:
        out["tool_call_id"] = answered_id
    for name in ("name", "id"):
        text = _read_text(message, name, where)
        if text is not None:
            out[name] = text
    if tags := _parse_tags(message.get("tags"), where):
        out["tags"] = tags
    status = _read_text(message, "status", where)
    if status not in (None, "success", "error") or (status == "error" and role != "tool"):
        raise Unserialisable(f"the status of {where} has to be 'error' or 'success', and of a tool's result")
    if status == "error":
        out["status"] = "error"
    if invalid := _parse_objects(message.get("invalid_tool_calls"), "invalid_tool_calls", where):
        out["invalid_tool_calls"] = invalid
    # Last, as it is the only check of the contents of parts and arguments.
    return cast("NeutralMessage", _copy_as_json(out, where))


def _read_answered_call(message: Mapping[str, Any], role: str, where: str) -> str | None:
    """Return the id of the call that a tool's result answers; ``None`` for another message."""
    answered_id = _read_text(message, "tool_call_id", where)
    if role == "tool" and answered_id is None:
        raise Unserialisable(f"{where} is a tool's result and has no tool_call_id")
    if role != "tool" and answered_id is not None:
        raise Unserialisable(f"{where} has a tool_call_id, which only a tool's result can have")
    if role == "function" and not message.get("name"):
        raise Unserialisable(f"{where} is a function's result and has no name")
    return answered_id


def to_neutral(
    messages: Iterable[BaseMessage | Mapping[str, Any]], *, tags: Collection[str] = ()
) -> list[NeutralMessage]:
    """Return LangChain messages, or neutral ones, in neutral form.

    Args:
        messages: the messages.
        tags: added to those of each message.

    Raises:
        Unserialisable: a message has no neutral form, e.g. one that removes others.
    """
    out: list[NeutralMessage] = []
    for at, message in enumerate(messages):
        plain = _from_langchain(message, at) if isinstance(message, BaseMessage) else message
        found = neutral(plain, at)
        if tags:
            found["tags"] = list(dict.fromkeys((*found.get("tags", ()), *tags)))
        out.append(found)
    return out


def to_langchain(messages: Iterable[Mapping[str, Any]]) -> list[BaseMessage]:
    """Return neutral messages as LangChain's.

    Tags are in ``additional_kwargs["tags"]``, which is not sent to providers.

    Raises:
        Unserialisable: a message is not a neutral one.
    """
    return [_to_langchain(neutral(message, at)) for at, message in enumerate(messages)]


def _from_langchain(message: BaseMessage, at: int) -> dict[str, Any]:
    out: dict[str, Any] = {
        "role": _parse_role(message, at),
        "content": message.content,
        "name": message.name,
        "id": message.id,
        "tags": message.additional_kwargs.get(TAGS),
    }
    if isinstance(message, AIMessage):
        out["tool_calls"] = message.tool_calls
        out["invalid_tool_calls"] = [dict(call) for call in message.invalid_tool_calls]
    if isinstance(message, ToolMessage):
        out["tool_call_id"] = message.tool_call_id
        out["status"] = message.status
    return out


def _parse_role(message: BaseMessage, at: int) -> str:
    match message:
        case HumanMessage():
            return "user"
        case AIMessage():
            return "assistant"
        case SystemMessage():
            if message.additional_kwargs.get(_OPENAI_ROLE) == "developer":
                return "developer"
            return "system"
        case ToolMessage():
            return "tool"
        case FunctionMessage():
            return "function"
        case ChatMessage() if message.role in ROLES:
            return message.role
        case ChatMessage():
            raise Unserialisable(f"message {at} has a role of its own; use one of {', '.join(ROLES)}")
        case RemoveMessage():
            raise Unserialisable(f"message {at} removes another one; apply it to the messages first")
        case _:
            raise Unserialisable(f"message {at} is of the unknown type {type(message).__name__}")


def _to_langchain(message: NeutralMessage) -> BaseMessage:
    role = message["role"]
    fields = cast("Mapping[str, Any]", message)
    more: dict[str, Any] = {name: fields[name] for name in ("name", "id") if name in fields}
    if "tags" in message:
        kwargs: dict[str, Any] = {TAGS: list(message["tags"])}
    else:
        kwargs = {}
    if role == "developer":
        kwargs[_OPENAI_ROLE] = "developer"
    if kwargs:
        more["additional_kwargs"] = kwargs
    content = message["content"]
    match role:
        case "user":
            return HumanMessage(content, **more)
        case "assistant":
            calls = [{**call, "type": "tool_call"} for call in message.get("tool_calls", ())]
            invalid = message.get("invalid_tool_calls", [])
            return AIMessage(content, tool_calls=calls, invalid_tool_calls=invalid, **more)
        case "tool":
            status = message.get("status", "success")
            return ToolMessage(content, tool_call_id=fields["tool_call_id"], status=status, **more)
        case "function":
            return FunctionMessage(content=content, **more)
        case _:
            return SystemMessage(content, **more)


def _read_content(message: Mapping[str, Any], role: str, where: str) -> str | list[str | dict[str, Any]]:
    content = message.get("content")
    if content is None and role == "assistant":
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(isinstance(part, str | dict) for part in content):
        return content
    raise Unserialisable(f"the content of {where} has to be text, or a list of text and objects")


def _read_calls(calls: Any, where: str) -> list[NeutralCall]:
    out: list[NeutralCall] = []
    for call in _parse_objects(calls, "tool_calls", where):
        name, args = call.get("name"), call.get("args")
        if isinstance(function := call.get("function"), Mapping):
            name, args = function.get("name"), _parse_arguments(function.get("arguments"), where)
        call_id = call.get("id")
        if not isinstance(name, str) or not isinstance(args, Mapping) or not isinstance(call_id, str | None):
            raise Unserialisable(f"a tool call of {where} has to have an id, a name and args, an object")
        out.append({"id": call_id, "name": name, "args": dict(args)})
    return out


def _parse_arguments(text: Any, where: str) -> Any:
    if not isinstance(text, str):
        return text
    try:
        return json.loads(text or "{}")
    except ValueError as error:
        raise Unserialisable(f"the arguments of a tool call of {where} are not JSON") from error


def _parse_objects(value: Any, name: str, where: str) -> list[dict[str, Any]]:
    if value is None:
        return []
    if not isinstance(value, list | tuple) or not all(isinstance(one, Mapping) for one in value):
        raise Unserialisable(f"{name} of {where} has to be a list of objects")
    return [dict(one) for one in value]


def _parse_tags(value: Any, where: str) -> list[str]:
    if value is None:
        return []
    if not isinstance(value, list | tuple) or not all(isinstance(tag, str) for tag in value):
        raise Unserialisable(f"the tags of {where} have to be a list of text")
    return list(value)


def _read_text(message: Mapping[str, Any], name: str, where: str) -> str | None:
    value = message.get(name)
    if value is not None and not isinstance(value, str):
        raise Unserialisable(f"{name} of {where} has to be text, not {_type(value)}")
    return value


def _copy_as_json(message: Mapping[str, Any], where: str) -> Any:
    """Return a copy that is JSON and nothing else, and shares nothing with the argument.

    A round trip that changes something is refused: a key that is not text would come back as text.
    """
    try:
        text = json.dumps(message, ensure_ascii=False, allow_nan=False)
        text.encode()
        copy = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise Unserialisable(
            f"{where} has to be plain JSON data, and {find_fault(message) or error}"
        ) from error
    if copy != message:
        raise Unserialisable(
            f"{where} has to be plain JSON data, and {find_fault(message) or 'would come back as another'}"
        )
    return copy


def _type(value: object) -> str:
    return type(value).__name__
