"""The models: an OpenAI-compatible one if ``WINGMAN_MODEL`` names it, else scripted ones that need no key."""

from __future__ import annotations

import os
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import RunnableLambda

from .agent import Verdict, Wingman


def wingman() -> Wingman:
    """Return the agent over the models of the environment (``OPENAI_API_KEY``, ``OPENAI_BASE_URL``)."""
    if name := os.environ.get("WINGMAN_MODEL"):
        from langchain_openai import ChatOpenAI

        model = ChatOpenAI(model=name)
        return Wingman(model, model.with_structured_output(Verdict))
    return Wingman(RunnableLambda(_work), RunnableLambda(_evaluate))


def _work(messages: list[BaseMessage]) -> AIMessage:
    question = next(m.text for m in reversed(messages) if m.type == "human")
    is_second = "rejected" in messages[0].text
    return AIMessage(f"A better answer to: {question}" if is_second else f"A first answer to: {question}")


def _evaluate(messages: list[BaseMessage]) -> Any:
    is_good = messages[-1].text.startswith("A better")
    feedback = "It meets the criteria." if is_good else "It can be better."
    return Verdict(feedback=feedback, success_criteria_met=is_good, user_input_needed=False)
