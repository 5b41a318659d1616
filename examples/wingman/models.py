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


ANSWERS = {
    "lease": "A lease is the claim of one worker on a thread for a limited time.",
    "checkpoint": "A checkpoint is the state of a graph after a step.",
    "thread": "A thread is one conversation, with all its checkpoints.",
}
UNSURE = "I am not sure, but I think it has to do with threads."
UNKNOWN = f"I am a script, and know only these words: {', '.join(ANSWERS)}."


def _work(messages: list[BaseMessage]) -> AIMessage:
    """Answer vaguely at first, and well when that was rejected."""
    question = next(m.text for m in reversed(messages) if m.type == "human").lower()
    known = next((answer for word, answer in ANSWERS.items() if word in question), UNKNOWN)
    return AIMessage(known if "rejected" in messages[0].text else UNSURE)


def _evaluate(messages: list[BaseMessage]) -> Any:
    is_good = messages[-1].text != UNSURE
    feedback = "It meets the criteria." if is_good else "Be sure, and say it in one sentence."
    return Verdict(feedback=feedback, success_criteria_met=is_good, user_input_needed=False)
