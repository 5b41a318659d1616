"""Routing of a message: the single decision which models and workers answer it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, Optional, cast

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AnyMessage, SystemMessage
from pydantic import BaseModel, Field, create_model

Kind = Literal["question", "correction", "chitchat"]

_PROMPT = """Decide how the last message of this conversation is answered.
- question: it asks for something; name the worker that finds it out, if one fits
- correction: it objects to the last answer, or changes what was asked for
- chitchat: a greeting, thanks or the like; write the short reply yourself"""


class Route(BaseModel):
    """Route of a message. ``worker``, if it is set, prepares the answer to a question or a correction.
    ``reply`` is the whole answer to chitchat; without it the writer answers."""

    kind: Kind
    worker: str | None = Field(default=None, description="The worker that prepares the answer")
    reply: str | None = Field(default=None, description="The whole reply to chitchat")


Policy = Callable[[Sequence[AnyMessage]], Awaitable[Route]]
"""Function that returns the route of the last of the given messages."""


def route_with(model: BaseChatModel, workers: Mapping[str, str] | None = None, *, last: int = 6) -> Policy:
    """Return a policy that asks a model, which should be a cheap and fast one.

    Args:
        model: The model; it has to support ``with_structured_output``.
        workers: Descriptions of the workers by name. The model can name no others.
        last: The number of messages at the end of the conversation that the model is shown.
    """
    described = dict(workers or {})
    prompt = _PROMPT
    if described:
        prompt += "\nWorkers:" + "".join(f"\n- {name}: {text}" for name, text in described.items())
    structured_model = model.with_structured_output(_make_schema(described))

    async def policy(messages: Sequence[AnyMessage]) -> Route:
        answer = await structured_model.ainvoke([SystemMessage(prompt), *messages[-last:]])
        return Route.model_validate(answer if isinstance(answer, dict) else answer.model_dump())

    return policy


def _make_schema(workers: Mapping[str, str]) -> type[BaseModel]:
    """Return ``Route`` with the names of the workers as the only values of ``worker``."""
    names: Any = Literal[tuple(workers)] if workers else None
    named: Any = Optional[names]  # noqa: UP045 - made of values
    return cast("type[BaseModel]", create_model("Route", __base__=Route, worker=(named, None)))
