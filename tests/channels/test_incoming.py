"""Messages of chats."""

from __future__ import annotations

import pytest

from perdure.channels.incoming import Attachment, ChatMessage, message_id_of, position_of


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("/new", "new"),
        ("/NEW ", "new"),
        ("/stop@another_bot", ""),
        ("/newer", ""),
        ("/new topic", ""),
        ("what does /stop do?", ""),
        ("/start", ""),
    ],
)
def test_commands_are_whole_messages(text: str, command: str) -> None:
    assert ChatMessage(chat="1", position=1, key="1", text=text).command == command


def test_a_payload_has_what_is_known_about_the_message() -> None:
    file = Attachment(kind="document", reference="ref", name="a.pdf", size=3)
    message = ChatMessage(chat="1", position=5, key="k", text="hi", attachments=(file,), sender="7")
    payload = message.payload("telegram", prefix="(edited) ")
    assert payload["content"] == "(edited) hi\n[attached: document, a.pdf, 3 bytes]"
    about = payload["additional_kwargs"]["channel"]
    assert about["attachments"] == [
        {"kind": "document", "reference": "ref", "name": "a.pdf", "mime_type": None, "size": 3}
    ]
    assert (position_of({"message": payload}), message_id_of({"message": payload})) == (5, "k")


def test_what_is_no_message_of_a_chat_has_no_position() -> None:
    for payload in (None, {}, {"resume": 1}, {"message": {"content": "x"}}, {"message": "text"}):
        assert position_of(payload) is None
        assert message_id_of(payload) is None
