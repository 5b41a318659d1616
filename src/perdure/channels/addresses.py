"""Addresses of conversations: channel, chat, topic and session, as the id of a thread and back, and users."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import quote, unquote

_SEPARATOR = ":"


class ChatAddress(NamedTuple):
    """Address of a conversation.

    Two different addresses never have the same thread id. The tenant is not part of the id: threads of
    different tenants are separate anyway.

    Attributes:
        channel: The name of the channel.
        chat: The provider's id of the chat.
        topic: The provider's id of a topic or thread within the chat; empty for the chat itself.
        session: The name of the conversation since the last ``/new``; empty for the first conversation.
    """

    channel: str
    chat: str
    topic: str = ""
    session: str = ""

    @property
    def thread_id(self) -> str:
        """The id of the thread."""
        return _join(*self)

    @classmethod
    def of(cls, thread_id: str) -> ChatAddress:
        """Return the address of a thread.

        Raises:
            ValueError: The thread is not a conversation of a chat channel.
        """
        parts = [unquote(part, errors="surrogatepass") for part in thread_id.split(_SEPARATOR)]
        if len(parts) != len(cls._fields) or cls(*parts).thread_id != thread_id:
            raise ValueError("the thread is not a conversation of a chat channel")
        return cls(*parts)


def user_of(channel: str, chat: str, sender: str) -> str:
    """Return the id of the user who writes in a chat, empty for a sender who is not known.

    A person is one user in private chats (of these the chat's id is the sender's, at most providers) and
    another user in each group, so that no group recalls a private chat. Two users never have the same id.
    """
    if not sender:
        return ""
    # In a private chat both are the same.
    return _join(channel, *dict.fromkeys((chat, sender)))


def _join(*parts: str) -> str:
    return _SEPARATOR.join(quote(part, safe="", errors="surrogatepass") for part in parts)
