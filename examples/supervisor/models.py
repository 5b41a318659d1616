"""Scripted models that need no key: one routes by simple rules, one writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.output_parsers import PydanticOutputParser
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable


class Scripted(BaseChatModel):
    """Chat model whose answers a function makes. Its tokens are words."""

    answer: Callable[[list[BaseMessage]], str]

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> Any:
        return {"ls_model_name": self.name, "ls_model_type": "chat"}

    def _generate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        text = self.answer(messages)
        taken, given = sum(len(message.text.split()) for message in messages), len(text.split())
        usage: Any = {"input_tokens": taken, "output_tokens": given, "total_tokens": taken + given}
        return ChatResult(generations=[ChatGeneration(message=AIMessage(text, usage_metadata=usage))])

    def with_structured_output(self, schema: Any, **kwargs: Any) -> Runnable[Any, Any]:
        return self | PydanticOutputParser(pydantic_object=schema)


def rules(messages: list[BaseMessage]) -> str:
    """Return the route of the last message as JSON."""
    text = messages[-1].text.lower()
    if text.startswith(("hi", "hello", "thanks")):
        return json.dumps({"kind": "chitchat", "reply": "Hello! Ask me about your order."})
    kind = "correction" if text.startswith("no,") else "question"
    return json.dumps({"kind": kind, "worker": "orders" if "order" in text else None})


def written(messages: list[BaseMessage]) -> str:
    """Return an answer that repeats what is known."""
    known = messages[0].text.partition("What is known:\n")[2]
    return f"This is what I found: {known}" if known else "I know nothing about that yet."


def summarised(messages: list[BaseMessage]) -> str:
    """Return the summary so far, and what the user asked since."""
    before = messages[0].text.partition("in short:\n")[2]
    asked = ", ".join(message.text for message in messages[1:] if message.type == "human")
    return f"{before}; {asked}" if before else f"The user asked: {asked}"
