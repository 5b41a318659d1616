"""Policy of a conversation: its limit, the counting of tokens, and the summary of messages that leave the
window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage, SystemMessage

from perdure.conversation.counting import Counter, approximate
from perdure.conversation.summary import (
    Leaving,
    ModelSummarizer,
    Summarize,
    Summary,
    fold_summary,
    fold_summary_sync,
)
from perdure.conversation.window import Limit, Window, window
from perdure.errors import MessageTooLong

_AHEAD = 0.85
"""Share of the limit from which a summary is made ahead, before the window has to move."""

_RESERVED = 8
"""The summary gets the limit divided by this, unless its size is set."""


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """Policy of a conversation, for every way of using it: middleware, hook, and ``Agent(conversation=…)``.

    Args:
        limit: Maximum number of tokens that are sent to the model, or a ``Limit``.
        counter: Counts the tokens of a message.
        tools: Tools that the model is given, which count; a middleware knows them by itself.
        system: The system prompt that the graph adds to the messages; it counts.
        summarize: Makes the running summary: a chat model, or a function, see ``Summarize``. Without one,
            messages that leave the window are not summarised.
        key: The key of the messages in the state.
    """

    limit: int | Limit
    counter: Counter = approximate
    tools: Sequence[Any] = ()
    system: str | SystemMessage | None = None
    summarize: BaseChatModel | Summarize | None = field(default=None, repr=False)
    key: str = "messages"

    @property
    def bounds(self) -> Limit:
        """Limit with the room for a summary, if one is made."""
        limit = Limit.of(self.limit)
        if self.summarize is None or limit.summary:
            return limit
        return replace(limit, summary=limit.tokens // _RESERVED)

    def window(
        self,
        messages: Sequence[BaseMessage],
        *,
        summary: Summary | None = None,
        tools: Sequence[Any] | None = None,
        system: str | SystemMessage | None = None,
    ) -> Window:
        """Return the window of a conversation, as ``perdure.conversation.window`` does under this policy."""
        return self._choose_window(messages, self.bounds, summary, tools, system)

    def to_fold(self, messages: Sequence[BaseMessage], summary: Summary | None) -> Leaving | None:
        """Return the messages that a summary should cover next: those that left the window, and those that
        will leave it soon; or ``None`` if there are none.

        Raises:
            NoWindow: No valid list of the messages fits.
        """
        if self.summarize is None:
            return None
        bounds = self.bounds
        lower_limit = replace(bounds, tokens=max(bounds.summary + 1, int(bounds.tokens * _AHEAD)))
        try:
            chosen = self._choose_window(messages, lower_limit, summary, None, None)
        except MessageTooLong:
            chosen = self._choose_window(messages, bounds, summary, None, None)
        pending = () if summary is None else summary.pending
        leaving = [*pending, *find_uncovered(chosen.left_out, summary)]
        if leaving:
            return Leaving(leaving, chosen.cut)
        return None

    async def fold(self, summary: Summary | None, leaving: Leaving) -> Summary:
        """Return a summary that also covers the messages that ``to_fold`` found.

        A text that is too long is shortened by one more request to a model, and then by leaving out its
        oldest sentences.

        Raises:
            SummaryRefused: The result is not a summary.
            ValueError: The policy makes no summaries.
        """
        summarizer = self._get_summarizer()
        return await fold_summary(
            summary, leaving, summarizer, most=self.bounds.summary, counter=self.counter
        )

    def fold_sync(self, summary: Summary | None, leaving: Leaving) -> Summary:
        """Return the same as ``fold``, for a synchronous caller. A coroutine function runs in an event loop
        in another OS thread, always the same one."""
        summarizer = self._get_summarizer()
        return fold_summary_sync(summary, leaving, summarizer, most=self.bounds.summary, counter=self.counter)

    def _get_summarizer(self) -> Summarize | ModelSummarizer:
        if self.summarize is None:
            raise ValueError("this conversation has no summarize=…")
        if isinstance(self.summarize, BaseChatModel):
            return ModelSummarizer(self.summarize, counter=self.counter)
        return self.summarize

    @property
    def counts_quickly(self) -> bool:
        """True if counting is so quick that it need not be moved to another OS thread, as the default
        estimate is."""
        return self.counter is approximate

    def _choose_window(
        self,
        messages: Sequence[BaseMessage],
        limit: Limit,
        summary: Summary | None,
        tools: Sequence[Any] | None,
        system: str | SystemMessage | None,
    ) -> Window:
        return window(
            messages,
            limit,
            counter=self.counter,
            tools=self.tools if tools is None else tools,
            system=self.system if system is None else system,
            summary=summary,
        )


def find_uncovered(messages: Sequence[BaseMessage], summary: Summary | None) -> list[BaseMessage]:
    """Return the messages that a summary does not cover: those after the last covered one (all messages, if
    that one is missing), and the earlier ones in ``summary.keeps``."""
    if summary is None or summary.covers is None:
        return list(messages)
    places = [place for place, message in enumerate(messages) if message.id == summary.covers]
    if not places:
        return list(messages)
    last = places[-1]
    kept = [message for message in messages[:last] if message.id in summary.keeps]
    return [*kept, *messages[last + 1 :]]
