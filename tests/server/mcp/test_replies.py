"""The files of an agent's reply are content of their own kinds, in their order."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, message_to_dict

from perdure.server.mcp.replies import reply_of

HELD = "aGVsZA=="
PNG: dict[str, Any] = {"type": "image", "base64": HELD, "mime_type": "image/png"}


def replied(content: Any) -> list[dict[str, Any]]:
    """The content of a result, in the form in which a client gets it."""
    message = message_to_dict(AIMessage(content))
    values = {"messages": [{**message["data"], "type": message["type"]}]}
    return [one.model_dump(by_alias=True, exclude_none=True, mode="json") for one in reply_of(values)]


def test_text_and_files_keep_their_order() -> None:
    content = [
        {"type": "text", "text": "Here "},
        {"type": "text", "text": "it is:"},
        PNG,
        {"type": "audio", "base64": HELD, "mime_type": "audio/wav"},
        {"type": "text", "text": "and more"},
    ]
    assert replied(content) == [
        {"type": "text", "text": "Here it is:"},
        {"type": "image", "data": HELD, "mimeType": "image/png"},
        {"type": "audio", "data": HELD, "mimeType": "audio/wav"},
        {"type": "text", "text": "and more"},
    ]


@pytest.mark.parametrize(
    ("block", "made"),
    [
        (
            {"type": "file", "base64": HELD, "mime_type": "application/pdf", "filename": "a b.pdf"},
            {"uri": "attachment:a%20b.pdf", "mimeType": "application/pdf", "blob": HELD},
        ),
        (
            {"type": "text-plain", "text": "notes", "title": "n"},
            {"uri": "attachment:n", "mimeType": "text/plain", "text": "notes"},
        ),
        ({"type": "image", "base64": HELD}, {"uri": "attachment:image-1", "blob": HELD}),
    ],
)
def test_a_file_is_a_resource_that_is_sent_along(block: dict[str, Any], made: dict[str, Any]) -> None:
    assert replied([block]) == [{"type": "resource", "resource": made}]


def test_a_file_elsewhere_is_a_link() -> None:
    link = {"type": "resource_link", "name": "image-1", "uri": "https://e.org/x", "mimeType": "image/png"}
    assert replied([{"type": "image", "url": "https://e.org/x", "mime_type": "image/png"}]) == [link]


def test_what_a_client_cannot_use_is_left_out() -> None:
    unusable = [
        {"type": "reasoning", "reasoning": "hm"},
        {"type": "image", "file_id": "f1"},
        {"type": "image", "url": 7, "base64": b"x"},
        {"type": "tool_call", "name": "x", "args": {}, "id": "1"},
    ]
    assert replied([*unusable, {"type": "text", "text": "so"}]) == [{"type": "text", "text": "so"}]
    assert replied(unusable) == []


@pytest.mark.parametrize("last", [HumanMessage("hi"), None])
def test_values_without_a_reply_have_none(last: BaseMessage | None) -> None:
    message = None if last is None else {"type": last.type, "content": last.text}
    assert reply_of({"messages": [message] if message else []}) == []
    assert reply_of({"answer": 1}) == reply_of([1]) == []


def test_an_empty_reply_is_an_empty_text() -> None:
    assert replied("") == [{"type": "text", "text": ""}]
