"""Messages and button presses of chats, in one form for all providers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from perdure.model.runs.messages import Message, dedupe_digest

_COMMAND = re.compile(r"/(new|stop)\s*", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """File of a message, by reference.

    Attributes:
        kind: Its kind in the provider's terms, such as ``photo``.
        reference: The provider's id of the file, with which it can be fetched.
        name: Its file name, if it has one.
        mime_type: Its media type, if known.
        size: Its size in bytes, if known.
    """

    kind: str
    reference: str
    name: str | None = None
    mime_type: str | None = None
    size: int | None = None

    def line(self) -> str:
        """Return a line of text for the model about the attachment."""
        known = [self.kind, self.name, self.mime_type]
        if self.size is not None:
            known.append(f"{self.size} bytes")
        return f"[attached: {', '.join(filter(None, known))}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatMessage:
    """Message from a chat.

    Attributes:
        chat: The provider's id of the chat.
        topic: The provider's id of the topic within it, or empty.
        position: Its place in the order of the chat; a later message has a greater position.
        key: The provider's id of the message, by which a second delivery is recognised.
        text: Its text, without a mention of the bot.
        sender: The provider's id of its sender.
        sender_name: The name of its sender.
        attachments: Its files.
        edit: The provider's id of the change, if the message was changed after it was sent; otherwise empty.
        is_addressed: False for a message of a group that is accepted only if its topic is a conversation with
            the bot, or if it was accepted before it was changed.
    """

    chat: str
    topic: str = ""
    position: int
    key: str
    text: str = ""
    sender: str = ""
    sender_name: str = ""
    attachments: Sequence[Attachment] = ()
    edit: str = ""
    is_addressed: bool = True

    @property
    def dedupe_key(self) -> str:
        """The key of the message; its changes have the same."""
        return make_dedupe_key(self.key)

    @property
    def delivery_key(self) -> str:
        """The key of this delivery: that of the message, or that of the change."""
        if self.edit:
            return f"edit {self.edit}"
        return self.dedupe_key

    @property
    def command(self) -> str:
        """``new`` or ``stop`` if the message is that command, otherwise empty."""
        found = _COMMAND.fullmatch(self.text)
        if found:
            return found.group(1).lower()
        return ""

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to answer, as in a notice that a person joined."""
        return not self.text.strip() and not self.attachments

    def content(self) -> str:
        """Return the text for the model: the message's own, then a line for each attachment."""
        return "\n".join(filter(None, (self.text, *(each.line() for each in self.attachments))))

    def payload(self, channel: str, *, prefix: str = "") -> dict[str, Any]:
        """Return the message for a graph; its other fields are in the ``additional_kwargs``.

        Args:
            channel: The name of the channel.
            prefix: Text to put before the message's own.
        """
        details: dict[str, Any] = {
            "name": channel,
            "message_id": self.key,
            "position": self.position,
            "sender": self.sender,
            "sender_name": self.sender_name,
        }
        if self.edit:
            details["edit"] = self.edit
        if self.attachments:
            details["attachments"] = [asdict(each) for each in self.attachments]
        content = prefix + self.content()
        return {"role": "user", "content": content, "additional_kwargs": {"channel": details}}


def make_dedupe_key(message_id: str) -> str:
    """Return the key under which a message of a chat is accepted.

    Args:
        message_id: The provider's id of the message.
    """
    return f"message {message_id}"


class ChatAnswer(NamedTuple):
    """Message of a chat that was accepted as the answer to a question; it is stored beside the answer.

    Attributes:
        key: The key under which it was accepted.
        payload: The message, in the form of the payload of any other.
        interrupt_id: The interrupt that it answers.
        is_edit: True if it has the changed arguments of an action.
    """

    key: str
    payload: Mapping[str, Any]
    interrupt_id: str
    is_edit: bool

    @classmethod
    def of(cls, message: Message) -> ChatAnswer | None:
        """Return the answer that is stored with a message, ``None`` for any other message. The continuation
        of a wait has the data of the run that waited, but not its key."""
        stored = message.options.get("about", {}).get(_ANSWER)
        if not isinstance(stored, Mapping) or dedupe_digest(stored["key"]) != message.dedupe:
            return None
        return cls(**stored)

    def about(self) -> dict[str, Any]:
        """Return the data to store with the answer."""
        return {_ANSWER: self._asdict()}


_ANSWER = "chat_answer"


@dataclass(frozen=True, slots=True, kw_only=True)
class ButtonPress:
    """Press of a button below a question.

    Attributes:
        chat: The provider's id of the chat.
        topic: The provider's id of the topic within it, or empty.
        position: The place of the question in the order of the chat, or of the press if that is unknown.
        key: The provider's id of the press.
        data: The button's data.
        question: The provider's id of the message with the button, empty if the provider does not give it.
        sender: The provider's id of the person.
    """

    chat: str
    topic: str = ""
    position: int
    key: str
    data: str
    question: str = ""
    sender: str = ""


def payload_of(message: Message) -> Any:
    """Return the payload of a chat's message, also if it was accepted as an answer."""
    answer = ChatAnswer.of(message)
    return message.payload if answer is None else answer.payload


def position_of(payload: Any) -> int | None:
    """Return the position of the message of a stored payload, ``None`` if it is not a message of a chat."""
    found = _read_details(payload).get("position")
    if isinstance(found, int):
        return found
    return None


def message_id_of(payload: Any) -> str | None:
    """Return the provider's id of the message of a stored payload, ``None`` if it is not a message of a
    chat."""
    found = _read_details(payload).get("message_id")
    if isinstance(found, str):
        return found
    return None


def edit_of(payload: Any) -> str:
    """Return the provider's id of the change of a stored payload, empty for a message that was not
    changed."""
    return str(_read_details(payload).get("edit", ""))


def is_same(one: Any, other: Any) -> bool:
    """Return True if two payloads of a channel's messages have the same text and files."""
    return (one["message"]["content"], _read_details(one).get("attachments")) == (
        other["message"]["content"],
        _read_details(other).get("attachments"),
    )


def _read_details(payload: Any) -> Mapping[str, Any]:
    try:
        found = payload["message"]["additional_kwargs"]["channel"]
    except (KeyError, TypeError):
        return {}
    if isinstance(found, Mapping):
        return found
    return {}
