"""Parts of a message as the input of a graph, or as the answer to its question."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from a2a.utils.errors import ContentTypeNotSupportedError, InvalidParamsError

from perdure.server.auth.claims import with_verified
from perdure.server.auth.identity import User

_KINDS = ("image", "audio", "video")


def input_of(user: User, message: Mapping[str, Any], *, takes_messages: bool) -> dict[str, Any]:
    """Return the input of a graph for a message.

    Text and files become one chat message, and the fields of data are fields of the input. Who the user is
    comes from the credentials alone.

    Args:
        user: the authenticated user.
        message: the message, in the JSON form of the protocol.
        takes_messages: True for a graph with chat messages.

    Raises:
        ContentTypeNotSupportedError: the graph does not take such parts.
    """
    given: dict[str, Any] = {}
    blocks: list[dict[str, Any]] = []
    for part in message.get("parts", ()):
        if "data" in part:
            if not isinstance(part["data"], dict):
                raise ContentTypeNotSupportedError(
                    "a data part is an object with fields of the agent's input"
                )
            given |= part["data"]
        else:
            blocks.append(_block(part))
    given = with_verified(user, given)
    if not blocks:
        return given
    if not takes_messages:
        raise ContentTypeNotSupportedError(
            "this agent has no chat messages; send the fields of its input in a data part"
        )
    before = given.get("messages", [])
    if not isinstance(before, list):
        raise InvalidParamsError("messages in a data part is a list")
    chat: dict[str, Any] = {"role": "user", "content": _content(blocks)}
    if (message_id := unique_id(message)) is not None:
        chat["id"] = message_id
    return {**given, "messages": [*before, chat]}


def answer_of(user: User, message: Mapping[str, Any]) -> Any:
    """Return the answer that a message gives: the value of its data part, or else its text."""
    parts: Sequence[Mapping[str, Any]] = message.get("parts", ())
    data = [part["data"] for part in parts if "data" in part]
    if data:
        if len(parts) > 1:
            raise ContentTypeNotSupportedError("an answer is one data part, or text")
        return with_verified(user, data[0]) if isinstance(data[0], dict) else data[0]
    return _content([_block(part) for part in parts])


def unique_id(message: Mapping[str, Any]) -> str | None:
    """Return the id of a message if it is one that no other message has, a UUID; else None. By such an id a
    message that is sent again is known."""
    message_id = str(message.get("messageId", ""))
    try:
        uuid.UUID(message_id)
    except ValueError:
        return None
    return message_id


def _block(part: Mapping[str, Any]) -> dict[str, Any]:
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


def _content(blocks: Sequence[Mapping[str, Any]]) -> Any:
    if all(block["type"] == "text" for block in blocks):
        return "\n".join(block["text"] for block in blocks)
    return list(blocks)
