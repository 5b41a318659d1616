"""Pauses that a provider asked for, by chat: a chat that has to wait delays no other."""

from __future__ import annotations

import time
from collections.abc import Callable

from perdure.runtime import NotSent

_SWEEP_AT = 1024


class ChatBackoff:
    """Times until which chats take no messages, in the memory of this process.

    The time of a thread's next attempt is stored with the thread; the times here also hold back calls for
    other threads of the same chat.

    Args:
        clock: The time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until: dict[str, float] = {}

    def check(self, chat: str) -> None:
        """Raise ``NotSent`` with the rest of the pause if a chat has to wait."""
        left = self._until.get(chat, 0.0) - self._clock()
        if left > 0:
            raise NotSent("the chat takes no messages for a while", retry_after=left)

    def note_limit(self, chat: str, seconds: float) -> NotSent:
        """Note that the provider asked for a pause, and return the error to raise. The pause is limited as in
        ``NotSent``, so that an absurdly long one does not silence the chat."""
        error, now = NotSent("the provider limits the rate of messages", retry_after=seconds), self._clock()
        if len(self._until) >= _SWEEP_AT:
            self._until = {name: until for name, until in self._until.items() if until > now}
        self._until[chat] = max(self._until.get(chat, 0.0), now + (error.retry_after or 0.0))
        return error
