"""Scripted models that need no key: each says what comes next by the number of answers that it has given."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult

Script = Callable[[str, int], AIMessage]
"""Makes an answer from what was asked, and the number of answers since."""


class Scripted(BaseChatModel):
    """Chat model that follows a script. Each answer takes ``pace`` seconds."""

    script: Script
    pace: float = 0.0

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self

    def _generate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        time.sleep(self.pace)
        asked = max(place for place, each in enumerate(messages) if isinstance(each, HumanMessage))
        number = sum(isinstance(each, AIMessage) for each in messages[asked:])
        answer = self.script(messages[asked].text, number)
        return ChatResult(generations=[ChatGeneration(message=answer)])


def calls(*wanted: tuple[str, dict[str, Any]], of: str) -> AIMessage:
    """Return an answer that calls tools. ``of`` tells its calls from those of other answers."""
    made: Any = [
        {"name": name, "args": args, "id": f"{of}-{number}"} for number, (name, args) in enumerate(wanted)
    ]
    return AIMessage("", tool_calls=made)
