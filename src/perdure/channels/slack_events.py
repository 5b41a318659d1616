"""Slack's events, button presses and slash commands in the form that all channels share."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from typing import Any

from perdure.channels.incoming import Attachment, ButtonPress, ChatMessage
from perdure.channels.options import Groups

_CHANGED = "message_changed"
_WRITTEN = (None, "file_share", "thread_broadcast")
"""Subtypes of messages that people write."""
_COMMAND = re.compile(r"/(?:.*-)?(new|stop)", re.IGNORECASE)


def chat_of(team: str, channel: str) -> str:
    """Return the id of a chat: a workspace and a channel within it."""
    return f"{team}.{channel}"


def channel_of(chat: str) -> str:
    """Return the id of a chat's channel within its workspace."""
    return chat.partition(".")[2]


def position_of_ts(ts: str) -> int:
    """Return the position of a message in its channel: its time in microseconds.

    Raises:
        ValueError: The text is not a timestamp of Slack.
    """
    seconds, _, micros = ts.partition(".")
    return int(seconds) * 1_000_000 + int(micros.ljust(6, "0")[:6] or 0)


def message_of(body: Mapping[str, Any], groups: Groups) -> ChatMessage | None:
    """Return the message of an event, ``None`` if the event is not a message of a person to the bot, or in a
    thread that may be a conversation with the bot.

    A message that mentions the bot comes as two events, with the same id of the message.

    Args:
        body: The body of the request.
        groups: Which messages of channels are accepted.

    Raises:
        LookupError: The event lacks a field that Slack documents.
        ValueError: A time is not a timestamp of Slack.
    """
    event: Mapping[str, Any] = body["event"]
    if event["type"] not in ("message", "app_mention") or event.get("subtype") not in (*_WRITTEN, _CHANGED):
        return None
    edit, message = "", event
    if event.get("subtype") == _CHANGED:
        message = event["message"]
        if message.get("text") == event.get("previous_message", {}).get("text"):
            # Slack unfolded a link; the text is unchanged.
            return None
        edit = str(event["event_ts"])
    if message.get("bot_id") or not message.get("user") or message.get("subtype") not in _WRITTEN:
        # A message of a bot, or no message: the deleted first message of a thread becomes a "tombstone".
        return None
    text = str(message.get("text") or "")
    bots = [str(each["user_id"]) for each in body.get("authorizations") or () if each.get("is_bot")]
    is_direct = event.get("channel_type") == "im" or str(event["channel"]).startswith("D")
    if not is_direct and groups == "none":
        return None
    is_addressed = (
        is_direct
        or groups == "all"
        or event["type"] == "app_mention"
        or any(f"<@{bot}>" in text for bot in bots)
        or message.get("parent_user_id") in bots
    )
    for bot in bots:
        text = text.replace(f"<@{bot}>", "")
    # In a channel each message begins a thread of its own.
    topic = message.get("thread_ts") or ("" if is_direct else message["ts"])
    read = ChatMessage(
        chat=chat_of(str(body["team_id"]), str(event["channel"])),
        topic=str(topic),
        position=position_of_ts(message["ts"]),
        key=str(message["ts"]),
        text=html.unescape(text.strip()),
        sender=str(message["user"]),
        attachments=tuple(_make_attachment(each) for each in message.get("files") or ()),
        edit=edit,
        is_addressed=is_addressed,
    )
    if is_addressed or read.command or edit or message.get("thread_ts"):
        return read
    return None


def press_of(payload: Mapping[str, Any]) -> ButtonPress | None:
    """Return the press of a button, ``None`` for any other interaction. Raises the errors of
    ``message_of``."""
    if payload.get("type") != "block_actions" or not payload.get("actions"):
        return None
    action, message = payload["actions"][0], payload["message"]
    return ButtonPress(
        chat=chat_of(str(payload["team"]["id"]), str(payload["channel"]["id"])),
        topic=str(message.get("thread_ts") or ""),
        position=position_of_ts(message["ts"]),
        key=f"{message['ts']} {action['action_ts']}",
        data=str(action.get("value") or ""),
        question=str(message["ts"]),
        sender=str(payload["user"]["id"]),
    )


def command_of(form: Mapping[str, str], sent_at: str) -> ChatMessage | None:
    """Return a slash command whose name ends in ``new`` or ``stop``, ``None`` for any other command.

    Args:
        form: The fields of the request.
        sent_at: The time of the request by Slack's clock, in seconds.
    """
    found = _COMMAND.fullmatch(form.get("command", ""))
    if found is None or not form.get("team_id") or not form.get("channel_id"):
        return None
    return ChatMessage(
        chat=chat_of(form["team_id"], form["channel_id"]),
        # Slack gives a command no timestamp, and never sends it again, so it is placed after all messages of
        # its second.
        position=int(sent_at) * 1_000_000 + 999_999,
        key=form.get("trigger_id", ""),
        text=f"/{found.group(1).lower()}",
        sender=form.get("user_id", ""),
    )


def _make_attachment(file: Mapping[str, Any]) -> Attachment:
    return Attachment(
        kind="file",
        reference=str(file["id"]),
        name=file.get("name"),
        mime_type=file.get("mimetype"),
        size=file.get("size"),
    )
