"""Models of the tests that report what they were asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from langchain_core.messages import BaseMessage

from examples.supervisor.models import Scripted


def scripted(
    name: str, answer: Callable[[list[BaseMessage]], str]
) -> tuple[Scripted, list[list[BaseMessage]]]:
    """Return a model, and what it will have been asked."""
    asked: list[list[BaseMessage]] = []

    def noted(messages: list[BaseMessage]) -> str:
        asked.append(messages)
        return answer(messages)

    return Scripted(name=name, answer=noted), asked


def never(messages: list[BaseMessage]) -> Any:
    raise AssertionError("this model was not to be asked")
