"""Policy of a conversation: its limit, how it is counted, and who summarises what leaves its window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage, SystemMessage

from perdure.conversation.counting import Counter, approximate
from perdure.conversation.summary import ModelSummarizer, Summarize, Summary, folded
from perdure.conversation.window import Limit, Window, window

_AHEAD = 0.85
"""Share of the limit from which a summary is made ahead, before the window has to move."""

_RESERVED = 8
"""Without a size of its own the summary gets this part of the limit."""


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """Policy of a conversation, for every way of using it: middleware, hook, and ``Agent(conversation=…)``.

    Args:
        limit: The most tokens that the model is sent, or a ``Limit``.
        counter: Counts the tokens of a message.
        tools: Tools that the model is given, which count; a middleware knows them by itself.
        system: The system prompt that the graph adds to the messages; it counts.
        summarize: Makes the running summary: a chat model, or a function, see ``Summarize``. Without one,
            what leaves the window is not summarised.
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
        limit = self.limit if isinstance(self.limit, Limit) else Limit(self.limit)
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
        return self._window(messages, self.bounds, summary, tools, system)

    def to_fold(self, messages: Sequence[BaseMessage], summary: Summary | None) -> list[BaseMessage]:
        """Return the messages that a summary should cover next: those that left the window, and those that
        will leave it soon."""
        if self.summarize is None:
            return []
        bounds = self.bounds
        soon = replace(bounds, tokens=max(bounds.summary + 1, int(bounds.tokens * _AHEAD)))
        left = after(self._window(messages, soon, summary, None, None).left_out, summary)
        pending = () if summary is None else summary.pending
        return [*pending, *(message for message in left if message.id is not None)]

    async def fold(self, summary: Summary | None, messages: Sequence[BaseMessage]) -> Summary:
        """Return a summary that covers some messages too.

        Raises:
            SummaryRefused: What was made is no summary.
            ValueError: The policy makes no summaries.
        """
        summarize = self.summarize
        if summarize is None:
            raise ValueError("this conversation has no summarize=…")
        if isinstance(summarize, BaseChatModel):
            summarize = ModelSummarizer(summarize, counter=self.counter)
        return await folded(summary, messages, summarize, most=self.bounds.summary, counter=self.counter)

    def _window(
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


def after(messages: Sequence[BaseMessage], summary: Summary | None) -> list[BaseMessage]:
    """Return the messages after the last one that a summary covers."""
    if summary is None or summary.covers is None:
        return list(messages)
    places = [place for place, message in enumerate(messages) if message.id == summary.covers]
    return list(messages[places[-1] + 1 :] if places else messages)
