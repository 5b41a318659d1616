"""WhatsApp's messages and button presses in the form that all channels share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from perdure.channels.incoming import Attachment, ButtonPress, ChatMessage
from perdure.channels.questions import parse_button

_FILES = ("image", "video", "audio", "document", "sticker")


def read_updates(body: Mapping[str, Any], phone_id: str) -> Iterator[ChatMessage | ButtonPress]:
    """Yield the messages and pressed buttons sent to a phone number, in order. Statuses of messages,
    reactions, and messages of groups are left out.

    Args:
        body: The body of the request.
        phone_id: The id of the phone number.

    Raises:
        LookupError: The body lacks a field that WhatsApp documents.
        ValueError: A time is not a timestamp of WhatsApp.
    """
    for entry in body["entry"]:
        for change in entry["changes"]:
            value = change["value"]
            if change["field"] != "messages" or str(value["metadata"]["phone_number_id"]) != phone_id:
                continue
            names = {
                each.get("wa_id"): each.get("profile", {}).get("name") for each in value.get("contacts", ())
            }
            for message in value.get("messages", ()):
                if "group_id" not in message:
                    yield _read_message(message, str(names.get(message["from"]) or ""))


def _read_message(message: Mapping[str, Any], name: str) -> ChatMessage | ButtonPress:
    chat, key, position = str(message["from"]), str(message["id"]), int(message["timestamp"])
    kind = message["type"]
    reply = message.get("interactive", {}).get("button_reply", {})
    if parse_button(str(reply.get("id", ""))) is not None:
        return ButtonPress(
            chat=chat,
            position=position,
            key=key,
            data=str(reply["id"]),
            question=str(message.get("context", {}).get("id", "")),
            sender=chat,
        )
    text = str(message.get("text", {}).get("body") or message.get("button", {}).get("text") or "")
    text = text or str(reply.get("title") or "")
    files: tuple[Attachment, ...] = ()
    if kind in _FILES:
        file = message[kind]
        text = str(file.get("caption") or "")
        files = (
            Attachment(
                kind=kind,
                reference=str(file["id"]),
                name=file.get("filename"),
                mime_type=file.get("mime_type"),
            ),
        )
    if kind == "location":
        text = f"[location: {message['location']['latitude']}, {message['location']['longitude']}]"
    return ChatMessage(
        chat=chat,
        position=position,
        key=key,
        text=text,
        sender=chat,
        sender_name=name,
        attachments=files,
    )
