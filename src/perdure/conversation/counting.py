"""Counting of the tokens that messages and tools take up."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, SystemMessage
from langchain_core.messages.utils import count_tokens_approximately
from langchain_core.utils.function_calling import convert_to_openai_tool

from perdure.conversation.tool_calls import is_call
from perdure.model.bounded_cache import BoundedCache

Counter = Callable[[list[BaseMessage]], int]
"""Returns the number of tokens of some messages. A window is measured by the sum over its single messages,
which may be more than the whole list takes up, and must never be less."""


def approximate(messages: list[BaseMessage]) -> int:
    """Count tokens by LangChain's estimate: four characters each. It is quick and needs no model, and is far
    too low for Chinese, Japanese and Korean."""
    return count_tokens_approximately(messages) + sum(map(_count_omitted_calls, messages))


def _count_omitted_calls(message: BaseMessage) -> int:
    """Count the calls that LangChain's estimate omits: those of a message whose content is a list without
    them."""
    if not isinstance(message, AIMessage) or isinstance(message.content, str) or not message.tool_calls:
        return 0
    if any(isinstance(block, dict) and is_call(block) for block in message.content):
        return 0
    return -(-len(repr(message.tool_calls)) // 4)


def counter_of(model: BaseChatModel) -> Counter:
    """Return a model's own counter.

    It is not the default, because the counters of some models make requests: that of ``ChatAnthropic`` asks
    the provider for every count, and that of ``ChatOpenAI`` downloads its vocabulary once.

    Raises:
        ValueError: The model has no counter of its own; LangChain would load a GPT-2 tokenizer for it.
    """
    if type(model).get_num_tokens_from_messages is BaseChatModel.get_num_tokens_from_messages and (
        type(model).get_token_ids is BaseChatModel.get_token_ids and model.custom_get_token_ids is None
    ):
        raise ValueError(
            f"{type(model).__name__} has no token counter of its own; pass counter=…, a function of a list "
            "of messages, or leave it out for an estimate"
        )
    return model.get_num_tokens_from_messages


def remember_counts(counter: Counter, most: int = 10_000) -> Counter:
    """Return a counter that counts each single message once, for counters that take long.

    Args:
        counter: The counter.
        most: The number of counts that are kept; older ones are forgotten.
    """
    counts: BoundedCache[str, int] = BoundedCache(most)
    lock = Lock()

    def count(messages: list[BaseMessage]) -> int:
        if len(messages) != 1:
            return counter(messages)
        try:
            key = messages[0].model_dump_json(exclude={"response_metadata", "usage_metadata", "artifact"})
        except ValueError:
            # Bytes in the content have no text to remember the count by.
            return counter(messages)
        found = counts.get(key)
        if found is None:
            found = counter(messages)
            with lock:
                counts[key] = found
        return found

    return count


def format_tools(tools: Sequence[Any]) -> str:
    """Return the definitions of tools as a provider gets them, for counting."""
    shapes = [tool if isinstance(tool, dict) else convert_to_openai_tool(tool) for tool in tools]
    return json.dumps(shapes, default=str)


def count_tools(counter: Counter, tools: Sequence[Any]) -> int:
    """Return the number of tokens of tools' definitions: tools, functions, classes or JSON schemas."""
    if tools:
        return counter([SystemMessage(format_tools(tools))])
    return 0
