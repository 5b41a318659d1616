"""Telegram's messages in the form that all channels share."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from aiogram.types import Message, MessageEntity

from perdure.channels.incoming import Attachment, ChatMessage

_FILES = ("document", "voice", "audio", "video", "animation", "sticker", "video_note")


def message_of(message: Message, username: str, edit: str) -> ChatMessage:
    """Return a message in the shared form.

    Args:
        message: Telegram's message.
        username: The bot's user name, whose mention is removed from the text.
        edit: The id of the update if the message was changed, otherwise empty.
    """
    text = message.text or message.caption or ""
    if username:
        text = _without_mention(text, username)
    if message.location is not None:
        text = f"{text}\n[location: {message.location.latitude}, {message.location.longitude}]".strip()
    sender = sender_name = topic = ""
    if message.sender_chat is not None:
        # Telegram names a bot of its own as the sender of a message that was sent as a group or a channel.
        sender_name = message.sender_chat.full_name
    elif message.from_user is not None:
        sender, sender_name = str(message.from_user.id), message.from_user.full_name
    if message.is_topic_message and message.message_thread_id is not None:
        topic = str(message.message_thread_id)
    return ChatMessage(
        chat=str(message.chat.id),
        topic=topic,
        position=message.message_id,
        key=str(message.message_id),
        text=text,
        sender=sender,
        sender_name=sender_name,
        attachments=tuple(attachments_of(message)),
        edit=edit,
    )


def attachments_of(message: Message) -> Iterator[Attachment]:
    """Yield the files of a message; of a photo, the largest of its sizes."""
    if message.photo:
        largest = max(message.photo, key=lambda size: size.width * size.height)
        yield Attachment(
            kind="photo", reference=largest.file_id, mime_type="image/jpeg", size=largest.file_size
        )
    for kind in _FILES:
        file = getattr(message, kind)
        if file is None or (kind == "document" and message.animation is not None):
            # An animation is also sent as a document.
            continue
        yield Attachment(
            kind=kind,
            reference=file.file_id,
            name=getattr(file, "file_name", None),
            mime_type=getattr(file, "mime_type", None),
            size=file.file_size,
        )


def is_addressed(message: Message, username: str, bot_id: int) -> bool:
    """Return True if a message of a group is for the bot: it mentions the bot, replies to it, or is a
    command."""
    replied = message.reply_to_message
    if replied is not None and replied.from_user is not None and replied.from_user.id == bot_id:
        return True
    text = message.text or message.caption or ""
    entities: Sequence[MessageEntity] = message.entities or message.caption_entities or ()
    for entity in entities:
        mentioned = entity.extract_from(text).lower()
        if entity.type == "mention" and mentioned == f"@{username}".lower():
            return True
        if entity.type == "text_mention" and entity.user is not None and entity.user.id == bot_id:
            return True
        if entity.type == "bot_command" and mentioned.partition("@")[2] in ("", username.lower()):
            return True
    return False


def _without_mention(text: str, username: str) -> str:
    mention = f"@{username}".lower()
    if text.lower().startswith("/"):
        # A command keeps what follows it.
        command, blank, rest = text.partition(" ")
        if command.lower().endswith(mention):
            return command[: -len(mention)] + blank + rest
        return text
    return re.sub(rf"(?<!\S){re.escape(mention)}[,:;.!?]*(?!\S) ?", "", text, flags=re.IGNORECASE).strip()
