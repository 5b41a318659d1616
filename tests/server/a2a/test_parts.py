"""Parts of messages as input, and as answers."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from a2a.utils.errors import ContentTypeNotSupportedError, InvalidParamsError

from perdure.server.a2a.parts import answer_of, find_unique_id, input_of
from perdure.server.auth.identity import User

ADA = User("ada", "", fields={"email": "ada@verified"})


def message(*parts: dict[str, Any], message_id: str = "1") -> dict[str, Any]:
    return {"messageId": message_id, "parts": list(parts)}


def given(*parts: dict[str, Any], takes_messages: bool = True) -> Any:
    return input_of(ADA, message(*parts), takes_messages=takes_messages)


def test_text_is_a_chat_message_and_data_are_fields() -> None:
    assert given({"text": "a"}, {"text": "b"}) == {"messages": [{"role": "user", "content": "a\nb"}]}
    assert given({"data": {"size": 3}}, takes_messages=False) == {"size": 3}
    both = given({"data": {"size": 3, "messages": [{"role": "system", "content": "s"}]}}, {"text": "a"})
    assert both["size"] == 3
    assert [one["role"] for one in both["messages"]] == ["system", "user"]
    key = str(uuid.uuid4())
    assert (
        input_of(ADA, message({"text": "a"}, message_id=key), takes_messages=True)["messages"][0]["id"] == key
    )


def test_files_are_content_blocks() -> None:
    held = given(
        {"text": "see"},
        {"url": "https://x/y.png", "mediaType": "image/png"},
        {"raw": "YQ==", "filename": "a.bin"},
    )
    assert held["messages"][0]["content"] == [
        {"type": "text", "text": "see"},
        {"type": "image", "mime_type": "image/png", "url": "https://x/y.png"},
        {"type": "file", "mime_type": "application/octet-stream", "base64": "YQ==", "filename": "a.bin"},
    ]


def test_what_an_agent_does_not_take_is_refused() -> None:
    with pytest.raises(ContentTypeNotSupportedError, match="no chat messages"):
        given({"text": "a"}, takes_messages=False)
    with pytest.raises(ContentTypeNotSupportedError, match="is an object"):
        given({"data": [1]})
    with pytest.raises(ContentTypeNotSupportedError, match="text, data, a url or raw"):
        given({"metadata": {}})
    with pytest.raises(InvalidParamsError, match="is a list"):
        given({"data": {"messages": "x"}}, {"text": "a"})


def test_data_state_no_user() -> None:
    stated = {"user_id": "root", "User_Email": "root", "langgraph_auth_user": {"identity": "root"}, "size": 1}
    assert given({"data": stated}) == {"user_id": "ada", "size": 1}
    assert answer_of(ADA, message({"data": stated})) == {"user_id": "ada", "size": 1}


def test_an_answer_is_text_or_one_value() -> None:
    assert answer_of(ADA, message({"text": "yes"})) == "yes"
    assert answer_of(ADA, message({"data": [1, 2]})) == [1, 2]
    with pytest.raises(ContentTypeNotSupportedError, match="one data part, or text"):
        answer_of(ADA, message({"data": 1}, {"text": "a"}))


def test_only_an_id_that_no_other_message_has_is_a_key() -> None:
    assert find_unique_id({"messageId": uuid.UUID(int=7).hex}) == uuid.UUID(int=7).hex
    assert find_unique_id({"messageId": "message-1"}) is None
    assert find_unique_id({}) is None
