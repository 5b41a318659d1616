"""Chat models for the tests: they check what they are sent, and answer from a script."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable
from pydantic import Field

from tests.conversation.histories import anthropic_body, openai_body
from tests.conversation.rules import anthropic_faults, openai_faults


class Scripted(BaseChatModel):
    """A model that answers in order, keeps what it was sent, and takes only what providers take."""

    answers: list[AIMessage] = Field(default_factory=lambda: [AIMessage("fine")])
    sent: list[list[BaseMessage]] = Field(default_factory=list)
    given: list[dict[str, Any]] = Field(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        assert not openai_faults(openai_body(messages))
        assert not anthropic_faults(anthropic_body(messages))
        self.sent.append(messages)
        self.given.append(kwargs)
        answer = self.answers[min(len(self.sent), len(self.answers)) - 1]
        return ChatResult(generations=[ChatGeneration(message=answer.model_copy())])

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Runnable[Any, AIMessage]:
        return self.bind(tools=[{"name": each.name, "about": each.description} for each in tools], **kwargs)
