"""Parts of a message as the input of a graph or as the answer to its question, and a reply as parts."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from a2a.utils.errors import ContentTypeNotSupportedError, InvalidParamsError

from perdure.runtime.json_encoding import to_json
from perdure.server.auth.identity import User
from perdure.server.auth.reserved_names import with_verified

_KINDS = ("image", "audio", "video")
_DATA_DEPTH = 30
"""Maximum nesting depth of the data in a part. Protobuf refuses a message of more than 100 levels, and a
level of data takes up to three of them."""


def input_of(user: User, message: Mapping[str, Any], *, takes_messages: bool) -> dict[str, Any]:
    """Return the input of a graph for a message.

    Text and files become one chat message, and the fields of data are fields of the input. What they state
    about the user is replaced by what the credentials verify.

    Args:
        user: the authenticated user.
        message: the message, in the JSON form of the protocol.
        takes_messages: True for a graph with chat messages.

    Raises:
        ContentTypeNotSupportedError: the graph does not take such parts.
    """
    fields: dict[str, Any] = {}
    blocks: list[dict[str, Any]] = []
    for part in message.get("parts", ()):
        if "data" in part:
            if not isinstance(part["data"], dict):
                raise ContentTypeNotSupportedError(
                    "a data part is an object with fields of the agent's input"
                )
            fields |= part["data"]
        else:
            blocks.append(_make_block(part))
    fields = with_verified(user, fields)
    if not blocks:
        return fields
    if not takes_messages:
        raise ContentTypeNotSupportedError(
            "this agent has no chat messages; send the fields of its input in a data part"
        )
    earlier = fields.get("messages", [])
    if not isinstance(earlier, list):
        raise InvalidParamsError("messages in a data part is a list")
    chat_message: dict[str, Any] = {"role": "user", "content": _make_content(blocks)}
    if (message_id := find_unique_id(message)) is not None:
        chat_message["id"] = message_id
    return {**fields, "messages": [*earlier, chat_message]}


def answer_of(user: User, message: Mapping[str, Any]) -> Any:
    """Return the answer that a message gives: the value of its data part, or else its text."""
    parts: Sequence[Mapping[str, Any]] = message.get("parts", ())
    data = [part["data"] for part in parts if "data" in part]
    if data:
        if len(parts) > 1:
            raise ContentTypeNotSupportedError("an answer is one data part, or text")
        if isinstance(data[0], dict):
            return with_verified(user, data[0])
        return data[0]
    return _make_content([_make_block(part) for part in parts])


def make_data_part(value: Any) -> dict[str, Any]:
    """Return plain data as a part: text with its JSON if it is nested deeper than the protocol's parsers go,
    so that its task, and all that are listed with it, can be read."""
    level = [value]
    for _ in range(_DATA_DEPTH):
        level = [
            part
            for container in level
            if isinstance(container, dict | list)
            for part in (container.values() if isinstance(container, dict) else container)
        ]
    if any(isinstance(part, dict | list) for part in level):
        return {"text": to_json(value)}
    return {"data": value}


def text_of(message: Mapping[str, Any]) -> str:
    """Return the text of a message of LangChain in its JSON form."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    blocks = [block for block in content or () if isinstance(block, dict) and block.get("type") == "text"]
    return "".join(str(block.get("text", "")) for block in blocks)


def parts_of(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a message of LangChain as parts: its text, its files in their order, and its data, which is a
    content block of the type ``non_standard``."""
    text = text_of(message)
    parts: list[dict[str, Any]] = [{"text": text}] if text else []
    content = message.get("content")
    blocks = content if isinstance(content, list) else ()
    others = [_make_part(block) for block in blocks if isinstance(block, dict)]
    return [*parts, *(part for part in others if part is not None)]


def _make_part(block: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a content block with a file or data as a part, None for any other one."""
    kind = block.get("type")
    if kind == "non_standard":
        if "value" in block:
            return make_data_part(block["value"])
        return None
    if kind not in (*_KINDS, "file"):
        return None
    if block.get("url"):
        content = {"url": block["url"]}
    else:
        content = {"raw": block.get("base64") or block.get("data")}
    if not all(isinstance(value, str) and value for value in content.values()):
        # The block refers to a file at the model's provider, which the client could not get.
        return None
    described = {"mediaType": block.get("mime_type"), "filename": block.get("filename")}
    return {
        **content,
        **{name: value for name, value in described.items() if isinstance(value, str) and value},
    }


def find_unique_id(message: Mapping[str, Any]) -> str | None:
    """Return the id of a message if it is a UUID, so that no other message has it; else None. Such an id
    identifies a message that is sent again."""
    message_id = str(message.get("messageId", ""))
    try:
        uuid.UUID(message_id)
    except ValueError:
        return None
    return message_id


def _make_block(part: Mapping[str, Any]) -> dict[str, Any]:
    """Return a part as a content block of LangChain."""
    if "text" in part:
        return {"type": "text", "text": part["text"]}
    media_type = part.get("mediaType") or "application/octet-stream"
    general = media_type.partition("/")[0]
    block: dict[str, Any] = {"type": general if general in _KINDS else "file", "mime_type": media_type}
    if "url" in part:
        block["url"] = part["url"]
    elif "raw" in part:
        block["base64"] = part["raw"]
    else:
        raise ContentTypeNotSupportedError("a part is text, data, a url or raw bytes")
    if part.get("filename"):
        block["filename"] = part["filename"]
    return block


def _make_content(blocks: Sequence[Mapping[str, Any]]) -> Any:
    if all(block["type"] == "text" for block in blocks):
        return "\n".join(block["text"] for block in blocks)
    return list(blocks)
