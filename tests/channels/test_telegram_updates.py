"""Telegram's messages in the form that all channels share."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from aiogram.types import Chat, Message

from perdure.channels.telegram_updates import message_of


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("@bot hello", "hello"),
        ("hello @Bot, there", "hello there"),
        ("hello @bot!", "hello"),
        ("@bot\nhello\n\nthere", "hello\n\nthere"),
        ("hello\n@bot\nthere", "hello\n\nthere"),
        ("hello\t@bot", "hello"),
        ("@bot @bot hello", "hello"),
        ("@both hello", "@both hello"),
        ("a@bot hello", "a@bot hello"),
        ("/new@bot", "/new"),
        ("@bot\n/new", "/new"),
        ("@bot", ""),
    ],
)
def test_a_mention_of_the_bot_is_removed_wherever_it_stands(text: str, read: str) -> None:
    sent = datetime.fromtimestamp(0, UTC)
    message = Message(message_id=1, date=sent, chat=Chat(id=1, type="group"), text=text)
    assert message_of(message, "bot", "").text == read


@pytest.mark.parametrize("bot", [{"id": 1087968824, "username": "GroupAnonymousBot"}, {"id": 136817688}])
def test_who_writes_as_a_chat_is_no_user(bot: dict[str, Any]) -> None:
    message = Message.model_validate(
        {
            "message_id": 1,
            "date": 0,
            "chat": {"id": -1, "type": "supergroup", "title": "Group"},
            "from": {"is_bot": True, "first_name": "Group", **bot},
            "sender_chat": {"id": -2, "type": "channel", "title": "News"},
            "text": "hello",
        }
    )
    read = message_of(message, "bot", "")
    assert (read.sender, read.sender_name) == ("", "News")
