"""Models that cost nothing: they answer in turn, and one of them letter by letter."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from pydantic import PrivateAttr


class _Turns(BaseChatModel):
    _turns: Iterator[int] = PrivateAttr(default_factory=itertools.count)

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Any:
        return self


class Scripted(_Turns):
    """Gives the messages in turn, and begins again behind the last."""

    answers: list[AIMessage]

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        answer = self.answers[next(self._turns) % len(self.answers)]
        return ChatResult(generations=[ChatGeneration(message=answer.model_copy())])


class Locating(_Turns):
    """Calls the tool that runs in the browser, unless it has been called."""

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        answer = AIMessage("Location received!")
        if not any(isinstance(message, ToolMessage) for message in messages):
            call = {"id": "tool-call-browser-1", "name": "get_location", "args": {"highAccuracy": False}}
            answer = AIMessage("", tool_calls=[{**call, "type": "tool_call"}])
        return ChatResult(generations=[ChatGeneration(message=answer)])


class Letters(_Turns):
    """Streams the texts in turn, letter by letter, each as one message with an id of its own."""

    texts: list[str]

    def _take(self) -> tuple[str, str]:
        turn = next(self._turns)
        return f"stategraph-message-{turn}", self.texts[turn % len(self.texts)]

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        name, text = self._take()
        return ChatResult(generations=[ChatGeneration(message=AIMessage(text, id=name))])

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        name, text = self._take()
        for letter in text:
            chunk = ChatGenerationChunk(message=AIMessageChunk(content=letter, id=name))
            if run_manager is not None:
                await run_manager.on_llm_new_token(letter, chunk=chunk)
            yield chunk


def make_calls(message_id: str, *calls: tuple[str, str, dict[str, Any]]) -> AIMessage:
    """A message that calls tools: for each call its id, the tool and the arguments."""
    made = [{"id": call, "name": name, "args": args, "type": "tool_call"} for call, name, args in calls]
    return AIMessage("", id=message_id, tool_calls=made)


def make_scripted(call: str, tool: str, args: dict[str, Any], answer: str) -> Scripted:
    """A model that calls a tool, and then answers."""
    return Scripted(
        answers=[make_calls(f"{call}-message", (call, tool, args)), AIMessage(answer, id=f"{call}-final")]
    )
