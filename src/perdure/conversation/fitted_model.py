"""Chat model that passes a window of its messages to another model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, Literal, cast

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, ToolCallChunk
from langchain_core.messages.utils import convert_to_messages
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.prompt_values import PromptValue
from langchain_core.runnables import Runnable, RunnableBinding, RunnableLambda
from pydantic import ConfigDict, Field

from perdure.conversation.counting import Counter, approximate, counter_of, remember_counts
from perdure.conversation.window import Limit, Window, window

_TAKEN_OVER = (
    "cache",
    "callbacks",
    "custom_get_token_ids",
    "disable_streaming",
    "metadata",
    "output_version",
    "profile",
    "rate_limiter",
    "tags",
    "verbose",
)
"""Settings of a model that LangChain applies around its call. The fitted model takes them over, as LangChain
calls it instead."""


def fit_model(
    model: BaseChatModel,
    limit: int | Limit,
    *,
    counter: Counter | Literal["model"] = approximate,
    on_window: Callable[[Window], None] | None = None,
) -> FittedModel:
    """Return a chat model that sends ``model`` a valid window of the messages, and is otherwise the same.

    It takes the model's place in any graph: with tools, structured output, streaming, sync and async. The
    graph's state stays as it is.

    Args:
        model: The model, without tools bound to it: bind them to the result.
        limit: Maximum number of tokens that are sent to the model, tools and system messages included. Leave
            room for the answer in the model's context.
        counter: Counts the tokens of a message; ``"model"`` asks the model, see ``counter_of``.
        on_window: Is called with each window before it is sent, for logs and metrics.

    Raises:
        TypeError: ``model`` is not a chat model.
        ValueError: The model has no counter of its own.
    """
    if not isinstance(cast("object", model), BaseChatModel):
        raise TypeError(
            f"fit_model() takes a chat model, not a {type(model).__name__}; wrap the model first, then bind "
            "tools to the result: fit_model(model, limit).bind_tools(tools)"
        )
    return FittedModel(
        model=model,
        limit=Limit.of(limit),
        counter=remember_counts(counter_of(model)) if counter == "model" else counter,
        on_window=on_window,
        **{name: getattr(model, name) for name in _TAKEN_OVER},
    )


class FittedModel(BaseChatModel):
    """Chat model that sends another one a window of the messages; made by ``fit_model``."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    model: BaseChatModel
    limit: Limit
    counter: Counter = Field(exclude=True, repr=False)
    on_window: Callable[[Window], None] | None = Field(default=None, exclude=True, repr=False)

    @property
    def _llm_type(self) -> str:
        return self.model._llm_type

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {**self.model._identifying_params, "window": self.limit.tokens}

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> Any:
        return self.model._get_ls_params(stop=stop, **kwargs)

    def get_token_ids(self, text: str) -> list[int]:
        """Return the model's own token ids of a text."""
        return self.model.get_token_ids(text)

    def get_num_tokens_from_messages(
        self, messages: list[BaseMessage], tools: Sequence[Any] | None = None
    ) -> int:
        """Return the model's own count of messages' tokens."""
        given = {} if tools is None else {"tools": tools}
        return self.model.get_num_tokens_from_messages(messages, **given)

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Runnable[LanguageModelInput, AIMessage]:
        """Bind tools as the model itself does; their definitions count as part of the prompt."""
        bound = self.model.bind_tools(tools, **kwargs)
        if not isinstance(bound, RunnableBinding) or bound.bound is not self.model:
            return self._make_window_step(tools) | bound
        return cast("Runnable[LanguageModelInput, AIMessage]", self.bind(**bound.kwargs))

    def with_structured_output(
        self, schema: Any, *, include_raw: bool = False, **kwargs: Any
    ) -> Runnable[LanguageModelInput, Any]:
        """Return the model's own structured output from a window of the messages; the schema counts."""
        chain = self.model.with_structured_output(schema, include_raw=include_raw, **kwargs)
        return self._make_window_step([schema]) | chain

    def fit(self, messages: Sequence[BaseMessage], tools: Sequence[Any] = ()) -> list[BaseMessage]:
        """Return those of the messages that are sent to the model."""
        chosen = window(messages, self.limit, counter=self.counter, tools=tools)
        if self.on_window is not None:
            self.on_window(chosen)
        return chosen.messages

    def _make_window_step(self, tools: Sequence[Any]) -> Runnable[LanguageModelInput, list[BaseMessage]]:
        def choose(given: LanguageModelInput) -> list[BaseMessage]:
            return self.fit(messages_of(given), tools)

        async def choose_off_loop(given: LanguageModelInput) -> list[BaseMessage]:
            return await self._off_loop(choose, given)

        return RunnableLambda(choose, choose_off_loop, name="window")

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return self.model._generate(self._fit(messages, kwargs), stop, run_manager, **kwargs)

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        chosen = await self._afit(messages, kwargs)
        return await self.model._agenerate(chosen, stop, run_manager, **kwargs)

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        chosen = self._fit(messages, kwargs)
        if type(self.model)._stream is BaseChatModel._stream:
            yield from _make_chunks(self.model._generate(chosen, stop, run_manager, **kwargs))
        else:
            yield from self.model._stream(chosen, stop, run_manager, **kwargs)

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        chosen = await self._afit(messages, kwargs)
        kind = type(self.model)
        if kind._astream is BaseChatModel._astream and kind._stream is BaseChatModel._stream:
            for chunk in _make_chunks(await self.model._agenerate(chosen, stop, run_manager, **kwargs)):
                yield chunk
        else:
            async for chunk in self.model._astream(chosen, stop, run_manager, **kwargs):
                yield chunk

    def _should_stream(self, *, async_api: bool, **kwargs: Any) -> bool:
        return self.model._should_stream(async_api=async_api, **kwargs)

    def _streaming_disabled(self, **kwargs: Any) -> bool:
        return self.model._streaming_disabled(**kwargs)

    async def _afit(self, messages: Sequence[BaseMessage], kwargs: dict[str, Any]) -> list[BaseMessage]:
        return await self._off_loop(self._fit, messages, kwargs)

    async def _off_loop(self, function: Callable[..., list[BaseMessage]], *args: Any) -> list[BaseMessage]:
        # A counter that takes long, or makes requests, would stop the event loop for everyone.
        if self.counter is approximate:
            return function(*args)
        return await asyncio.to_thread(function, *args)

    def _fit(self, messages: Sequence[BaseMessage], kwargs: dict[str, Any]) -> list[BaseMessage]:
        return self.fit(messages, [*kwargs.get("tools", ()), *kwargs.get("functions", ())])


def messages_of(given: LanguageModelInput) -> list[BaseMessage]:
    """Return the messages of a model's input: a text, a prompt, or messages in any form of LangChain's.

    Raises:
        ValueError: It is none of these.
    """
    if isinstance(given, PromptValue):
        return given.to_messages()
    return convert_to_messages([("user", given)] if isinstance(given, str) else given)


def _make_chunks(result: ChatResult) -> Iterator[ChatGenerationChunk]:
    """Yield the whole answer of a model that does not stream as one chunk."""
    for generation in result.generations:
        message = cast("AIMessage", generation.message)
        calls = [
            ToolCallChunk(
                name=call["name"],
                args=json.dumps(call["args"]),
                id=call["id"],
                index=place,
                type="tool_call_chunk",
            )
            for place, call in enumerate(message.tool_calls)
        ]
        chunk = AIMessageChunk(
            content=message.content,
            additional_kwargs=message.additional_kwargs,
            response_metadata=message.response_metadata,
            name=message.name,
            id=message.id,
            usage_metadata=message.usage_metadata,
            tool_call_chunks=calls,
            chunk_position="last",
        )
        yield ChatGenerationChunk(message=chunk, generation_info=generation.generation_info)
